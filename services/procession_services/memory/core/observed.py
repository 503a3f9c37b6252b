"""What observational memory knows: notes that count, and notes made ahead, which wait (R-OM-2)."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from procession_schemas.messages import Message
from procession_services.memory.core.units import rough_tokens

__all__ = ["NOTHING", "Condensed", "Observed", "Piece", "Spent", "batch", "behind", "noteworthy", "tokens"]


@dataclass(frozen=True, slots=True)
class Spent:
    """What model calls used and cost, in US dollars."""

    calls: int = 0
    tokens: int = 0
    cost: float = 0.0

    def __add__(self, more: "Spent") -> "Spent":
        return Spent(self.calls + more.calls, self.tokens + more.tokens, self.cost + more.cost)


NOTHING: Final = Spent()


@dataclass(frozen=True, slots=True)
class Piece:
    """Notes of a thread's messages up to a time, and what they cost."""

    thread: str
    until: str
    notes: str
    spent: Spent = NOTHING


@dataclass(frozen=True, slots=True)
class Condensed:
    """What can stand for the first `covers` characters of the notes, and what it cost."""

    covers: int
    notes: str
    spent: Spent = NOTHING


@dataclass(frozen=True, slots=True)
class Observed:
    """Notes, up to which time each thread is in them, and what was made ahead: pieces, and shorter notes."""

    notes: str = ""
    until: dict[str, str] = field(default_factory=dict)
    pieces: tuple[Piece, ...] = ()
    condensed: Condensed | None = None
    stored: bool = False

    @classmethod
    def read(cls, stored: str | None) -> "Observed":
        """The inverse of `text`; nothing for nothing."""
        told: dict[str, Any] = json.loads(stored) if stored else {}
        pieces = tuple(Piece(**{**each, "spent": Spent(**each["spent"])}) for each in told.get("pieces", ()))
        made = told.get("condensed")
        condensed = Condensed(**{**made, "spent": Spent(**made["spent"])}) if made else None
        return cls(told.get("notes", ""), told.get("until", {}), pieces, condensed, stored is not None)

    def text(self) -> str:
        """The form in which a store keeps it."""
        told = asdict(self)
        del told["stored"]
        return json.dumps(told, ensure_ascii=False)

    @property
    def tokens(self) -> float:
        """About how many tokens the notes have."""
        return len(self.notes) / 4

    @property
    def everything(self) -> str:
        """The notes with those that wait, for the observer."""
        return "\n".join(filter(None, (self.notes, *(piece.notes for piece in self.pieces))))

    def seen(self, thread: str) -> str:
        """The time up to which a thread is noted, notes that wait included."""
        waiting = (piece.until for piece in self.pieces if piece.thread == thread)
        return max([self.until.get(thread, ""), *waiting])

    def with_notes(self, piece: Piece) -> "Observed":
        """With notes that count at once."""
        notes = f"{self.notes}\n{piece.notes}".strip()
        return replace(self, notes=notes, until={**self.until, piece.thread: piece.until})

    def with_piece(self, piece: Piece) -> "Observed":
        """With notes that wait."""
        return replace(self, pieces=(*self.pieces, piece))

    def activated(self, thread: str, messages: Sequence[Message], keep: float) -> tuple["Observed", Spent]:
        """The oldest notes that wait for a thread count from now on, until its messages have at most `keep` tokens.

        Returns:
            The notes, and what those have cost that count now.
        """
        made, left, spent = self, list(messages), NOTHING
        for piece in self.pieces:
            if piece.thread == thread and tokens(left) > keep:
                rest = tuple(each for each in made.pieces if each is not piece)
                made = replace(made.with_notes(piece), pieces=rest)
                left, spent = behind(left, piece.until), spent + piece.spent
        return made, spent

    def shortened(self, condensed: Condensed) -> "Observed":
        """With shorter notes in place of those that they cover."""
        later = self.notes[condensed.covers :].strip()
        return replace(self, notes=f"{condensed.notes}\n{later}".strip(), condensed=None)


def tokens(messages: Iterable[Mapping[str, Any]]) -> float:
    """About how many tokens messages have."""
    return sum(map(rough_tokens, messages))


def behind(messages: Iterable[Message], until: str) -> list[Message]:
    """The messages from after a time."""
    return [message for message in messages if message["createdAt"] > until]


def noteworthy(messages: Sequence[Message]) -> list[Message]:
    """All messages but the last turn, which is never only in notes, and what is of the same time as its beginning."""
    start = next((m["createdAt"] for m in reversed(messages) if m["role"] == "user"), None)
    return [message for message in messages if start is None or message["createdAt"] < start]


def batch(messages: Sequence[Message], limit: float) -> list[Message]:
    """The oldest messages that an observer is asked about together: up to `limit` tokens, one at the least.

    Messages of one time stay together, since notes count up to a time.
    """
    taken: list[Message] = []
    used = 0.0
    for message in messages:
        used += rough_tokens(message)
        if taken and used > limit and message["createdAt"] != taken[-1]["createdAt"]:
            break
        taken.append(message)
    return taken
