"""The text of one block, held back until it is decided: what `procession.hold_back` is built on."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from procession.errors import ProcessionError

_GROWTH = 8  # a hold is scanned again when an eighth of it is new,
_SMALL = 256  # or whenever it is as short as this


@dataclass(frozen=True, slots=True)
class Match:
    """A place that was found: `start` to `end` in code points, who found it, and what a scanner wants to add.

    Scanners count from the beginning of the text they are given. A `rewrite` gets positions from the beginning of the
    text block, the block's id in `text_id`, and a dict in `memory` where it may keep JSON values as long as the block
    lasts.
    """

    start: int
    end: int
    label: str
    data: Any = None
    text_id: str = ""
    memory: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scanner found.

    Attributes:
        matches: Sorted by `start`, not overlapping.
        open: The smallest position from which on later text may still change the result; the text's length where none
            may. Matches that reach behind it are provisional.
    """

    matches: list[Match]
    open: int


class ScanError(ProcessionError):
    """A text could not be scanned, for example within the time allowed."""


class HoldOverflowError(ScanError):
    """More text is undecided than may be held."""


class Scanner(Protocol):
    """Finds places in a text; keeps nothing between calls."""

    def scan(self, text: str, start: int, *, final: bool) -> Scan:
        """Finds the matches that begin at or after `start`.

        `text[:start]` has been released and is context, for look-behind and word boundaries; its own beginning may be
        cut off. `final` says that nothing follows: everything is decided.

        Raises:
            ScanError: The text could not be scanned.
        """


Piece = tuple[str, Match | None]
"""Released text and the match that it is, in the order of the text."""

Rewrite = Callable[[Match, str], str]
"""Makes of a match and its text what the client gets; called once for each match, in order."""


class TextHold:
    """The buffer of one text block.

    `state` is its memory, a dict of JSON values; an empty one begins a block. `context` is how many characters of the
    released text the scanner still sees.
    """

    def __init__(self, state: dict[str, Any], scanner: Scanner, *, limit: int, context: int = 64) -> None:
        if limit < 1:
            raise ValueError(f"limit is {limit}; it must be at least 1")
        self._state = state
        self._scanner = scanner
        self._limit = limit
        self._context = context
        self._stride = max(limit // 4, 1)
        if not state:
            state.update(context="", held="", fresh="", at=0)

    @property
    def released(self) -> int:
        """Characters that were released."""
        return cast("int", self._state["at"])

    @property
    def held(self) -> int:
        """Characters that are held."""
        return len(self._state["held"]) + len(self._state["fresh"])

    def feed(self, text: str) -> list[Piece]:
        """Takes the next text of the block and returns what became certain.

        Raises:
            HoldOverflowError: More than `limit` characters are undecided.
            ScanError: The scanner failed.
        """
        state, pieces, place = self._state, list[Piece](), 0
        end = self.released + self.held
        while place < len(text):
            step = min(self._stride - end % self._stride, len(text) - place)
            state["fresh"] += text[place : place + step]
            place, end = place + step, end + step
            check = end % self._stride == 0
            if check or len(state["fresh"]) * _GROWTH + _SMALL >= len(state["held"]):
                pieces += self._release(final=False)
            if check and len(state["held"]) > self._limit:
                raise HoldOverflowError(
                    f"more than {self._limit} characters may still belong to a match; raise the limit, or use "
                    "patterns that match text of limited length"
                )
        return pieces

    def flush(self) -> list[Piece]:
        """Returns what is held: the text ends here. Text fed afterwards still has what came before as context.

        Raises:
            ScanError: The scanner failed.
        """
        return self._release(final=True)

    def give_up(self) -> str:
        """Returns what is held as it is, unscanned."""
        state = self._state
        text: str = state["held"] + state["fresh"]
        seen = state["context"] + text
        state.update(
            context=seen[max(len(seen) - self._context, 0) :],
            held="",
            fresh="",
            at=state["at"] + len(text),
        )
        return text

    def _release(self, *, final: bool) -> list[Piece]:
        state = self._state
        start = len(state["context"])
        text: str = state["context"] + state["held"] + state["fresh"]
        scan = self._scanner.scan(text, start, final=final)
        cut = len(text) if final else min(max(scan.open, start), len(text))
        pieces: list[Piece] = []
        place, shift = start, state["at"] - start
        for match in scan.matches:
            if match.start >= cut and not final:
                break
            if match.end > cut:
                cut = match.start
                break
            if match.start > place:
                pieces.append((text[place : match.start], None))
            moved = replace(match, start=match.start + shift, end=match.end + shift)
            pieces.append((text[match.start : match.end], moved))
            place = match.end
        if place < cut:
            pieces.append((text[place:cut], None))
        state.update(
            context=text[max(cut - self._context, 0) : cut], held=text[cut:], fresh="", at=cut + shift
        )
        return pieces
