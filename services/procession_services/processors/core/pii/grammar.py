"""Shapes of text that know two things: what they match, and whether text that ends early may still become a match.

The second is what a stream needs (`open` in `procession.hold_back`): a shape is built from a few combinators, and each
carries two regular expressions, `full` for the whole and `begun` for every beginning of it. All counts are bounded, so
matching takes time linear in the text, and what is held back has a limit.
"""

import re
from dataclasses import dataclass
from functools import reduce
from typing import Final

SPACES: Final = " \u00a0\u2007\u2009\u202f"
"""Spaces that stand between the groups of a number, also those that do not break."""
DASHES: Final = "-\u2010\u2011\u2012\u2013\u2212"
"""What people and their editors write for a hyphen; the hyphen comes first, as a class of `re` wants it."""
_PLAIN: Final = str.maketrans(SPACES + DASHES, " " * len(SPACES) + "-" * len(DASHES))


def plain(value: str) -> str:
    """The text of the same length with ordinary spaces and hyphens."""
    return value.translate(_PLAIN)


@dataclass(frozen=True, slots=True)
class Shape:
    """`full` matches the whole shape, `begun` any beginning of it, the empty one and the whole included.

    `longest` is the length of its longest match in code points.
    """

    full: str
    begun: str
    longest: int


EMPTY = Shape("", "", 0)


def chars(one: str, least: int = 1, most: int | None = None) -> Shape:
    """`least` to `most` characters (by default exactly `least`) of a class in the syntax of `re`, such as `[0-9]`."""
    most = least if most is None else most
    return Shape(f"{one}{{{least},{most}}}", f"{one}{{0,{most}}}", most)


def text(literal: str, *, fold: bool = False) -> Shape:
    """Exactly this text; `fold` takes either case of its letters."""
    pieces = [f"[{c.lower()}{c.upper()}]" if fold and c.isalpha() else re.escape(c) for c in literal]
    return Shape(
        "".join(pieces), reduce(lambda rest, c: f"(?:{c}{rest})?", reversed(pieces), ""), len(literal)
    )


def seq(*shapes: Shape) -> Shape:
    """One after the other."""
    return reduce(_then, reversed(shapes), EMPTY)


def _then(rest: Shape, first: Shape) -> Shape:
    begun = f"(?:{first.full}{rest.begun}|{first.begun})" if rest.full else first.begun
    return Shape(first.full + rest.full, begun, first.longest + rest.longest)


def either(*shapes: Shape) -> Shape:
    """The first of these that matches."""
    return Shape(
        "(?:" + "|".join(s.full for s in shapes) + ")",
        "(?:" + "|".join(s.begun for s in shapes) + ")",
        max(s.longest for s in shapes),
    )


def words(*literals: str, fold: bool = False) -> Shape:
    """One of these texts."""
    return either(*(text(literal, fold=fold) for literal in literals))


def maybe(shape: Shape) -> Shape:
    """It, or nothing."""
    return Shape(f"(?:{shape.full})?", shape.begun, shape.longest)


def repeat(shape: Shape, least: int, most: int) -> Shape:
    """`least` to `most` times."""
    begun = f"(?:{shape.full}){{0,{most - 1}}}{shape.begun}"
    return Shape(f"(?:{shape.full}){{{least},{most}}}", f"(?:{begun})", shape.longest * most)
