r"""Regular expressions of JavaScript in the syntax of the `regex` package, so that configurations carry over.

Not the same: positions are code points (D-27), so `.` matches a character outside the BMP once; and in a pattern that
names characters outside ASCII, flag `i` takes letters for the same that JavaScript so takes with flag `u` only.
"""

import re
from dataclasses import dataclass

import regex

_SPACE = r" \xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff\u2000-\u200a\t-\r"
_NO_SPACE = (
    r"\x00-\x08\x0e-\x1f!-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff"
    r"\u3001-\ufefe\uff00-\U0010ffff"
)
_SETS = {
    "d": "0-9",
    "D": r"\x00-/:-\U0010ffff",
    "w": "_A-Za-z0-9",
    "W": r"`\x00-/:-@\[-\^{-\U0010ffff",
    "s": _SPACE,
    "S": _NO_SPACE,
}
"""What stands in a class for an escape. Each ends with a range, so that a hyphen behind it is one, as in `[\\w-.]`."""
_NO_LETTER = r"`\x00-/:-@\[-\^{-\u012f\u0132-\u017e\u0180-\u2129\u212b-\U0010ffff"
"""`W` where case does not matter: without what is a letter of ASCII then (dotted and dotless i, long s, Kelvin)."""
_BREAK = r"\n\r\u2028\u2029"
_TOKEN = re.compile(
    r"\\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|\\u\{(?P<code>[0-9a-fA-F]+)\}"
    r"|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\c(?P<control>[A-Za-z])|\\k<(?P<back>\w+)>|\\[pP]\{[^}]*\}"
    r"|\\(?P<number>[1-9]\d?)"
    r"|(?P<hyphen>-(?=\\[dDsSwW]))"
    r"|\\(?P<escaped>[\s\S])"
    r"|(?P<group>\(\?<(?![=!]))"
    r"|(?P<empty>\[\^?\])"
    r"|(?P<quantifier>\{\d+(?:,\d*)?\})"
    r"|(?P<char>[\s\S])"
)
_PLAIN = frozenset("fnrtv")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]|\\[pPu]|\\x[89a-fA-F]")
_FLAGS = {"i": regex.IGNORECASE, "s": 0, "m": 0, "g": 0, "u": 0, "v": 0, "d": 0, "y": 0}


@dataclass(frozen=True, slots=True)
class Translated:
    """A pattern for the `regex` package, its flags, and whether all matches count or only the first."""

    pattern: str
    flags: int
    all_matches: bool


def translate(source: str, flags: str = "g") -> Translated:
    """Translates `/source/flags`.

    Raises:
        ValueError: A flag is unknown, or cannot work here (`gy`), or a class holds another one (`v`).
    """
    if {"g", "y"} <= set(flags):
        raise ValueError(
            "flags 'g' and 'y' together (adjacent matches only) are not supported; use one of them"
        )
    if unknown := "".join(sorted(set(flags) - set(_FLAGS))):
        raise ValueError(f"unknown flags {unknown!r}; the flags are d, g, i, m, s, u, v and y")
    translator = _Translator(flags)
    pattern = _TOKEN.sub(translator.token, source)
    if "y" in flags:
        pattern = rf"\A(?:{pattern})"
    found = regex.IGNORECASE if "i" in flags else 0
    if not _BEYOND_ASCII.search(source):  # with flag `i`, "k" is no Kelvin sign
        found |= regex.ASCII
    return Translated(pattern, found, "g" in flags)


class _Translator:
    """Walks through the tokens of a pattern; knows whether it is in a class."""

    def __init__(self, flags: str) -> None:
        self._in_class = False
        self._nests = "v" in flags
        self._sets = _SETS | ({"W": _NO_LETTER} if "i" in flags else {})
        self._outside = {
            "^": rf"(?<![^{_BREAK}])" if "m" in flags else r"\A",
            "$": rf"(?=[{_BREAK}]|\Z)" if "m" in flags else r"\Z",
            ".": r"[\s\S]" if "s" in flags else f"[^{_BREAK}]",
            "{": r"\{",
            "}": r"\}",
        }

    def token(self, found: re.Match[str]) -> str:
        """What stands for a token."""
        text = found[0]
        if found["high"]:
            high, low = int(found["high"], 16) - 0xD800, int(found["low"], 16) - 0xDC00
            return self._char(chr(0x10000 + (high << 10) + low))
        if found["code"]:
            return self._char(chr(int(found["code"], 16)))
        if found["control"]:
            return f"\\x{ord(found['control']) % 32:02x}"
        if found["back"]:
            return _again(found["back"], f"(?P={found['back']})")
        if found["number"] and not self._in_class:
            return _again(found["number"], text)
        if found["hyphen"]:
            return r"\-"
        if found["escaped"]:
            return self._escaped(found["escaped"])
        if found["empty"]:
            return self._empty(text)
        if found["group"] and not self._in_class:
            return "(?P<"
        return self._char(text) if found["char"] else text

    def _empty(self, text: str) -> str:
        """A class of nothing, which matches nothing, or all; in a class these are characters."""
        if self._in_class:
            return "".join(map(self._char, text))
        return "(?!)" if text == "[]" else r"[\s\S]"

    def _escaped(self, char: str) -> str:
        if char in self._sets:
            return (
                self._sets[char] if self._in_class else f"[{'^' * char.isupper()}{self._sets[char.lower()]}]"
            )
        if char in "bB":
            return rf"\{char}" if self._in_class else rf"(?a:\{char})"
        if char == "0":
            return r"\x00"
        if char in _PLAIN:
            return f"\\{char}"
        return re.escape(char) if char.isascii() else self._char(char)

    def _char(self, char: str) -> str:
        """A character as it stands in the pattern."""
        if self._in_class:
            if self._nests and char == "[":
                raise ValueError("a class within a class (flag 'v') is not supported; write one class")
            self._in_class = char != "]"
            return rf"\{char}" if char in "[&~|" else char
        self._in_class = char == "["
        return self._outside.get(char, char)


def _again(group: str, reference: str) -> str:
    """What a group has matched; nothing where it has not: an optional quote, and the same behind the value."""
    return f"(?({group}){reference}|)"
