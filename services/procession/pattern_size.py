"""How large a regular expression of somebody else becomes: the `regex` package writes out what is repeated.

Of `a{4000000000}` it would make as many elements, of 250 bytes each, and take the whole machine's memory.
"""

import re
from typing import Final

__all__ = ["written_out"]

_PIECE: Final = re.compile(
    r"\(\?#[^)]*\)"  # a comment
    r"|(?P<space>\s)"
    r"|\\[\s\S]"  # an escape
    r"|\[\^?\]?(?:\\[\s\S]|[^\]\\])*\]"  # a class
    r"|(?P<bracket>[()])"
    r"|\{(?P<least>\d+)(?:,\d*)?\}"
    r"|(?P<letter>[\s\S])"
)
_ENOUGH: Final = 10**12
_DIGITS: Final = 12
_VERBOSE: Final = re.compile(r"\(\?[a-zA-Z0-9]*x")


def written_out(pattern: str, *, verbose: bool = False) -> int:
    """How many elements a pattern has when each repetition is written out as often as it must come.

    Never too few, and at least a million million where there are more than that.

    Args:
        pattern: In the syntax of the `regex` package; it need not be right.
        verbose: Whether white space and comments in it mean nothing; a pattern may also say so itself.
    """
    pieces = list(_PIECE.finditer(pattern))
    if verbose or _VERBOSE.search(pattern):  # what a comment holds cannot be told from the rest
        product = len(pattern)
        for piece in pieces:
            product = min(product * max(1, _least(piece)), _ENOUGH)
        return product
    sizes, last = [0], 0
    for piece in pieces:
        if piece["bracket"] == "(":
            sizes.append(0)
            last = 0
        elif piece["bracket"]:
            last = sizes.pop() if len(sizes) > 1 else 0
            sizes[-1] += last
        elif piece["least"]:
            more = min(last * max(0, _least(piece) - 1), _ENOUGH)
            last += more
            sizes[-1] += more
        elif not piece[0].startswith("(?#"):
            last = max(last, 1) if piece["space"] else 1
            sizes[-1] += 1
    return sum(sizes)


def _least(piece: "re.Match[str]") -> int:
    told = piece["least"] or "1"
    return int(told) if len(told) <= _DIGITS else _ENOUGH
