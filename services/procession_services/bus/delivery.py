"""A message as it is delivered, and whether it is still ours: who has lost it must not speak any more."""

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Self

import msgspec

from procession.client.heard import Heard

AGAIN: Final = "Procession-Again"
"""A header of a message whose work somebody may have begun already, who had it without a message."""

_WORDS: Final = 9
"""Of `$JS.ACK.<stream>.<consumer>.<delivered>.<number in the stream>.<number>.<nanoseconds>.<pending>`."""
_COUNTS: Final = 4
"""Where its numbers begin; newer servers tell a domain and an account before the stream, and more behind."""


class LostError(Exception):
    """A message is not ours: somebody works on another delivery of it, or will be given one.

    Attributes:
        again_in: Seconds after which to deliver it again; 0: NATS does that by itself, when nobody keeps it any more.
    """

    def __init__(self, again_in: float = 0.0) -> None:
        super().__init__()
        self.again_in = again_in


class Hold:
    """A message in work, which the server leaves to us until a moment on the loop's clock; for ever if there is none.

    `in_doubt` is called when somebody needs to know and the time is over: the server was not heard for so long, and
    may have given the message to somebody else.

    Attributes:
        instead_of: Whose claim on the message we may take over: who was asked about it, and is gone, or nobody (empty).
            None where nobody was asked for.
    """

    def __init__(self, until: float = math.inf, in_doubt: Callable[[], None] = lambda: None) -> None:
        self._until, self._in_doubt = until, in_doubt
        self._lost = False
        self._decided: asyncio.Event | None = None
        self.instead_of: str | None = None

    def lasts(self) -> bool:
        """Whether it is ours for certain."""
        return not self._lost and (self._until == math.inf or self.over_for() < 0)

    def over_for(self) -> float:
        """Seconds since when somebody else may have it; negative before that."""
        return asyncio.get_running_loop().time() - self._until

    def extend(self, until: float) -> None:
        """Notes that the server leaves it to us for longer."""
        self._until = until
        self._decide()

    def lose(self) -> None:
        """Notes that it is somebody else's."""
        self._lost = True
        self._decide()

    def _decide(self) -> None:
        if self._decided is not None:
            self._decided.set()
            self._decided = None

    async def keep(self) -> None:
        """Returns when it is ours for certain: at once, or when it is known whether somebody else has got it.

        Raises:
            LostError: Somebody has.
        """
        while not self.lasts():
            if self._lost:
                raise LostError
            decided = self._decided = self._decided or asyncio.Event()
            self._in_doubt()
            await decided.wait()


class Delivery(msgspec.Struct, frozen=True):
    """One delivery of a message.

    Attributes:
        again: Its work may have been begun before the first delivery, by somebody who had it without a message.
        lease: For so many seconds whoever has its work, and does not answer, has to be waited for.
    """

    subject: str
    body: bytes
    sequence: int
    attempt: int
    message_id: str | None
    stored_at: str
    traceparent: str | None
    hold: Hold = msgspec.field(default_factory=Hold)
    again: bool = False
    lease: float = 0.0

    @classmethod
    def of(cls, message: Heard, hold: Hold, lease: float) -> Self:
        """A delivery by JetStream, which tells of it in the subject for acknowledgements.

        Raises:
            ValueError: It is none.
        """
        words = message.reply.split(".")
        at = _COUNTS if len(words) == _WORDS else _COUNTS + 2
        attempt, sequence, _, nanoseconds = map(int, words[at : at + 4])
        headers = message.headers
        return cls(
            subject=message.subject,
            body=message.data,
            sequence=sequence,
            attempt=attempt,
            message_id=headers.get("Nats-Msg-Id"),
            stored_at=datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(),
            traceparent=headers.get("traceparent"),
            hold=hold,
            again=AGAIN in headers,
            lease=lease,
        )

    @property
    def is_message(self) -> bool:
        """Whether NATS has it; otherwise the message of another replica stands for it."""
        return bool(self.sequence)

    @property
    def place(self) -> str:
        """What names the message; a stream that was made anew counts from 1 again."""
        return f"{self.sequence}:{self.stored_at}"
