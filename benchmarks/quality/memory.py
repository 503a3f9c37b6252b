"""recall@4 of semantic recall's embedders on tests/quality/memory.jsonl: all conversations are one resource."""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from procession_services.memory.embedders import LexicalEmbedder
from procession_services.memory.recall import Embedder
from procession_services.memory.stores.onnx import OnnxEmbedder, missing_weights
from procession_services.runtime.settings import Settings

SET: Final = Path(__file__).parents[2] / "tests" / "quality" / "memory.jsonl"
TOP: Final = 4
"""Hits of one search, the default of semantic recall."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the ids of the messages that answer it, and whether those share its words or only its meaning."""

    text: str
    relevant: list[str]
    kind: str


@dataclass(frozen=True, slots=True)
class Score:
    """recall@4 by kind of question: the share of relevant messages among the four nearest, on average."""

    words: float
    meaning: float
    all: float
    millis: float


def labelled() -> tuple[dict[str, str], list[Question]]:
    """The texts of all messages by id, and all questions."""
    texts: dict[str, str] = {}
    questions: list[Question] = []
    for line in SET.read_text(encoding="utf-8").splitlines():
        told: dict[str, Any] = json.loads(line)
        texts |= {message["id"]: message["text"] for message in told["messages"]}
        questions += [Question(**question) for question in told["questions"]]
    return texts, questions


async def measure(embedder: Embedder) -> Score:
    """Embeds the set and searches it."""
    texts, questions = labelled()
    start = time.perf_counter()
    vectors = dict(zip(texts, await embedder.embed(list(texts.values()), tenant="quality"), strict=True))
    asked = await embedder.embed([question.text for question in questions], tenant="quality")
    millis = (time.perf_counter() - start) * 1000 / (len(texts) + len(questions))
    found: dict[str, list[float]] = {"words": [], "meaning": []}
    for question, vector in zip(questions, asked, strict=True):
        nearest = sorted(vectors, key=lambda each: -_similarity(vector, vectors[each]))[:TOP]
        found[question.kind].append(len({*nearest} & {*question.relevant}) / len(question.relevant))
    return Score(
        _mean(found["words"]), _mean(found["meaning"]), _mean([*found["words"], *found["meaning"]]), millis
    )


def _similarity(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main() -> int:
    """Prints a row for each local embedder that is available."""
    texts, questions = labelled()
    sys.stdout.write(f"{len(texts)} messages, {len(questions)} questions\n")
    sys.stdout.write("embedder                   same words  same meaning  all   ms/text\n")
    embedders: list[Embedder] = [LexicalEmbedder()]
    weights = Settings.load().onnx_path
    if not missing_weights(weights):
        embedders.append(OnnxEmbedder(weights))
    for embedder in embedders:
        score = asyncio.run(measure(embedder))
        row = f"{score.words:10.2f}  {score.meaning:12.2f}  {score.all:4.2f}  {score.millis:7.2f}"
        sys.stdout.write(f"{embedder.id:25}  {row}\n")
    if missing_weights(weights):
        sys.stdout.write(
            "onnx: its weights are not on this machine; PROCESSION_ONNX_PATH names their directory\n"
        )
    return 0
