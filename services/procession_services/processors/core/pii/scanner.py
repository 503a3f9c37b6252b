"""Looks for personal data without a model: all finders over one text, their hits merged, in a stream or as a whole."""

from collections.abc import Iterable, Sequence
from typing import Final

from procession.scanners import RegexRule, RegexScanner
from procession.text_hold import Match, Scan
from procession_services.processors.core.pii import contact, national, numbers, phones, secrets
from procession_services.processors.core.pii.family import Finder, Hit, ShapeFinder, Tail

LOCAL_TYPES: Final = (
    "email",
    "phone",
    "credit-card",
    "ssn",
    "api-key",
    "ip-address",
    "url",
    "uuid",
    "crypto-wallet",
    "iban",
    "national-id",
    "jwt",
    "private-key",
    "password",
)
"""The types that are found without a model."""
_NEAR: Final = 256
"""Shapes that may be longer are looked for by themselves at the end of a text."""
CONTEXT_TYPES: Final = ("name", "address", "date-of-birth")
"""The types of the reference that only a model finds (R-PII-13)."""


def merged(hits: Iterable[Hit]) -> list[Hit]:
    """Overlapping hits as one: from the first to the last character, of the type of the longest (R-PII-7).

    Of two of the same length the first one counts; a region's confidence is the highest in it.
    """
    regions: list[Hit] = []
    longest = 0
    for hit in sorted(hits, key=lambda h: (h.start, -h.end)):
        size = hit.end - hit.start
        if not regions or hit.start >= regions[-1].end:
            regions.append(hit)
            longest = size
            continue
        last = regions[-1]
        kind = hit.type if size > longest else last.type
        longest = max(size, longest)
        confidence = max(last.confidence, hit.confidence)
        cause = min(last.origin, hit.origin)
        regions[-1] = Hit(last.start, max(last.end, hit.end), kind, confidence, cause)
    return regions


def settled_hits(found: Iterable[Hit], settled: int) -> tuple[list[Hit], int]:
    """The merged hits that end at or before a position, after moving it back to where no hit reaches over it."""
    hits = merged(found)
    while over := [hit for hit in hits if hit.end > settled]:
        hits = [hit for hit in hits if hit.end <= settled]
        settled = min(settled, *(hit.origin for hit in over))
    return hits, settled


class LocalScanner:
    """Finds some types in a text: the first stage, and the `Scanner` of the hold-back buffer.

    Args:
        types: Those to look for, of `LOCAL_TYPES`.
        regions: Countries whose national phone numbers count.
        custom: Patterns of further types.

    Raises:
        ValueError: A pattern cannot be used.
    """

    def __init__(
        self,
        types: Iterable[str],
        *,
        regions: tuple[str, ...] = phones.REGIONS,
        custom: Sequence[RegexRule] = (),
    ) -> None:
        self.types = frozenset(types)
        known = (*secrets.FINDERS, *contact.FINDERS, *numbers.FINDERS, *national.FINDERS)
        self._finders: list[Finder] = [finder for finder in known if finder.types & self.types]
        if "phone" in self.types:
            self._finders.append(phones.finder(regions))
        shapes = [finder for finder in self._finders if isinstance(finder, ShapeFinder)]
        groups = (
            [shape for shape in shapes if shape.tight],
            [shape for shape in shapes if not shape.tight and shape.reach <= _NEAR],
            [shape for shape in shapes if not shape.tight and shape.reach > _NEAR],
        )
        self._tails: list[Tail | Finder] = [Tail(group) for group in groups if group]
        self._tails += [finder for finder in self._finders if not isinstance(finder, ShapeFinder)]
        self._custom = RegexScanner(custom) if custom else None

    def find(self, text: str) -> list[Hit]:
        """All hits of a whole text, merged.

        Raises:
            ScanError: A custom pattern took too long.
        """
        return self.decided(text, 0, final=True)[0]

    def scan(self, text: str, start: int, *, final: bool) -> Scan:
        """See `procession.hold_back.Scanner`."""
        hits, settled = self.decided(text, start, final=final)
        return Scan([Match(hit.start, hit.end, hit.type) for hit in hits], settled)

    def decided(self, text: str, start: int, *, final: bool) -> tuple[list[Hit], int]:
        """The hits that no later text can change, merged, and the position up to which that is known."""
        settled = len(text)
        if not final:
            settled = min((tail.hot(text, start) for tail in self._tails), default=settled)
        found: list[Hit] = []
        if self._custom:
            scan = self._custom.scan(text, start, final=final)
            settled = min(settled, scan.open)
            found = [Hit(m.start, m.end, m.label) for m in scan.matches if m.start < settled]
        if start < settled:
            found += [
                hit for f in self._finders for hit in f.find(text, start, settled) if hit.type in self.types
            ]
        return settled_hits(found, settled)
