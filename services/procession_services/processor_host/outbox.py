"""The chunks of one command on their way to the client: identity, numbers, batches."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import orjson

from procession.errors import ProcessorError
from procession.json_values import UNTOUCHED
from procession_schemas import subjects
from procession_schemas.chunks import Chunk
from procession_services.bus import Bus, Hold, oversized
from procession_services.bus.backlog import ENVELOPE
from procession_services.runs.numbering import TIMES, second_of_week

TOGETHER_SECONDS = 0.002
"""How long a chunk waits for those behind it that are as good as here."""
_BESIDE = 1024
"""More bytes than travel with a chunk: its run, and what a batch, or a frame to an output replica, says besides."""
_ROOM = 1 << 20
"""Numbers for what a stream, or a command that is begun again, sends until it is done."""
_ATTEMPTS_A_SECOND = 8
"""More attempts than a run has in a second."""


def _command_of(fence: int) -> int:
    """The number of the command that a fence is of."""
    return fence // TIMES**2


class Shown(NamedTuple):
    """What clients have: the fence and the number of the last chunk; there is none before the first one.

    A chunk that was `timed` is one that nobody else would make. The last chunk itself is there if it came alone or
    with others, and not with a mark.
    """

    fence: int = 0
    last: int = -1
    timed: bool = False
    chunk: Chunk | None = None


_NOTHING_SHOWN = Shown()


class UnsendableError(ProcessorError):
    """A chunk that is too long, or holds what is not JSON: its number and type; the message names a tool's."""

    def __init__(self, number: int, chunk: Mapping[str, Any], why: str) -> None:
        self.number, self.kind = number, chunk["type"]
        payload = chunk.get("payload")
        tool = payload.get("toolName") if isinstance(payload, dict) else None
        of = f" of the tool {tool!r:.80}" if tool else ""
        super().__init__(f"a chunk ({self.kind}{of}) {why}", code="CHUNK_NOT_SENDABLE")


async def last_sent(bus: Bus, tenant: str, run: str, fence: int = 0) -> Shown:
    """What clients have of a run; nothing where none of it is of that fence."""
    bodies = await bus.stored.latest("CHUNKS", subjects.chunk(tenant, run))
    shown = max(
        (_shown(orjson.loads(body)) for body in bodies), default=_NOTHING_SHOWN, key=lambda one: one[:3]
    )
    return shown if shown.fence >= fence else _NOTHING_SHOWN


def _shown(batch: dict[str, Any]) -> Shown:
    chunks = batch["chunks"]
    return Shown(
        batch.get("fence", 0),
        int(batch["seq"]) + len(chunks) - 1,
        bool(batch.get("timed")),
        chunks[-1] if chunks else None,
    )


def _alike(one: Chunk, other: Chunk) -> bool:
    """Whether two chunks say the same, as far as that must not depend on who made them."""
    return one["type"] == other["type"] and _text(one) == _text(other)


def _text(chunk: Chunk) -> Any:
    payload = chunk.get("payload")
    return payload.get("text") if isinstance(payload, dict) else None


