"""Accuracy of `language-detector`'s library on tests/quality/language.jsonl, with its cost in time and memory."""

import asyncio
import json
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from procession_services.processors import language_library
from procession_services.processors.core.languages import Found
from procession_services.processors.language_detector import LanguageDetectorOptions

SET: Final = Path(__file__).parents[2] / "tests" / "quality" / "language.jsonl"


@dataclass(frozen=True, slots=True)
class Text:
    """A labelled text; `language` is None where it is in none, `kind` is `short`, `long` or `none`."""

    language: str | None
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Score:
    """How one kind of text came out.

    Attributes:
        right: The best guess is the label.
        told: Texts that are sure enough to be told, at the processor's default threshold.
        wrong: Of those, the ones told wrongly.
    """

    texts: int
    right: int
    told: int
    wrong: int


def labelled() -> list[Text]:
    """The labelled set."""
    return [Text(**json.loads(line)) for line in SET.read_text(encoding="utf-8").splitlines()]


def score(texts: list[Text], found: list[Found], threshold: float) -> Score:
    """Counts."""
    pairs = list(zip(texts, found, strict=True))
    told = [(text, it) for text, it in pairs if it.code and it.confidence >= threshold]
    return Score(
        texts=len(texts),
        right=sum(text.language == it.code for text, it in pairs),
        told=len(told),
        wrong=sum(text.language != it.code for text, it in told),
    )


async def measure() -> tuple[list[Text], list[Found], dict[str, float]]:
    """Detects the whole set; with the time to start in seconds, microseconds a text, and megabytes taken."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    await language_library.identify("warm")
    start = time.perf_counter() - began
    texts = labelled()
    began = time.perf_counter()
    found = [await language_library.identify(text.text) for text in texts]
    each = (time.perf_counter() - began) / len(texts) * 1e6
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return texts, found, {"start": start, "micros": each, "megabytes": memory}


def report() -> str:
    """The figures as text."""
    texts, found, cost = asyncio.run(measure())
    threshold = LanguageDetectorOptions().threshold
    languages = Counter(text.language for text in texts if text.language)
    lines = [f"{len(texts)} texts in {len(languages)} languages; told at confidence {threshold}"]
    lines.append(f"{'':8}{'texts':>7}{'right':>7}{'accuracy':>10}{'told':>7}{'wrong':>7}")
    for kind in ("short", "long", "none"):
        chosen = [at for at, text in enumerate(texts) if text.kind == kind]
        got = score([texts[at] for at in chosen], [found[at] for at in chosen], threshold)
        right = "" if kind == "none" else f"{got.right:>7}{got.right / got.texts:>10.3f}"
        lines.append(f"{kind:8}{got.texts:>7}{right:>17}{got.told:>7}{got.wrong:>7}")
    lines += [
        f"  {text.language} taken for {it.code} ({it.confidence:.2f}): {text.text}"
        for text, it in zip(texts, found, strict=True)
        if text.language and text.language != it.code
    ]
    lines.append(f"start {cost['start']:.2f} s, {cost['micros']:.0f} us a text, {cost['megabytes']:.0f} MB")
    return "\n".join(lines)


def main() -> int:
    """Prints the figures."""
    sys.stdout.write(report() + "\n")
    return 0
