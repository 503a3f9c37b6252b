"""National ids: the number of a person in a country, with its check digits where it has some (D-56).

A number whose form and check digits would fit many others counts only next to its name (`words`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from stdnum import verhoeff
from stdnum.ar import cuit
from stdnum.at import vnr
from stdnum.au import tfn
from stdnum.be import nn
from stdnum.bg import egn
from stdnum.br import cpf
from stdnum.ca import sin
from stdnum.ch import ssn as ahv
from stdnum.cl import rut
from stdnum.cn import ric
from stdnum.cz import rc
from stdnum.de import idnr
from stdnum.dk import cpr
from stdnum.ee import ik
from stdnum.es import dni, nie
from stdnum.fi import hetu
from stdnum.fr import nir
from stdnum.gb import nhs
from stdnum.gr import amka
from stdnum.hr import oib
from stdnum.ie import pps
from stdnum.il import idnr as teudat
from stdnum.in_ import pan
from stdnum.it import codicefiscale
from stdnum.kr import rrn
from stdnum.mx import curp
from stdnum.nl import bsn
from stdnum.no import fodselsnummer
from stdnum.pl import pesel
from stdnum.pt import nif
from stdnum.ro import cnp
from stdnum.se import personnummer
from stdnum.tr import tckimlik
from stdnum.za import idnr as south_african

from procession_services.processors.core.pii.contact import WORD
from procession_services.processors.core.pii.family import Cues, Finder, Rule, ShapeFinder
from procession_services.processors.core.pii.grammar import DASHES, SPACES, Shape, chars, maybe, plain, seq

_LITERALS: Final = {"0": "[0-9]", "A": "[A-Za-z]", "*": "[0-9A-Za-z]"}
_BETWEEN: Final = {"-": f"[{DASHES}{SPACES}]", "=": f"[{DASHES}]"}


def form(written: str) -> Shape:
    """A shape in short: `0` a digit, `A` a letter, `*` either, `-` a dash, space or nothing, `=` a dash or nothing."""
    pieces = []
    for sign, run in ((m.group()[0], len(m.group())) for m in re.finditer(r"(.)\1*", written)):
        if sign in _BETWEEN:
            pieces.append(maybe(chars(_BETWEEN[sign])))
        else:
            pieces.append(chars(_LITERALS.get(sign) or f"[{re.escape(sign)}]", run))
    return seq(*pieces)


@dataclass(frozen=True, slots=True)
class NationalId:
    """How a number is written, what it has to pass, and the words that it needs before it, if any."""

    forms: tuple[str, ...]
    valid: Callable[[str], bool]
    words: tuple[str, ...] = ()


def _aadhaar(value: str) -> bool:
    """Twelve digits that do not begin with 0 or 1, the last one by Verhoeff."""
    number = re.sub("[- ]", "", value)
    return number[0] not in "01" and number != number[::-1] and bool(verhoeff.is_valid(number))


def _pan(value: str) -> bool:
    """The Indian tax number of a person; companies have some, too."""
    return bool(pan.is_valid(value)) and value[3].upper() == "P"


_NINO = re.compile(r"(?!BG|GB|KN|NK|NT|TN|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z][0-9]{6}[A-D]")


def _nino(value: str) -> bool:
    """The British national insurance number has no check digit, but few beginnings."""
    return _NINO.fullmatch(value.replace(" ", "").replace("-", "").upper()) is not None


def _nric(value: str) -> bool:
    """The identity card of Singapore: a letter that follows from kind and weighted sum."""
    kind, number, letter = value[0].upper(), value[1:8], value[8].upper()
    total = sum(int(d) * w for d, w in zip(number, (2, 7, 6, 5, 4, 3, 2), strict=True)) + 4 * (kind in "TG")
    told = {"S": "JZIHGFEDCBA", "T": "JZIHGFEDCBA", "F": "XWUTRQPNMLK", "G": "XWUTRQPNMLK"}.get(kind)
    return bool(told) and told[total % 11] == letter  # type: ignore[index]  # told is a text there


def _snils(value: str) -> bool:
    """The Russian insurance number: a weighted sum of nine digits."""
    number = re.sub("[^0-9]", "", value)
    total = sum(int(d) * w for d, w in zip(number[:9], range(9, 0, -1), strict=True)) % 101 % 100
    return total == int(number[9:])


def _my_number(value: str) -> bool:
    """The Japanese personal number: twelve digits, the last one by weights."""
    number = re.sub("[- ]", "", value)
    weights = (6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2)
    rest = sum(int(d) * w for d, w in zip(number[:11], weights, strict=True)) % 11
    return int(number[11]) == (0 if rest <= 1 else 11 - rest)


def _any(value: str) -> bool:
    """No check digit: the words before it decide."""
    return len(set(value)) > 2  # noqa: PLR2004 - `000-000` is nobody's


KINDS: Final = (
    NationalId(("AAAAAA**A**A***A",), codicefiscale.is_valid),
    NationalId(("00000000=A",), dni.is_valid),
    NationalId(("A=0000000=A",), lambda value: nie.is_valid(value) or _nric_if(value)),
    NationalId(("000.000.000-00",), cpf.is_valid),
    NationalId(("00000000000",), cpf.is_valid, ("cpf",)),
    NationalId(("00000000000",), pesel.is_valid, (r"pesel\w*",)),
    NationalId(("0-00-00-0*-000-000-00",), nir.is_valid),
    NationalId(("AA-00-00-00-A",), _nino),
    NationalId(("000-000-0000",), nhs.is_valid, ("nhs(?: number| no)?",)),
    NationalId(("000000000", "0000.00.000"), bsn.is_valid, ("bsn", "burgerservicenummer", "sofinummer")),
    NationalId(("0000 0000 0000", "0000-0000-0000"), _aadhaar),
    NationalId(("000000000000",), _aadhaar, ("aadhaar", "aadhar", "uidai", "आधार")),
    NationalId(("AAAAA0000A",), _pan),
    NationalId(
        ("000000-0000", "00000000-0000"),
        personnummer.is_valid,
        (r"person\w*nummer", "personnr", "pnr", "ssn"),
    ),
    NationalId(("000000-000*", "000000+000*", "000000A000*"), hetu.is_valid),
    NationalId(("000000-0000",), cpr.is_valid, (r"cpr(?:-?(?:nr|nummer))?\.?", "personnummer")),
    NationalId(
        ("000000-00000",), fodselsnummer.is_valid, ("fødselsnummer", "fodselsnummer", "personnummer", "fnr")
    ),
    NationalId(("00.00.00-000.00",), nn.is_valid),
    NationalId(("756.0000.0000.00",), ahv.is_valid),
    NationalId(
        ("00-000-000-000",),
        idnr.is_valid,
        (r"steuer-?id\w*", "identifikationsnummer", "idnr", "steuernummer", "tin", "tax id"),
    ),
    NationalId(
        ("0000-000000",),
        vnr.is_valid,
        ("svnr", "sv-nummer", "sozialversicherungsnummer", "versicherungsnummer"),
    ),
    NationalId(("000-000-000",), nif.is_valid, ("nif", "contribuinte")),
    NationalId(("00000000000000000*",), ric.is_valid),
    NationalId(("000000-0000000",), rrn.is_valid),
    NationalId(("000000000000", "0000 0000 0000"), _my_number, ("my ?number", "マイナンバー", "個人番号")),
    NationalId(
        ("0000000000000",), south_african.is_valid, ("(?:sa |south african )?id(?: number| no)?", "rsa id")
    ),
    NationalId(("AAAA000000AAAAAA*0",), curp.is_valid),
    NationalId(("00.000.000-*", "0.000.000-*"), rut.is_valid),
    NationalId(("00000000-*", "0000000-*"), rut.is_valid, ("rut", "run")),
    NationalId(("00-00000000-0",), cuit.is_valid, ("cui[tl]",)),
    NationalId(("000-000-000",), sin.is_valid, ("sin", "social insurance(?: number)?", "nas")),
    NationalId(("000-000-000",), tfn.is_valid, ("tfn", "tax file(?: number)?")),
    NationalId(("00000000000",), tckimlik.is_valid, (r"t\.?c\.?", r"kimlik\w*", "tckn")),
    NationalId(("000000000",), teudat.is_valid, ("teudat zehut", "israeli id", r"ת\.ז\.?", "תעודת זהות")),
    NationalId(("0000000000000",), cnp.is_valid, ("cnp", "cod numeric personal")),
    NationalId(("000000/0000", "000000/000"), rc.is_valid),
    NationalId(("0000000000",), egn.is_valid, ("егн", "egn")),
    NationalId(("00000000000",), ik.is_valid, (r"isikukood\w*", r"asmens kod\w*")),
    NationalId(("00000000000",), oib.is_valid, ("oib",)),
    NationalId(("00000000000",), amka.is_valid, ("αμκα", "amka")),
    NationalId(("0000000A", "0000000AA"), pps.is_valid),
    NationalId(("000-000-000 00",), _snils, ("снилс", "snils")),
    NationalId(
        (
            "A0000000",
            "AA0000000",
            "000000000",
            "0000-000000",
            "00AA00000",
            "A00000000",
            "C*0000000",
            "C********",
        ),
        _any,
        (r"passport(?: number| no\.?)?", "passeport", r"reisepass\w*", "pasaporte", "passaporto", "паспорт"),
    ),
)


def _nric_if(value: str) -> bool:
    return value[0].upper() in "STFG" and "-" not in value and _nric(value)


_CUES = Cues({str(place): kind.words for place, kind in enumerate(KINDS)})


def _check(place: int, text: str, start: int, end: int) -> tuple[int, int] | None:
    kind = KINDS[place]
    if kind.words and str(place) not in _CUES.near(text, start):
        return None
    return (start, end) if kind.valid(plain(text[start:end])) else None


def _rules(*, letters: bool) -> list[Rule]:
    """The rules of the forms that begin with a letter, or with a digit."""
    return [
        Rule("national-id", form(written), partial(_check, place), chars(WORD))
        for place, kind in enumerate(KINDS)
        for written in kind.forms
        if (written[0] in "AC") == letters
    ]


FINDERS: Final[tuple[Finder, ...]] = (
    ShapeFinder("[0-9]", _rules(letters=False), apart=WORD),
    ShapeFinder("[A-Za-z]", _rules(letters=True), apart=WORD, guard="[0-9A-Za-z -]{0,5}[0-9]"),
)