class Outbox:
    """Numbers chunks and publishes whatever is ready as one batch.

    Attributes:
        next_seq: The number of the next chunk.
        fence: Says whose chunks count where two senders have made some of the same number.
        reset: The next chunks replace all from this number on; None where nothing is to be replaced, or it was said.
        timed: What is sent from here on depends on time: nobody else would make the same.
        differs: After a failover the same chunks are made again, and those that clients have (`shown`) are held back.
            Here the last of these has turned out to be another one, so nothing more is sent.
    """

    def __init__(
        self,
        bus: Bus,
        tenant: str,
        run: str,
        next_seq: int,
        *,
        live: bool,
        shown: Shown = _NOTHING_SHOWN,
        fence: int = 0,
        reset: int | None = None,
        hold: Hold | None = None,
    ) -> None:
        self.next_seq = next_seq
        self.fence = fence
        self.reset = reset
        self.hold = hold or Hold()
        self.timed = self.differs = False
        self.unattended: Callable[[], None] | None = None
        """Called once, when a chunk comes that nobody is about to send."""
        self.explain: Callable[[UnsendableError], ProcessorError] | None = None
        """Says who has made a chunk that cannot be sent."""
        self._asked: int | None = None
        self._gave_up = False
        self._bus, self._run, self._live = bus, run, live
        self._suppress, self._last = shown.last, shown.chunk
        self._whose = tenant, run
        self._subject = subjects.chunk(tenant, run)
        self._ready: list[dict[str, Any]] = []

    @property
    def waiting(self) -> int:
        """How many chunks are ready, and not sent yet."""
        return len(self._ready)

    @property
    def catching_up(self) -> bool:
        """Whether the next chunk is one that clients have."""
        return self.next_seq <= self._suppress

    @property
    def astray(self) -> bool:
        """Whether what comes next would go among chunks that clients have, or behind others than were made here."""
        return self.catching_up or self.differs

    def takes(self, chunk: Chunk) -> bool:
        """Whether the chunk is not too long to be sent; one that is not JSON fails when it is sent."""
        try:
            return len(orjson.dumps(chunk)) + _BESIDE <= self._bus.max_payload
        except TypeError:
            return True

    def put(self, chunk: Chunk) -> None:
        """Takes a chunk; custom `data-*` chunks go verbatim (R-WR-3), others get the run's identity (R-CH-1)."""
        number = self.next_seq
        self.next_seq = number + 1
        if number <= self._suppress:
            if number == self._suppress and self._last is not None:
                self.differs = not _alike(chunk, self._last)
        elif self._live and not self.differs:
            kind = chunk["type"]
            if kind.startswith("data-"):
                self._ready.append(dict(chunk))
            else:
                self._ready.append({"type": kind, "runId": self._run, "from": "AGENT", **chunk})
            if (told := self.unattended) is not None:
                self.unattended = None
                told()

    async def follow(self, *, again: bool = False) -> None:
        """Goes on behind what somebody sent who had this work before us, and may not know that it is ours now.

        Clients drop what they get from him later. Where the command is done `again`, they also drop all from where it
        first began: what it sent then, and late chunks of his, which they have dropped already.
        """
        sent = await last_sent(self._bus, *self._whose)
        self._gave_up = False
        self.next_seq = max(self.next_seq, sent.last + 1 + self.waiting)
        replaced = await self._replaced() if again else []
        self.reset = min(replaced, default=self.next_seq - self.waiting)
        await self.flush(mark=True)

    async def _replaced(self) -> list[int]:
        """From which numbers on our command has replaced what was sent before."""
        stored = self._bus.stored.messages("CHUNKS", self._subject)
        marks = [batch async for _, body in stored if "reset" in (batch := orjson.loads(body))]
        ours = _command_of(self.fence)
        return [batch["reset"] for batch in marks if _command_of(batch.get("fence", 0)) >= ours]

    async def leave(self) -> None:
        """Goes on behind what streams have sent that were given up; what they send from now on does not count."""
        self.give_up(TIMES)
        await self.follow()

    def give_up(self, attempts: int) -> None:
        """Gives up a stream of ours after so many attempts: nobody hears any more what became of it.

        What is sent next goes on behind what clients have of it.
        """
        last = self.fence // TIMES * TIMES + TIMES - 1
        self.fence, self._gave_up = min(self.fence + attempts + 1, last), True

    async def renew(self, attempt: int = 0, stream: int = 0, *, life: int = 0) -> None:
        """Has clients drop what they have of this work, also from others who do not know that it is ours now.

        Clients may have more chunks than CHUNKS, since a NATS that is killed forgets some, and one that comes back says
        only how far it was. So each attempt has numbers of its own, which rise with its fence. So has each `life` of
        Redis: in the one before, as many attempts may have been made in vain.
        """
        self.reset = self.next_seq if self.reset is None else self.reset
        begun = second_of_week(life) * _ATTEMPTS_A_SECOND * TIMES * _ROOM
        self.next_seq = max(self.next_seq, begun) + (attempt * TIMES + stream) * _ROOM
        await self.flush(mark=True)

    def go_on_behind(self, next_seq: int, fence: int) -> None:
        """Goes on behind what a stream has sent for us; if it has sent anything, it has said what that replaces."""
        if next_seq > self.next_seq:
            self.reset = None
        self.next_seq, self.fence = next_seq, max(self.fence, fence)

    async def mark(self) -> None:
        """Says that what is not sent yet comes from here, whatever the one before us may still say."""
        if self._live:
            following = max(self.next_seq, self._suppress + 1)
            await self._bus.room_to_keep()
            await self._tell(self._batch(following, [], {"reset": following}))

    async def flush(self, *, end: bool = False, mark: bool = False) -> None:
        """Publishes what is ready; and what a `mark` says, which the first chunks behind it say again.

        A NATS that is killed may forget what it has confirmed a moment before. What is not sent where this is cancelled
        stays ready: its numbers are given out.

        Raises:
            LostError: The command is no longer ours, so its chunks come from somebody else.
            ProcessorError: A single chunk is too long, or holds what is not JSON.
        """
        await self.hold.keep()
        if not self._live:
            return
        if self._gave_up:
            await self.follow()
        if self._ready or end or mark:
            await self._bus.room_to_keep()
        if not (self._ready or end or mark):  # others may have sent it meanwhile
            return
        marks: dict[str, Any] = {"end": True} if end else {}
        if self.reset is not None:
            marks["reset"] = self.reset
        if self._ready:
            self.reset = None
        await self._publish(len(self._ready), marks)

    async def kept(self) -> None:
        """Waits until CHUNKS has the run's last chunk, where it has gone out from here; in a cluster, all chunks.

        Who is cut off from NATS would else tell Redis of an end that others tell clients, while it has the chunks. And
        while CHUNKS has no leader, they would be nowhere else when a process dies whose work is done.

        Raises:
            LostError: The command is no longer ours.
        """
        if self._asked is not None:
            await self._bus.kept(self._asked)
            await self.hold.keep()

    def flushing(self) -> AbstractAsyncContextManager[None]:
        """Publishes what is ready when the block first waits for anything, and soon what comes while it waits.

        What is ready at its end goes with what comes next. Raises what `flush` does, at the end of the block.
        """
        return _Flushes(self)

    async def _publish(self, count: int, marks: dict[str, Any]) -> None:
        """Publishes so many of the chunks that are ready, in halves while the broker does not take them.

        Raises:
            ProcessorError: A single chunk is too long, or holds what is not JSON.
        """
        seq, chunks = self.next_seq - len(self._ready), self._ready[:count]
        try:
            body = self._batch(seq, chunks, marks)
        except TypeError as error:
            why = f"contains something that is not JSON: {error}"
        else:
            if len(body) + ENVELOPE <= self._bus.max_payload:
                del self._ready[:count]
                await self._tell(body, end="end" in marks)
                return
            why = oversized(len(body), self._bus.max_payload)
        if len(chunks) == 1:
            self.next_seq = seq  # nobody gets what has numbers from here on
            self._ready.clear()
            refused = UnsendableError(seq, chunks[0], why)
            raise self.explain(refused) if self.explain else refused
        middle = len(chunks) // 2
        await self._publish(middle, {k: v for k, v in marks.items() if k == "reset"})
        await self._publish(len(chunks) - middle, {k: v for k, v in marks.items() if k == "end"})

    def _batch(self, seq: int, chunks: list[dict[str, Any]], marks: dict[str, Any]) -> bytes:
        batch = {"run": self._run, "seq": seq, "fence": self.fence, "chunks": chunks, **marks}
        if self.timed:
            batch["timed"] = True
        return orjson.dumps(batch, option=UNTOUCHED)

    async def _tell(self, body: bytes, *, end: bool = False) -> None:
        number = await self._bus.publish_kept(self._subject, body, ask=end)
        if end or self._bus.clustered:
            self._asked = number


class _Flushes:
    """Flushes an outbox when its owner first waits, and again soon after each chunk that comes while it waits."""

    __slots__ = ("_due", "_loop", "_outbox", "_running")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox, self._loop = outbox, asyncio.get_running_loop()
        self._running: asyncio.Future[None] | None = None

    async def __aenter__(self) -> None:
        self._due: asyncio.Handle = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._outbox.waiting:
            self._running = asyncio.ensure_future(self._flushed(self._running))
        self._outbox.unattended = self._flush_soon

    def _flush_soon(self) -> None:
        self._due = self._loop.call_later(TOGETHER_SECONDS, self._flush)

    async def _flushed(self, before: asyncio.Future[None] | None) -> None:
        if before:
            await before
        await self._outbox.flush()

    async def __aexit__(self, *_raised: object) -> None:
        self._due.cancel()
        self._outbox.unattended = None
        if self._running:
            await self._running
