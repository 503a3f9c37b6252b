"""Finders: what each finds is decided by the text around it alone, so that a stream finds what the whole text holds."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Protocol

from procession_services.processors.core.pii.grammar import EMPTY, Shape, seq

CONTEXT: Final = 60
"""How many characters before a match a rule may look at."""
NEAR: Final = 40
"""How many characters before a match cues are looked for."""


@dataclass(frozen=True, slots=True)
class Hit:
    """Personal data at `text[start:end]` (code points), of a type, with the confidence of who found it.

    `cause` is where a finder began to look; by default the start.
    """

    start: int
    end: int
    type: str
    confidence: float = 1.0
    cause: int | None = None

    @property
    def origin(self) -> int:
        """The first position without which it would not be found again."""
        return self.start if self.cause is None else self.cause


class Finder(Protocol):
    """Finds the hits of some types.

    Both methods look at no more than `CONTEXT` characters before the position in hand, and take time linear in the
    text from `start` on.
    """

    types: frozenset[str]

    def find(self, text: str, start: int, stop: int) -> Iterator[Hit]:
        """What begins at `start` or later, before `stop`; every position is judged for itself, so hits may overlap."""

    def hot(self, text: str, start: int) -> int:
        """The smallest position from `start` on at which text yet to come may still begin or change a hit."""


Check = Callable[[str, int, int], tuple[int, int] | None]
"""Judges a candidate `text[start:end]`: returns the span of the hit in it, or None."""


def whole(_text: str, start: int, end: int) -> tuple[int, int]:
    """Takes every candidate as it is."""
    return start, end


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of hit: a shape, what must not follow it, and a check.

    `behind` is what must not follow; as far as it goes, a decision waits for more text.
    """

    type: str
    shape: Shape
    check: Check = whole
    behind: Shape = EMPTY
    full: "re.Pattern[str]" = field(init=False)

    def __post_init__(self) -> None:
        tail = f"(?!{self.behind.full})" if self.behind.full else ""
        object.__setattr__(self, "full", re.compile(self.shape.full + tail))

    @property
    def begun(self) -> str:
        """Matches the beginnings of the shape and of what must not follow."""
        return seq(self.shape, self.behind).begun


class ShapeFinder:
    """Rules whose hits begin at the same kind of place.

    Args:
        first: The class of characters that a hit may begin with, such as `[0-9]`.
        rules: What is tried there, each for itself.
        apart: The class of characters that must not stand before it.
        cue: What the text must hold for any hit at all; looked for first where it is given.
        guard: What must follow that first character in every hit; most places fail here, cheaply.
        opening: What every hit's first two characters match, to the same end.
        tight: No hit has a space or a line break in it.
    """

    def __init__(
        self,
        first: str,
        rules: list[Rule],
        *,
        apart: str = "",
        cue: str = "",
        guard: str = "",
        opening: str = "",
        tight: bool = False,
    ) -> None:
        self.types = frozenset(rule.type for rule in rules)
        behind = f"(?<!{apart}{'..' if opening else '.'})" if apart else ""
        ahead = f"(?={guard})" if guard else ""
        self._starts = re.compile(f"{opening or first}{behind}{ahead}", re.DOTALL)
        self._rules = [(rule.type, rule.full.match, rule.check) for rule in rules]
        self._quick = re.compile("|".join(rule.shape.full for rule in rules)).match
        self._cue, self.tight = cue, tight
        self.reach = max(rule.shape.longest + rule.behind.longest for rule in rules)
        alone = f"(?<!{apart})" if apart else ""
        self.begun = f"{alone}(?={first})(?:{'|'.join(rule.begun for rule in rules)})"
        self._tail = Tail([self])

    def find(self, text: str, start: int, stop: int) -> Iterator[Hit]:
        """See `Finder`."""
        if self._cue and text.find(self._cue, start) < 0:
            return
        quick = self._quick
        for found in self._starts.finditer(text, start):
            at = found.start()
            if at >= stop:
                return
            if quick(text, at) is None:
                continue
            for kind, match, check in self._rules:
                candidate = match(text, at)
                span = candidate and check(text, at, candidate.end())
                if span:
                    yield Hit(*span, kind, cause=at)

    def hot(self, text: str, start: int) -> int:
        """See `Finder`."""
        return self._tail.hot(text, start)


class Tail:
    """Where text that is still to come may begin or change a hit of some finders: one search for all of them.

    Args:
        finders: One or more; all tight or none.
    """

    def __init__(self, finders: Sequence[ShapeFinder]) -> None:
        self._tight = all(finder.tight for finder in finders)
        self._reach = max(finder.reach for finder in finders)
        self._begun = re.compile(rf"(?:{'|'.join(finder.begun for finder in finders)})\Z")

    def hot(self, text: str, start: int) -> int:
        """The smallest position from `start` on that may begin a hit when text follows."""
        first = max(start, len(text) - self._reach)
        if self._tight:
            first = max(first, text.rfind(" ", first) + 1, text.rfind("\n", first) + 1)
        found = self._begun.search(text, first)
        return found.start() if found else len(text)


def before(text: str, at: int, width: int = CONTEXT) -> str:
    """The text before a position, as far as a rule may look."""
    return text[max(0, at - min(width, CONTEXT)) : at]


class Cues:
    """Groups of words, and which groups have one shortly before a position.

    Args:
        groups: Words by group, as regular expressions; case does not matter, and none is part of a longer word.
    """

    def __init__(self, groups: Mapping[str, tuple[str, ...]]) -> None:
        owners: dict[str, set[str]] = {}
        for group, cues in groups.items():
            for cue in cues:
                owners.setdefault(cue, set()).add(group)
        self._owners = [frozenset(each) for each in owners.values()]
        choices = "|".join(f"({cue})" for cue in owners)
        self._find = re.compile(f"(?i)(?<![^\\W_])(?:{choices})(?![^\\W_])").finditer
        self._known = lru_cache(maxsize=256)(self._groups)

    def near(self, text: str, at: int, width: int = NEAR) -> frozenset[str]:
        """The groups with a word in the `width` characters before the position."""
        return self._known(before(text, at, width))

    def _groups(self, context: str) -> frozenset[str]:
        return frozenset().union(*(self._owners[(m.lastindex or 1) - 1] for m in self._find(context)))
