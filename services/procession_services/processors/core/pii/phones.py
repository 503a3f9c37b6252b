"""Phone numbers: international ones that exist, national ones by how they are written or what stands before them.

Which numbers exist is what `phonenumbers` knows; its patterns are joined to one regular expression for each country
code, so that a candidate costs microseconds, not a parse for each country (R-PII-30, D-55).
"""

import re
from collections.abc import Iterable
from functools import cache, partial
from typing import Final

from phonenumbers import COUNTRY_CODE_TO_REGION_CODE, PhoneMetadata

from procession_services.processors.core.pii.family import (
    NEAR,
    Check,
    Cues,
    Finder,
    Rule,
    ShapeFinder,
    before,
)
from procession_services.processors.core.pii.grammar import (
    DASHES,
    SPACES,
    chars,
    either,
    maybe,
    plain,
    repeat,
    seq,
    text,
)

REGIONS: Final = (
    "US",
    "GB",
    "FR",
    "DE",
    "ES",
    "IT",
    "NL",
    "PL",
    "PT",
    "BR",
    "MX",
    "IN",
    "AT",
    "CH",
    "BE",
    "CN",
    "JP",
)
"""Countries whose national numbers are looked for where the options name none."""

_DIGIT = "[0-9]"
_SEPARATOR = f"[{DASHES}{SPACES}.()/]"
_EXTENSION = seq(
    either(seq(maybe(text(" ")), text("x", fold=True)), seq(text(" ext", fold=True), maybe(text(".")))),
    maybe(text(" ")),
    chars(_DIGIT, 1, 6),
)
_PHONE = seq(
    chars("[+(]", 0, 2),
    repeat(seq(chars(_DIGIT), chars(_SEPARATOR, 0, 2)), 6, 16),
    chars(_DIGIT),
    maybe(_EXTENSION),
)
_SHORTEST: Final = 7
_TOLD: Final = (
    "tel", "tél", "telefon[ao]?", "unter", "teléfono", "telefone", "téléphone", "telephone",
    "telefonnummer", "telefoonnummer", "phones?", "mobile", "mobil", "mobiel", "móvil", "movil", "celular",
    "cellulare", "cell", "cellphone", "handy", "handynummer", "fax", "calls?", "called", "ring", "dial",
    "sms", "text", "whatsapp", "signal", "portable",
    "komórka", "reach", "reachable", "contact", "hotline", "anruf", "anrufen", "ruf", "rufen", "erreichbar",
    "appele[rz]?", r"llam[ae]\w*", r"chiam[ai]\w*", r"lig[au]\w*", "bel", "zadzwoń", "dzwoń", "тел",
    "телефон", "звоните",
)  # fmt: skip
"""Words for a phone, in the languages whose numbers are looked for."""
_OTHERWISE: Final = (
    "orders?", "invoice", "ticket", "case", "ref", "reference", "tracking", "isbn", "issn", "serial",
    "part", "sku", "policy", "account", "booking", "confirmation", "bestellung", "bestellnummer",
    "rechnung", "rechnungsnummer", "auftrag", "commande", "facture", "pedido", "factura", "ordine",
    "fattura", "zamówienie", "bestelling", "article", "artikel", "model", "id", "batch", "lot", "doi",
    "version", "patent", "parcel", "box", "(?:kunden|artikel|auftrags|vertrags|klant)nummer",
    "customer (?:number|no|id)",
)  # fmt: skip
"""Words for another number."""
_NUMBER: Final = (
    "(?:my|his|her|your|their) (?:new )?number",
    "numéro",
    "nummer",
    "numero",
    "número",
    "numer",
)
"""Words for a phone, unless another number is spoken of."""
_CUES = Cues({"phone": _TOLD, "number": _NUMBER, "other": _OTHERWISE})
_TOLD_EAST = re.compile("电话|電話|拨打|手机|携帯|전화|फ़ोन|फोन")
_NORTH = re.compile(
    r"(?![0-9]{3}\.[0-9]{7})(?:\+?[0-9]{1,3}[-. ])?(?:\([0-9]{3}\)[-. ]?|[0-9]{3}[-. ])"
    r"[0-9]{3}[-. ]?[0-9]{4}(?![-.]?[0-9])(?: ?(?:x|ext\.?) ?[0-9]{1,6})?"
)
"""Numbers of North America as the reference finds them, but with something between the groups.

Neither fractions (`122.4194155`) nor the beginnings of longer numbers (`123-4567890-1234567`).
"""
_PAIRS = re.compile(r"0[1-9]([ .-])[0-9]{2}(?:\1[0-9]{2}){3}(?!\1?[0-9])")
_TRUNK = re.compile(r"\(?0[1-9][0-9]{1,4}\)?[ /-]{1,3}[0-9][0-9 /-]{4,}")
_DATE = re.compile(
    r"(?:19|20)[0-9]{2}[-./ ](?:0[1-9]|1[0-2])[-./ ]|[0-3]?[0-9][-./ ][01]?[0-9][-./ ](?:19|20)[0-9]{2}"
)
_UNMISTAKABLE = re.compile(r"\+|\([0-9]{2,5}\)")
"""What a phone number begins with, and hardly any other one."""
_NUMBERS = re.compile(r".*[0-9]", re.DOTALL)
_FRACTION = re.compile(r"[0-9]\.\Z")
_NUMBER_BEFORE = re.compile(r"[0-9][ .-]\Z")
_EXTRA = re.compile(r"(?i) ?(?:x|ext).*")
_TRUNK_ZERO = re.compile(r"\(0\)")
_NOT_DIGIT = re.compile("[^0-9]")
_KINDS: Final = (
    "fixed_line", "mobile", "toll_free", "premium_rate", "shared_cost", "personal_number", "voip", "pager", "uan",
    "voicemail",
)  # fmt: skip


