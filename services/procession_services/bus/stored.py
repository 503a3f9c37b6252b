"""What the streams hold, and how far their consumers are: asked of JetStream, whose leader answers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from nats.errors import Error
from nats.js.errors import NotFoundError

from procession.client.nats_client import AWAY
from procession_schemas import subjects
from procession_services.bus.unconfirmed import AGAIN

_T = TypeVar("_T")


class Retried(Protocol):
    """Asks until JetStream answers; `what` names the question in the log."""

    async def __call__(self, what: str, ask: Callable[[], Awaitable[_T]]) -> _T:
        """The answer."""


class Stored:
    """Looks into streams; waits while JetStream is away."""

    def __init__(self, js: Any, retried: Retried) -> None:
        self._js, self._retried = js, retried

    async def last_body(self, stream: str, subject: str) -> bytes | None:
        """The newest message that a stream holds on a subject; of its leader, since copies may lag behind."""
        last = await self._last(stream, subject)
        return None if last is None else last.data

    async def last_event(self, tenant: str, run: str, type_: str) -> bytes | None:
        """The newest event of that type that is stored of a run."""
        return await self.last_body("EVENTS", subjects.event(tenant, run, type_))

    async def latest(self, stream: str, subject: str) -> list[bytes]:
        """Bodies among which is that of the message that was sent last: one; or all, if the newest was sent again."""
        last = await self._last(stream, subject)
        if last is None or AGAIN not in (last.headers or {}):
            return [] if last is None else [last.data]
        return [body async for _, body in self.messages(stream, subject)]

    async def last_id(self, stream: str, subject: str) -> str | None:
        """The id under which the newest message that a stream holds on a subject was published."""
        last = await self._last(stream, subject)
        return None if last is None else (last.headers or {}).get("Nats-Msg-Id")

    async def _last(self, stream: str, subject: str) -> Any:
        try:
            return await self._retried(subject, lambda: self._js.get_last_msg(stream, subject))
        except NotFoundError:
            return None

    async def newest(self, stream: str) -> int:
        """The number of the newest message of a stream; 0 where it has none."""
        return (await self._numbers(stream))[1]

    async def messages(
        self, stream: str, subject: str, *, until: int | None = None
    ) -> AsyncIterator[tuple[str, bytes]]:
        """Subject and body of each message that a stream holds on a subject, oldest first, one question each.

        With `until` only those up to that number.
        """
        async for message in self.whole(stream, subject):
            if until is not None and message.seq > until:
                return
            yield message.subject, message.data

    async def whole(self, stream: str, subject: str) -> AsyncIterator[Any]:
        """These messages with their numbers and headers, as nats-py has them (`RawStreamMsg`)."""
        number = 0
        while True:
            ask = partial(self._js.get_msg, stream, seq=number + 1, subject=subject, next=True)
            try:
                message = await self._retried(subject, ask)
            except NotFoundError:
                return
            number = message.seq
            yield message

    async def may_hold(self, stream: str, number: int) -> bool:
        """Whether a stream may still have its message of that number: it is neither behind the first nor to come."""
        first, last = await self._numbers(stream)
        return first <= number <= last

    async def _numbers(self, stream: str) -> tuple[int, int]:
        """The numbers of the first and the newest message of a stream; 1 and 0 where there is no such stream."""
        try:
            info = await self._retried(stream, lambda: self._js.stream_info(stream))
        except NotFoundError:
            return 1, 0
        return info.state.first_seq, info.state.last_seq

    async def is_served(self, stream: str, consumer: str) -> bool:
        """Whether somebody asks for what the consumer has."""
        try:
            info = await self._retried(consumer, lambda: self._js.consumer_info(stream, consumer))
        except NotFoundError:
            return False
        return bool(info.num_waiting)

    async def consumer_lag(self, stream: str, consumer: str) -> tuple[int, int] | None:
        """How many messages wait for a consumer, and how many it has in hand; None where NATS does not say."""
        try:
            info = await self._js.consumer_info(stream, consumer)
        except (*AWAY, Error):
            return None
        return info.num_pending or 0, info.num_ack_pending or 0
