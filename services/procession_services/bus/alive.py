"""Questions that take a while: who works on one says that it lives; where that falls silent, another is asked."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from procession_schemas import subjects
from procession_schemas.offers import ReplicaOffer
from procession_services.bus.connection import Bus
from procession_services.bus.errors import NoResponderError, RequestTimeoutError
from procession_services.bus.inbox import Inbox
from procession_services.runtime.clock import apart
from procession_services.runtime.tasks import repeated

log = logging.getLogger(__name__)
_BEAT_SECONDS: Final = 0.5
_SILENT_SECONDS: Final = 2.0
"""How long a replica may be silent, which says twice a second that it lives."""
_OFFER_SECONDS: Final = 0.5
_AGAIN_SECONDS: Final = 0.1
_REPLICAS: Final = 3
"""How many replicas are asked at most; the first answer counts."""
_APART_SECONDS: Final = 2.0
"""How much longer the others may be: questions that lost one together would lose the next one together, too."""
Body = Callable[[float, str | None], bytes]
"""Gives a question, to be answered in so many seconds, with signs of life to that subject until then."""


@asynccontextmanager
async def beating(
    publish: Callable[[str, bytes], Awaitable[None]], subject: str | None
) -> AsyncIterator[None]:
    """Sends signs of life for the length of the block."""
    if not subject:
        yield
        return
    beats = asyncio.create_task(repeated("a sign of life", _BEAT_SECONDS, partial(publish, subject, b"")))
    try:
        yield
    finally:
        beats.cancel()


async def first_answer(
    bus: Bus,
    inbox: Inbox,
    at: tuple[str, str, str],
    body: Callable[[], bytes],
    on_another: Callable[[], object] = lambda: None,
) -> bytes:
    """The answer of the first replica that gives one; a replica that falls silent is taken for dead.

    Waits while no replica is up, until it is cancelled.

    Args:
        bus: Where replicas that live are looked for.
        inbox: Where answers and signs of life are heard.
        at: The service, the tenant and the operation that is asked for.
        body: Gives the question, which names the inbox as the place for signs of life.
        on_another: Called when another replica is asked than the one that was.
    """
    service, _, operation = at
    anybody, asked, silent = subjects.api(*at), 1, _SILENT_SECONDS
    await inbox.ask(anybody, body())
    while True:
        try:
            if told := await inbox.heard(silent):
                return told
        except NoResponderError:
            await asyncio.sleep(_AGAIN_SECONDS)
            await inbox.ask(anybody, body())
        except RequestTimeoutError:
            if asked < _REPLICAS and (replica := await _living(bus, service)) and not inbox.has_heard:
                log.warning("no sign of life from %s (%s), asking replica %s", service, operation, replica)
                asked += 1
                silent = _SILENT_SECONDS + apart(_APART_SECONDS)
                on_another()
                await inbox.ask(subjects.api(*at, replica), body())


async def answer_within(bus: Bus, at: tuple[str, str, str], seconds: float, body: Body) -> bytes:
    """What any replica answers to a question of that service, tenant and operation; see `first_answer`.

    Raises:
        TimeoutError: Nobody answered within that time.
    """
    if bus.is_nearby(subject := subjects.api(*at)):
        try:
            return await bus.request(subject, body(seconds, None), seconds)
        except (NoResponderError, RequestTimeoutError):
            raise TimeoutError from None
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    async with asyncio.timeout_at(until), bus.inbox() as inbox:
        return await first_answer(bus, inbox, at, lambda: body(max(0.001, until - clock()), inbox.address))


async def request_when_up(bus: Bus, subject: str, body: bytes, seconds: float) -> bytes:
    """As `Bus.request`; while nobody listens there, it waits.

    Raises:
        RequestTimeoutError: Nobody answered within that time.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    while True:
        try:
            return await bus.request(subject, body, max(0.001, until - clock()))
        except NoResponderError:
            if clock() + _AGAIN_SECONDS >= until:
                raise RequestTimeoutError(subject) from None
        await asyncio.sleep(_AGAIN_SECONDS)


async def is_listening(bus: Bus, subject: str, body: bytes) -> bool:
    """Whether somebody listens there: who stands still does not answer, and who is gone, NATS tells."""
    try:
        await bus.request(subject, body, _OFFER_SECONDS)
    except NoResponderError:
        return False
    except RequestTimeoutError:
        pass
    return True


async def _living(bus: Bus, service: str) -> str | None:
    """A replica that answers now: the queue group might choose one that stands still."""
    try:
        offer = await bus.request(subjects.offer(service), b"", _OFFER_SECONDS)
    except (NoResponderError, RequestTimeoutError):
        return None
    return ReplicaOffer.model_validate_json(offer).replica