def _numbers(region: str) -> str:
    """What a country's numbers look like, without any prefix."""
    metadata = PhoneMetadata.metadata_for_region(region, None)
    kinds = (getattr(metadata, kind) for kind in _KINDS) if metadata else ()
    patterns = [kind.national_number_pattern for kind in kinds if kind and kind.national_number_pattern]
    return "|".join(f"(?:{pattern})" for pattern in patterns) or "(?!)"


@cache
def _of_code(code: int) -> "re.Pattern[str]":
    """The numbers behind a country code, with the national prefix that people write there too."""
    regions = COUNTRY_CODE_TO_REGION_CODE.get(code, ())
    return re.compile("|".join(f"0?(?:{_numbers(region)})" for region in regions) or "(?!)")


@cache
def _of_regions(regions: tuple[str, ...]) -> "re.Pattern[str]":
    """The numbers of some countries as they are dialled there."""
    choices = []
    for region in regions:
        metadata = PhoneMetadata.metadata_for_region(region, None)
        prefix = (metadata and metadata.national_prefix) or ""
        choices.append(f"(?:{prefix})?(?:{_numbers(region)})")
    return re.compile("|".join(choices) or "(?!)")


def _international(value: str) -> bool:
    """Whether a number with its country code exists; a `(0)` is dialled in some countries, as in Italy."""
    told = _EXTRA.sub("", value)
    numbers = {_NOT_DIGIT.sub("", each) for each in (_TRUNK_ZERO.sub("", told), told)}
    return any(
        int(number[:width]) in COUNTRY_CODE_TO_REGION_CODE
        and _of_code(int(number[:width])).fullmatch(number, width) is not None
        for number in numbers
        for width in (1, 2, 3)
    )


def _prefixes(text: str, start: int, end: int) -> Iterable[int]:
    """The ends of the candidate, and of what is left of it without its last groups."""
    yield end
    for at in range(end - 1, start + _SHORTEST, -1):
        if not text[at].isdigit() and text[at - 1].isdigit():
            yield at


def _phone(regions: tuple[str, ...], text: str, start: int, end: int) -> tuple[int, int] | None:
    """The number that a candidate begins with; a parenthesis may open before it, or be a part of it."""
    if _FRACTION.search(before(text, start, 2)):
        return None
    opened = text[start] == "("
    closed = opened and text.find(")", start, end) > 0
    number = _number(regions, text, start, end) if closed or not opened else None
    return _number(regions, text, start + 1, end) if number is None and opened else number


def _number(regions: tuple[str, ...], text: str, start: int, end: int) -> tuple[int, int] | None:
    near = _CUES.near(text, start)
    told = "phone" in near or near == {"number"} or _TOLD_EAST.search(before(text, start, 12)) is not None
    other = not told and not _UNMISTAKABLE.match(text, start) and _is_another(text, start)
    written = plain(text[start:end])
    if north := _NORTH.match(written):
        return None if other else (start, start + north.end())
    if text[start] == "+" or text.startswith("00", start):
        first = start + (1 if text[start] == "+" else 2)
        stops = (stop for stop in _prefixes(text, start, end) if _international(text[first:stop]))
    elif told or not (other or _DATE.match(written)):
        if not told and _NUMBER_BEFORE.search(plain(before(text, start, 2))):
            return None
        if not told and not (_PAIRS.match(written) or _TRUNK.match(written)):
            return None
        known = _of_regions(regions)
        stops = (
            stop
            for stop in _prefixes(text, start, end)
            if known.fullmatch(_NOT_DIGIT.sub("", _EXTRA.sub("", text[start:stop])))
        )
    else:
        return None
    stop = next(stops, None)
    return None if stop is None else (start, stop)


def _is_another(text: str, start: int) -> bool:
    """Whether a word for another number stands before it that has not got its number yet, as in `order 12 for`."""
    numbers = _NUMBERS.match(near := before(text, start, NEAR))
    return "other" in _CUES.near(text, start, len(near) - (numbers.end() if numbers else 0))


def finder(regions: tuple[str, ...]) -> Finder:
    """The finder of phone numbers; `regions` are the countries whose national numbers count."""
    check: Check = partial(_phone, regions)
    return ShapeFinder("[+(0-9]", [Rule("phone", _PHONE, check, chars(_DIGIT))], apart="[0-9A-Za-z+(]")
