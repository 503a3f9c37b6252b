"""Category scores that a model gives a text: their schema, the threshold, the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PROBABILITY: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": 1}
"""A number from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What a model says about a text: `pairs` of category and score, in its order, and why."""

    pairs: tuple[tuple[str, float], ...]
    reason: str = ""

    def reaching(self, threshold: float) -> list[str]:
        """The categories whose score is the threshold or more."""
        return [name for name, score in self.pairs if score >= threshold]

    def report(self, title: str, threshold: float, *, with_scores: bool) -> str:
        """One sentence after another: categories at the threshold, the reason, all scores (R-MOD-4, R-INJ-3)."""
        told = [f"{title}: {', '.join(self.reaching(threshold))}"]
        if self.reason:
            told.append(f"Reason: {self.reason}")
        if with_scores:
            told.append("Scores: " + ", ".join(f"{name}: {score:g}" for name, score in self.pairs))
        return ". ".join(told)


def scores_schema(field: str, name: str, categories: Sequence[str], *more: str) -> dict[str, Any]:
    """JSON Schema of `{field: [{name, score}] | null, "reason": string | null}` and of further texts or null.

    Only the given categories are allowed, so one that the model makes up is a failure (R-COM-20).
    """
    pair = {
        "type": "object",
        "properties": {name: {"type": "string", "enum": list(categories)}, "score": PROBABILITY},
        "required": [name, "score"],
    }
    texts = ("reason", *more)
    return {
        "type": "object",
        "properties": {
            field: {"type": ["array", "null"], "items": pair},
            **{text: {"type": ["string", "null"]} for text in texts},
        },
        "required": [field, *texts],
    }


def read_scores(answer: Any, field: str, name: str) -> Scores:
    """The scores in an answer that fits the schema; None, a failed call, has none."""
    if answer is None:
        return Scores(())
    pairs = tuple((each[name], float(each["score"])) for each in answer[field] or ())
    return Scores(pairs, (answer["reason"] or "").strip())
