"""Accuracy of the library of `language-detector` on tests/quality/language.jsonl, and its cost in time and memory."""

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
    """A labelled text; `language` is None if it is in no language, `kind` is `short`, `long` or `none`."""

    language: str | None
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of one kind of text.

    Attributes:
        right: Texts whose best guess is the label.
        told: Texts whose confidence reaches the processor's default threshold, so that it reports their language.
        wrong: Texts among those that are reported wrongly.
    """

    texts: int
    right: int
    told: int
    wrong: int


def labelled() -> list[Text]:
    """The labelled set."""
    return [Text(**json.loads(line)) for line in SET.read_text(encoding="utf-8").splitlines()]


def score(texts: list[Text], found: list[Found], threshold: float) -> Score:
    """Compares the labels of texts with what was found."""
    pairs = list(zip(texts, found, strict=True))
    told = [(text, it) for text, it in pairs if it.code and it.confidence >= threshold]
    return Score(
        texts=len(texts),
        right=sum(text.language == it.code for text, it in pairs),
        told=len(told),
        wrong=sum(text.language != it.code for text, it in told),
    )


async def measure() -> tuple[list[Text], list[Found], dict[str, float]]:
    """Runs the whole set; also returns start-up seconds, microseconds per text, and megabytes used."""
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
    lines = [f"{len(texts)} texts in {len(languages)} languages; reported from confidence {threshold} on"]
    lines.append(f"{'':8}{'texts':>7}{'right':>7}{'accuracy':>10}{'reported':>10}{'wrong':>7}")
    for kind in ("short", "long", "none"):
        chosen = [at for at, text in enumerate(texts) if text.kind == kind]
        got = score([texts[at] for at in chosen], [found[at] for at in chosen], threshold)
        right = "" if kind == "none" else f"{got.right:>7}{got.right / got.texts:>10.3f}"
        lines.append(f"{kind:8}{got.texts:>7}{right:>17}{got.told:>10}{got.wrong:>7}")
    lines += [
        f"  {text.language} mistaken for {it.code} ({it.confidence:.2f}): {text.text}"
        for text, it in zip(texts, found, strict=True)
        if text.language and text.language != it.code
    ]
    lines.append(f"start {cost['start']:.2f} s, {cost['micros']:.0f} us per text, {cost['megabytes']:.0f} MB")
    return "\n".join(lines)


def main() -> int:
    """Prints the figures."""
    sys.stdout.write(report() + "\n")
    return 0
