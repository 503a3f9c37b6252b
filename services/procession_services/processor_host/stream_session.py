"""What the sender knows of one stream: its chunks, and how far the replica that has it is."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import orjson
from msgspec import Struct, field

from procession.args import AbortSignal
from procession.errors import ProcessorError
from procession.services import KeyValueStore
from procession_schemas.agent import ProcessorRef
from procession_schemas.chunks import Chunk
from procession_services.bus import Hold
from procession_services.runtime.clock import apart

WINDOW: Final = 1024
"""Raw chunks that may be unacknowledged; a slow chain slows the reading of the provider's socket."""
WINDOW_BYTES: Final = 4 * 1024 * 1024
"""The same in bytes, for providers that send large chunks."""
_DOUBLINGS: Final = 6
"""Of the time that a replica may stand still, at most."""
MOST_DEATHS: Final = 10
"""Replicas that a stream may cost: a processor that ends its process would end all of them, again and again."""
_FEW_DEATHS: Final = 2
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 4.0


class GivenBackError(Exception):
    """What replicas need for a stream is away: its sender's work is to be delivered again."""


class Session(Struct):
    """One stream on its way through an output replica.

    `raw` are all its chunks, encoded: dicts take five times as much, and a failover sends them as they are. `flying`
    are the bytes that are unacknowledged.
    """

    id: str
    processors: list[ProcessorRef]
    lease: Callable[[], Awaitable[dict[str, Any]]]
    store: KeyValueStore
    raw: list[bytes] = []
    flying: int = 0
    sent: int = 0
    acked: int = 0
    awaited: int = -1
    """What the replica waited for when it was last heard, if that was sent and nothing else has been since."""
    ended: bool = False
    well: bool = False
    """It has ended as it should, so that the replica may go on with the operations of the lease."""
    attempt: int = 0
    after: int | None = None
    """The attempt whose chunks, and those of later ones, clients have; None while nobody can have had the stream."""
    inbox: str = ""
    replica: str | None = None
    returned: dict[str, Any] = {}
    """What the last replica that gave it back has said; it may be heard before the reply to the lease."""
    stalls: int = 0
    """How often a replica that had it stood still."""
    deaths: int = 0
    """How many replicas that had it were lost, one after the other, of which none got further than those before."""
    furthest: int = 0
    heard: float = 0.0
    lost: bool = False
    pushing: bool = False
    """Somebody sends what is due."""
    moving: "asyncio.Task[None] | None" = None
    timed: bool = False
    disconnects: int = 0
    life: int = 0
    """That of Redis when it began; 0 where nobody knows."""
    signal: AbortSignal = field(default_factory=AbortSignal)
    hold: Hold = field(default_factory=Hold)
    end_sent: bool = False
    outcome: dict[str, Any] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ended_early: "asyncio.Future[None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def patience(self) -> int:
        """How many times as long as the first ones the next replica may stand still.

        A stream whose own processors block would go from one to the next for ever.
        """
        return 1 << min(max(0, self.stalls - 1), _DOUBLINGS)

    @property
    def due(self) -> bool:
        """Whether there is something to send."""
        return self.sent < len(self.raw) or (self.ended and not self.end_sent)

    @property
    def moves(self) -> bool:
        """Whether another replica is being asked to take it over."""
        return self.moving is not None and not self.moving.done()

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Takes chunks that are to be sent.

        Raises:
            ProcessorError: One holds what is not JSON.
        """
        try:
            # Copied, since orjson leaves each result its working memory: 4 kB for 100 bytes (docs/performance.md).
            self.raw += [memoryview(orjson.dumps(chunk)).tobytes() for chunk in chunks]
        except TypeError as error:
            text = f"a chunk of the model contains something that is not JSON: {error}"
            raise ProcessorError(text, code="CHUNK_NOT_SENDABLE") from error

    def left(self, away: str = "") -> None:
        """Notes that the attempt has failed; clients may have chunks of it.

        Where the replica gave the stream back, `away` says what it lacked, such as Redis: no processor is to blame.

        Raises:
            ProcessorError: The stream has cost as many replicas as it may.
            GivenBackError: It was given back as often.
        """
        self.after = 0 if self.after is None else self.attempt
        self.deaths += 1
        if self.deaths >= MOST_DEATHS and away:
            raise GivenBackError(f"{self.deaths} replicas could not continue a stream: {away}")
        if self.deaths >= MOST_DEATHS:
            chain = ", ".join(ref.id for ref in self.processors)
            told = f"{self.deaths} replicas were lost over one stream, and none got further than those before"
            why = f"one of {chain} may end or block its process"
            raise ProcessorError(f"{told}: {why}", code="WORK_FAILED")

    def resumed(self, disconnects: int) -> dict[str, Any]:
        """What a lease says where clients may have chunks of the stream; `disconnects`: how often NATS was lost."""
        if self.after is None:
            return {}
        # Over a restart of NATS clients may have missed chunks, and if time had a say in them, they are others.
        anew = self.timed or disconnects != self.disconnects
        return {"resume": True, "after": self.after, "anew": anew, "life": self.life}

    def chunks(self, start: int = 0, stop: int | None = None) -> orjson.Fragment:
        """The chunks from `start` to before `stop` as JSON."""
        return orjson.Fragment(b"[" + b",".join(self.raw[start:stop]) + b"]")

    def ending(self, stop: int) -> dict[str, bool]:
        """What says, with the chunks before `stop`, that they are the last, and whether the stream has ended well."""
        if not self.ended or stop < len(self.raw):
            return {}
        return {"e": True, "g": True} if self.well else {"e": True}

    @property
    def has_room(self) -> bool:
        """Whether more may be unacknowledged."""
        return self.sent - self.acked < WINDOW and self.flying < WINDOW_BYTES

    def size(self, start: int, stop: int) -> int:
        """The bytes of the chunks from `start` to before `stop`."""
        return sum(map(len, self.raw[start:stop]))

    def acknowledge(self, count: int) -> None:
        """Notes that the replica has processed so many chunks, of which some may have been due again."""
        if count > self.acked:
            self.flying -= self.size(self.acked, min(count, self.sent))
            self.acked, self.sent = count, max(count, self.sent)
            if count > self.furthest or (count == len(self.raw) and not self.ended):
                self.furthest, self.deaths = max(count, self.furthest), 0

    def is_missing(self, received: int) -> bool:
        """Whether frames behind so many chunks are lost: the replica says again that it waits for what was sent.

        Servers of a cluster may lose them with nobody's connection broken, and where they are the last ones, none
        comes behind them that would show it.
        """
        awaited, self.awaited = self.awaited, received if received < self.sent or self.end_sent else -1
        return awaited == self.awaited != -1

    def pause(self) -> float:
        """How many seconds it waits for the next replica: at random, and longer, the more are gone.

        The streams of a replica that has died would all go to the next one together, and one of them might end that,
        too. As they wait for different times they part, and those that do no harm are acknowledged meanwhile.
        """
        late = self.deaths - _FEW_DEATHS
        longest = min(_FIRST_PAUSE * 2 ** (late - 1), _LONGEST_PAUSE) if late > 0 else 0.0
        return apart(longest)

    def send_again(self, start: int) -> None:
        """Makes the chunks from number `start` on due: the replica has missed them."""
        self.sent, self.end_sent = min(self.sent, start), False
        self.flying = self.size(self.acked, self.sent)
        self.changed.set()
