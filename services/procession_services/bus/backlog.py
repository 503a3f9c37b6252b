"""Stored chunks for clients, who may not read the stream themselves.

JetStream's requests for messages by number say in their body whose messages they want, which no permission can look
into. Here the tenant is a token of the request's subject, and its answer holds that tenant's chunks only.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import orjson
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from pydantic import ValidationError

from procession_schemas import subjects
from procession_schemas.backlog import BacklogRequest
from procession_schemas.run import Failure
from procession_schemas.validation import misfit
from procession_services.bus.connection import Bus

__all__ = ["Backlog", "Knows", "backlog"]

Knows = Callable[[str, str, int | None], Awaitable[tuple[bool, int | None]]]
"""Tells of a tenant, a run, and the place of its request in RUNS, where the asker knows it: whether there is anything
of the run, and that place while the request is there."""

_MESSAGES: Final = 256
_BYTES: Final = 512 * 1024
ENVELOPE: Final = 64
"""Bytes of an answer beside its batches."""


class Backlog:
    """Answers `procession.v1.api.orchestrator.<tenant>.backlog`."""

    def __init__(self, bus: Bus, knows: Knows) -> None:
        self._bus, self._knows = bus, knows

    async def answer(self, subject: str, body: bytes) -> bytes:
        """The first chunk batches behind a number, as `backlog` gives them."""
        longest = min(_BYTES, self._bus.max_payload - ENVELOPE)
        return await backlog(self._bus.js, self._knows, subject, body, longest=longest)


async def backlog(
    js: JetStreamContext, knows: Knows, subject: str, body: bytes, *, longest: int = _BYTES
) -> bytes:
    """JSON: `batches`, oldest first, and `last`, the number of the last one in the stream; 0 when there is no more.

    They have at most `longest` bytes in all, except that there is always one: that was a message before, and fits.
    They come from the stream's leader: a copy may lag behind what was said of the run's end. A request that is none
    finds nothing, and is told why in `error`. Who asks only whether the run is `known` gets that instead, and the place
    of its `request` in RUNS while that is there.
    """
    *_, tenant, _operation = subjects.parse(subject)
    try:
        asked = BacklogRequest.model_validate_json(body)
        wanted = subjects.chunk(tenant, asked.run)
    except ValidationError as error:
        return _refused(misfit(error))
    except subjects.InvalidSubjectError as error:
        return _refused(Failure(code="INVALID_REQUEST", message=str(error)))
    if asked.known:
        known, request = await knows(tenant, asked.run, asked.request)
        told = {"last": 0, "batches": [], "known": known}
        return orjson.dumps(told if request is None else {**told, "request": request})
    last, size, batches = asked.after, 0, list[bytes]()
    while len(batches) < _MESSAGES:
        try:
            message = await js.get_msg("CHUNKS", seq=last + 1, subject=wanted, next=True)
        except NotFoundError:
            break
        batch = message.data or b"{}"
        size += len(batch) + len(b",")
        if batches and size > longest:
            break
        last = message.seq or last + 1
        batches.append(batch)
    return b'{"last":%d,"batches":[%s]}' % (last if batches else 0, b",".join(batches))


def _refused(failure: Failure) -> bytes:
    error = failure.model_dump(by_alias=True, exclude_none=True)
    return orjson.dumps({"last": 0, "batches": [], "error": error})
