"""Messages between services that share a process: they need not go by NATS (docs/adr/0027)."""

import asyncio
import itertools
import logging
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Final

from procession_services.bus.errors import RequestTimeoutError

log = logging.getLogger(__name__)
Callback = Callable[[str, bytes, str], None]
"""Gets subject, body and reply subject."""
_REPLIES: Final = "_NEARBY."
_WILDCARDS: Final = 2


class Nearby:
    """Who listens in this process, where nobody else does: the connections of its services share it.

    A subject may end in one or two `*`. Messages are heard in the order in which they were told, each in a turn of the
    event loop that follows. As over NATS, only who answers goes on with the trace of who asks.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, tuple[Callback, object]] = {}
        self._numbers = itertools.count()

    def add(self, subject: str, heard: Callback, owner: object) -> None:
        """Has a function hear what is told on a subject."""
        self._listeners[subject] = heard, owner

    def remove(self, subject: str, owner: object) -> None:
        """Leaves a subject to NATS again, if it is the owner's."""
        if subject in self._listeners and self._listeners[subject][1] is owner:
            del self._listeners[subject]

    def leave(self, owner: object) -> None:
        """Leaves all of an owner's subjects to NATS again."""
        for subject in list(self._listeners):
            self.remove(subject, owner)

    def has(self, subject: str) -> bool:
        """Whether somebody listens here."""
        return self._listener(subject) is not None

    def tell(self, subject: str, body: bytes, reply: str) -> bool:
        """Hands a message to who listens here; False where nobody does."""
        return self._hand(subject, body, reply, Context()) or subject.startswith(_REPLIES)

    async def ask(self, subject: str, body: bytes, seconds: float) -> bytes:
        """Asks who listens here, and waits for the answer.

        Raises:
            RequestTimeoutError: None came within that time.
        """
        reply, answer = f"{_REPLIES}{next(self._numbers)}", asyncio.get_running_loop().create_future()
        self.add(
            reply, lambda _subject, body, _reply: None if answer.done() else answer.set_result(body), self
        )
        try:
            self._hand(subject, body, reply, copy_context())
            async with asyncio.timeout(seconds):
                told: bytes = await answer
        except TimeoutError as error:
            raise RequestTimeoutError(subject) from error
        finally:
            self.remove(reply, self)
        return told

    def _hand(self, subject: str, body: bytes, reply: str, context: Context) -> bool:
        heard = self._listener(subject)
        if heard is not None:
            loop = asyncio.get_running_loop()
            loop.call_soon(_hear, heard, subject, body, reply, context=context)
        return heard is not None

    def _listener(self, subject: str) -> Callback | None:
        stem = subject
        for count in range(_WILDCARDS + 1):
            if found := self._listeners.get(stem + ".*" * count):
                return found[0]
            stem = stem.rpartition(".")[0]
        return None


def _hear(heard: Callback, subject: str, body: bytes, reply: str) -> None:
    try:
        heard(subject, body, reply)
    except Exception:  # as of one that came by NATS
        log.exception("failed to handle a message on %s", subject)
