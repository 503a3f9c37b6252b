"""Unknown names, and what may have been meant."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

__all__ = ["nearest"]

_LONGEST: Final = 40
"""Letters that are compared: a request may bring a name of any length."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar to this one, as written or in lower case; None if none is similar."""
    names, begun = list(known), name[:_LONGEST]
    near = get_close_matches(begun, names, n=1) or get_close_matches(begun.lower(), names, n=1)
    return near[0] if near else None
