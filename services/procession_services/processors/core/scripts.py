"""Scripts that put no space between words, and where a word ends beside them."""

import re
from typing import Final

__all__ = ["UNSPACED", "bounded"]

UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff"
)
"""Letters of scripts where a word is a few letters and nothing parts it from the next one; for a class of `re`."""

_PARTED: Final = rf"[^\W{UNSPACED}]"
_BEGINS: Final = re.compile(_PARTED)
_ENDS: Final = re.compile(rf"{_PARTED}\Z")


def bounded(value: str) -> str:
    """A pattern for the value where it is no part of a longer word.

    A letter of a script without spaces ends every word: names in such a script are found wherever they stand.
    """
    first = rf"(?<!{_PARTED})" if _BEGINS.match(value) else ""
    last = rf"(?!{_PARTED})" if _ENDS.search(value) else ""
    return first + re.escape(value) + last
