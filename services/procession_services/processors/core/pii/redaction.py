"""What stands in the place of personal data: mask, hash, placeholder, or nothing (R-PII-9, R-PII-10)."""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Final

from procession_services.processors.core.pii.family import Hit

Replace = Callable[[str, str], str]
"""Makes of a type and a value what stands in its place."""

_LONGEST_MASK: Final = 8
_DIGIT = re.compile("[0-9]")
_HEX = re.compile("[0-9A-Fa-f]")
_SECRET: Final = frozenset({"password", "private-key", "jwt"})
_EDGE: Final = 4


def masked(kind: str, value: str) -> str:
    """The value with its form kept: what a person needs to recognise their own (R-PII-10)."""
    size = len(value)
    match kind:
        case "email":
            return _email(value)
        case "phone":
            return _all_but_last(value, "X")
        case "credit-card" | "ssn":
            return _all_but_last(value, "*")
        case "uuid":
            return _HEX.sub("*", value)
        case "crypto-wallet":
            return _edges(value, _EDGE, _EDGE) if size > 2 * _EDGE else "*" * size
        case "iban":
            return _edges(value, 2, _EDGE) if size > 2 + _EDGE else "*" * size
        case _ if kind in _SECRET:
            return "*" * min(size, _LONGEST_MASK)
        case _:
            return _edges(value, 1, 1) if size > 3 else "*" * size  # noqa: PLR2004 - R-PII-10


def _email(value: str) -> str:
    pieces = value.split("@")
    if len(pieces) != 2:  # noqa: PLR2004 - a user and a domain
        return "*" * min(len(value), _LONGEST_MASK)
    user, domain = pieces
    label, dot, rest = domain.partition(".")
    hidden = _edges(user, 1, 1) if len(user) > 2 else "***"  # noqa: PLR2004 - R-PII-10
    return f"{hidden}@{'*' * len(label)}.{rest}" if dot else f"{hidden}@***"


def _edges(value: str, first: int, last: int) -> str:
    return value[:first] + "*" * (len(value) - first - last) + value[-last:]


def _all_but_last(value: str, sign: str) -> str:
    return _DIGIT.sub(sign, value[:-_EDGE]) + value[-_EDGE:]


def replacer(method: str, *, keep_form: bool) -> Replace:
    """The function of a redaction method: `mask`, `hash`, `placeholder` or `remove`."""
    if method == "placeholder":
        return lambda kind, _value: f"[{kind.upper()}]"
    if method == "remove":
        return lambda _kind, _value: ""
    if method == "hash":
        return lambda _kind, value: f"[HASH:{digest(value)}]"
    if keep_form:
        return masked
    return lambda _kind, value: "*" * min(len(value), _LONGEST_MASK)


def digest(value: str) -> str:
    """The first eight hex digits of the SHA-256 of the UTF-8 text; a broken surrogate counts as what it is."""
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def redacted(text: str, hits: Sequence[Hit], replace: Replace) -> str:
    """The text with each hit replaced; hits are merged and sorted."""
    return redacted_parts([text], hits, replace)[0]


def redacted_parts(parts: Sequence[str], hits: Sequence[Hit], replace: Replace) -> list[str]:
    """Parts that were examined as one text, joined by spaces, with each hit replaced.

    A hit that spans several parts is replaced as a whole; else each part would show as much as may be seen of a whole
    value. A replacement that is as long as the hit is cut where the parts end; any other stands in the first part.
    """
    joined, begin = " ".join(parts), 0
    changed: list[str] = []
    whole = [(hit.start, joined[hit.start : hit.end], hit.type) for hit in hits]
    replaced = [(start, start + len(value), replace(kind, value)) for start, value, kind in whole]
    for part in parts:
        end, place = begin + len(part), begin
        out: list[str] = []
        for start, stop, new in replaced:
            first, last = max(start, place), min(stop, end)
            if first < last:
                cut = (
                    new[first - start : last - start] if len(new) == stop - start else new * (start >= begin)
                )
                out += [joined[place:first], cut]
                place = last
        changed.append("".join([*out, joined[place:end]]))
        begin = end + 1
    return changed
