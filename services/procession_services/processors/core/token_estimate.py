"""How many tokens a text has, estimated without a vocabulary (builtins.md 1.7, R-TOK).

Lengths are UTF-16 units, as the estimate is defined; cuts are made between characters (D-27). Linear in the text.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

_SPACE: Final = "\t\n\u000b\u000c\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_MARKS: Final = r".,!?;(){}\[\]<>:/\\|@#$%^&*+=`~_\-"
_PIECE: Final = re.compile(f"[{_SPACE}]+|[{_MARKS}]+|[^{_SPACE}{_MARKS}]+")
_BLANK: Final = re.compile(f"[{_SPACE}]+")
_MARKED: Final = re.compile(f"[{_MARKS}]+")
_DIGITS: Final = re.compile("[0-9]+")
_IDEOGRAPHIC: Final = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\u3000-\u303f\uff00-\uffef\u30a0-\u30ff\u2e80-\u2eff\u31c0-\u31ef\u3200-\u32ff"
    "\u3300-\u33ff\uac00-\ud7af\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\ud7b0-\ud7ff]"
)
_DENSITIES: Final = (
    (re.compile("[äöüßÄÖÜ]"), 3.0),
    (re.compile("[éèêëàâîïôûùüÿçœæáíóúñÉÈÊËÀÂÎÏÔÛÙÜŸÇŒÆÁÍÓÚÑ]"), 3.0),
    (re.compile("[ąćęłńóśźżěščřžýůúďťňĄĆĘŁŃÓŚŹŻĚŠČŘŽÝŮÚĎŤŇ]"), 3.5),
)
"""Letters of a language and how many UTF-16 units of its words make a token; other words need `_PLAIN`."""
_PLAIN: Final = 6.0
_SHORT: Final = 3
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SCHEME: Final = re.compile("[a-zA-Z][a-zA-Z0-9+.-]*:")
_IMAGE_TOKENS: Final = 765
_REMOTE_TOKENS: Final = 258


def estimate(text: str) -> int:
    """Estimates the tokens of a text (R-TOK-1..3)."""
    pieces = Counter(_PIECE.findall(text))
    return sum(_cost(piece) * times for piece, times in pieces.items())


def first_tokens(text: str, limit: float) -> str:
    """Returns the beginning of a text that is worth `limit` tokens (R-TOK-4); surrogates in it become U+FFFD."""
    return _SURROGATE.sub("\ufffd", "".join(_beginning(text, limit)))


def media_tokens(data: Any, media_type: str | None) -> int:
    """Estimates the tokens of a file, given as base64, `data:` URI, address or bytes (R-TOK-6)."""
    if (media_type or "").startswith("image/"):
        return _IMAGE_TOKENS
    if isinstance(data, bytes | bytearray):
        size = len(data)
    elif isinstance(data, str) and (data.startswith("data:") or not _SCHEME.match(data)):
        encoded = data.partition(",")[2] if data.startswith("data:") else data
        size = len(encoded) * 3 // 4
    else:
        return _REMOTE_TOKENS
    return max(1, size // 4)


def _beginning(text: str, limit: float) -> Iterator[str]:
    spent = 0
    for match in _PIECE.finditer(text):
        if spent >= limit:
            return
        piece = match[0]
        cost = _cost(piece)
        if spent + cost > limit:
            yield _first_units(piece, math.ceil((limit - spent) / cost * _units(piece)))
            return
        yield piece
        spent += cost


def _cost(piece: str) -> int:
    """What one piece costs: the first rule that fits (R-TOK-3)."""
    if _BLANK.fullmatch(piece):
        return 0
    if _IDEOGRAPHIC.search(piece):
        return len(piece)
    if _DIGITS.fullmatch(piece):
        return 1
    length = _units(piece)
    if length <= _SHORT:
        return 1
    if _MARKED.fullmatch(piece):
        return (length + 1) // 2
    return math.ceil(length / next((d for letters, d in _DENSITIES if letters.search(piece)), _PLAIN))


def _units(text: str) -> int:
    """The length in UTF-16 units."""
    return len(text) if text.isascii() else sum(2 if char > "\uffff" else 1 for char in text)


def _first_units(text: str, units: int) -> str:
    """As many whole characters as fit into so many UTF-16 units."""
    for place, char in enumerate(text):
        units -= 2 if char > "\uffff" else 1
        if units < 0:
            return text[:place]
    return text
