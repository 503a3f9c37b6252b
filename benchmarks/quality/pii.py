"""Precision and recall of `pii-detector`'s local stage on tests/quality/pii.jsonl: no model, no network.

A labelled place is found if a hit of its type covers all of it; a hit is right if it covers such a place. Data that
only a model finds (names, addresses, dates of birth) is not labelled.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from procession_services.processors.core.pii.family import Hit
from procession_services.processors.core.pii.scanner import LOCAL_TYPES, LocalScanner

SET: Final = Path(__file__).parents[2] / "tests" / "quality" / "pii.jsonl"
VEIL: Final = "\u241f"
"""Splits the secrets in the file, so that secret scanners do not take them for real ones."""


_WIDTH: Final = 160


@dataclass(frozen=True, slots=True)
class Case:
    """A text and the places in it: `(type, start, end)` in code points."""

    language: str
    text: str
    places: tuple[tuple[str, int, int], ...]


@dataclass(slots=True)
class Score:
    """Counts for one type, or for all."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    @property
    def precision(self) -> float:
        """Share of hits that are right."""
        return self.right / max(1, self.right + self.wrong)

    @property
    def recall(self) -> float:
        """Share of places that are found."""
        return self.right / max(1, self.right + self.missed)


@dataclass(slots=True)
class Result:
    """Scores by type, the number of places that no hit of any type covers, and the errors to look at."""

    scores: dict[str, Score] = field(default_factory=dict)
    uncovered: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def total(self) -> Score:
        """All types."""
        return Score(
            sum(s.right for s in self.scores.values()),
            sum(s.wrong for s in self.scores.values()),
            sum(s.missed for s in self.scores.values()),
        )


def labelled() -> list[Case]:
    """The labelled set."""
    rows = (json.loads(line) for line in SET.read_text(encoding="utf-8").splitlines())
    return [
        Case(
            row["language"],
            row["text"].replace(VEIL, ""),
            tuple((kind, start, end) for kind, start, end in row["spans"]),
        )
        for row in rows
    ]


def evaluate(cases: Iterable[Case], find: Callable[[str], list[Hit]]) -> Result:
    """Scores a detector."""
    result = Result()
    for case in cases:
        hits = list(find(case.text))
        for kind, start, end in case.places:
            score = result.scores.setdefault(kind, Score())
            covering = [hit for hit in hits if hit.start <= start and end <= hit.end]
            own = next((hit for hit in covering if hit.type == kind), None)
            if own is not None:
                score.right += 1
                hits.remove(own)
                continue
            score.missed += 1
            result.uncovered += not covering
            result.errors.append(f"missed {kind} {case.text[start:end]!r} in {case.text!r}")
        for hit in hits:
            result.scores.setdefault(hit.type, Score()).wrong += 1
            result.errors.append(f"wrong  {hit.type} {case.text[hit.start : hit.end]!r} in {case.text!r}")
    return result


def report() -> str:
    """The figures as text."""
    cases = labelled()
    scanner = LocalScanner(LOCAL_TYPES)
    result = evaluate(cases, scanner.find)
    clean = sum(not case.places for case in cases)
    languages = Counter(case.language for case in cases)
    lines = [f"{len(cases)} texts in {len(languages)} languages, {clean} of them without personal data"]
    lines.append(f"{'':16}{'places':>8}{'right':>7}{'wrong':>7}{'missed':>8}{'precision':>11}{'recall':>8}")
    for kind, score in [*sorted(result.scores.items()), ("all", result.total)]:
        figures = f"{score.right + score.missed:>8}{score.right:>7}{score.wrong:>7}{score.missed:>8}"
        lines.append(f"{kind:16}{figures}{score.precision:>11.3f}{score.recall:>8.3f}")
    lines.append(f"places not covered by any hit: {result.uncovered}")
    lines += [f"  {error[:_WIDTH]}" for error in result.errors]
    size = sum(len(case.text) for case in cases)
    began = time.perf_counter()
    for case in cases:
        scanner.find(case.text)
    took = time.perf_counter() - began
    lines.append(f"{took / len(cases) * 1e6:.0f} us per text, {took / size * 1e9:.0f} us per kilobyte")
    return "\n".join(lines)


def main() -> int:
    """Prints the figures."""
    sys.stdout.write(report() + "\n")
    return 0
