"""Numbers of accounts and people that stand alone: cards, IBAN, US social security (R-PII-30, D-55)."""

import re
from typing import Final

from stdnum import iban, luhn

from procession_services.processors.core.pii.family import Cues, Finder, Rule, ShapeFinder
from procession_services.processors.core.pii.grammar import (
    DASHES,
    SPACES,
    Shape,
    chars,
    maybe,
    plain,
    repeat,
    seq,
)

_DIGIT = "[0-9]"
_SEPARATOR = maybe(chars(f"[{DASHES}\\s.]"))
_GAP = maybe(chars(f"[{DASHES}{SPACES}]"))
_TOUCHING = "[0-9A-Za-z]"
"""What must not stand next to a number; not `_`, with which Markdown emphasises."""
_BOUND = chars(_TOUCHING)


def digits(value: str) -> str:
    """Its ASCII digits."""
    return "".join(c for c in value if "0" <= c <= "9")


# --- payment cards ---------------------------------------------------------------------------


def _groups(*sizes: int) -> Shape:
    pieces: list[Shape] = []
    for size in sizes:
        pieces += [_SEPARATOR, chars(_DIGIT, size)] if pieces else [chars(_DIGIT, size)]
    return seq(*pieces)


_ISSUERS: Final = {
    13: re.compile("4"),
    14: re.compile("3[0689]"),
    15: re.compile("3[47]|1800|2131"),
    16: re.compile("4|5[0-8]|6|35|2[2-7]|9792"),
    19: re.compile("4|6"),
}
"""How a card's number begins, by its length."""


def _card(text: str, start: int, end: int) -> tuple[int, int] | None:
    """A known issuer and the check digit of Luhn; more than one digit."""
    number = digits(text[start:end])
    if not _ISSUERS[len(number)].match(number) or len(set(number)) == 1 or not luhn.is_valid(number):
        return None
    return start, end


_CARDS = [_groups(4, 4, 4, 4), _groups(4, 6, 5), _groups(4, 6, 4), chars(_DIGIT, 13), chars(_DIGIT, 19)]

# --- US social security ----------------------------------------------------------------------

_SSN = seq(chars(_DIGIT, 3), _GAP, chars(_DIGIT, 2), _GAP, chars(_DIGIT, 4))
_SSN_WORDS = Cues(
    {"ssn": ("ssn", "social security(?: number)?", "social sec", "my social", "tax ?payer id", "itin")}
)
_DASHED = re.compile(r"[0-9]{3}-[0-9]{2}-[0-9]{4}")


def _ssn(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Area 001 to 899 but 666, no group 00, no serial 0000; written without dashes only next to its name."""
    number = digits(text[start:end])
    if number[:3] in ("000", "666") or number[3:5] == "00" or number[5:] == "0000":
        return None
    told = _SSN_WORDS.near(text, start)
    if not told and (number[0] == "9" or not _DASHED.fullmatch(plain(text[start:end]))):
        return None
    return start, end


# --- IBAN ------------------------------------------------------------------------------------

_ALNUM = "[0-9A-Za-z]"
_GROUP = seq(_GAP, chars(_ALNUM, 4))
_IBAN = seq(
    chars("[A-Za-z]", 2),
    chars(_DIGIT, 2),
    repeat(_GROUP, 2, 7),
    maybe(seq(_GAP, chars(_ALNUM, 1, 3))),
)
_SHORTEST_IBAN: Final = 15


def _iban(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The longest prefix, by groups, of the right length for its country and with the right remainder of 97."""
    value = plain(text[start:end])
    while len(value) >= _SHORTEST_IBAN:
        if iban.is_valid(value, check_country=False):
            return start, start + len(value)
        value = value[: max(value.rfind(" "), value.rfind("-"), 0)]
    return None


FINDERS: Final[tuple[Finder, ...]] = (
    ShapeFinder(
        _DIGIT,
        [*(Rule("credit-card", shape, _card, _BOUND) for shape in _CARDS), Rule("ssn", _SSN, _ssn, _BOUND)],
        apart=_TOUCHING,
    ),
    ShapeFinder("[A-Za-z]", [Rule("iban", _IBAN, _iban, _BOUND)], apart=_TOUCHING, guard="[A-Za-z][0-9]{2}"),
)
