"""What both stages say about a text: the model's question and answer, what is flagged, and where it stands."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from procession_services.processors.core.category_scores import PROBABILITY
from procession_services.processors.core.pii.family import Hit
from procession_services.processors.core.pii.scanner import CONTEXT_TYPES, LOCAL_TYPES, merged
from procession_services.processors.core.scripts import bounded
from procession_services.processors.core.spans import occurrences

OTHER: Final = "pii"
"""The type of what a model calls by a name that nobody configured: it may hold what it found."""

PROMPT = """\
You protect privacy. The types of personal data to look for are:
{types}

List in `categories` each type that the text holds, with a score from 0 to 1, and in `detections` every place: the \
type, the value exactly as it is written, your confidence from 0 to 1, and the positions of its first character and \
of the one behind its last, counted from 0 in characters of the text. Both lists are empty when there is none. What is \
masked already, such as `[EMAIL]`, `<NAME_0a1b2c3d>` or rows of asterisks, is no personal data. Invented examples, \
public places, products and companies are none either."""

PROMPT_REDACT = """
Give in `redacted_content` the text with every value replaced, or null."""


def pii_schema(types: Sequence[str], *, rewrites: bool) -> dict[str, Any]:
    """JSON Schema of the answer (R-PII-2); `rewrites` asks for the redacted text too."""
    category = {
        "type": "object",
        "properties": {"type": {"type": "string", "enum": list(types)}, "score": PROBABILITY},
        "required": ["type", "score"],
    }
    detection: dict[str, Any] = {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "value": {"type": "string"},
            "confidence": PROBABILITY,
            "start": {"type": "number"},
            "end": {"type": "number"},
        },
        "required": ["type", "value", "confidence", "start", "end"],
    }
    properties: dict[str, Any] = {
        "categories": {"type": ["array", "null"], "items": category},
        "detections": {"type": ["array", "null"], "items": detection},
    }
    if rewrites:
        detection["properties"]["redacted_value"] = {"type": ["string", "null"]}
        properties["redacted_content"] = {"type": ["string", "null"]}
    return {"type": "object", "properties": properties, "required": ["categories", "detections"]}


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found in a text.

    Attributes:
        hits: Places at or above the threshold, merged.
        types: The types that are flagged, categories first (R-PII-4).
        lost: Flagged types without a place (D-3).
        rewritten: The model's own redaction, where it may be used.
        result: Categories and detections of both stages, as `on_detection` hears them.
    """

    hits: list[Hit]
    types: list[str]
    lost: list[str]
    rewritten: str | None
    result: dict[str, Any]


def judged(
    text: str,
    local: Sequence[Hit],
    answer: dict[str, Any] | None,
    *,
    threshold: float,
    known: Iterable[str],
    rewrites: bool,
) -> Findings:
    """Joins what was found locally (confidence 1, R-PII-14) with the model's answer (D-3, D-4, D-5, D-55).

    Args:
        text: What was examined.
        local: Hits of the first stage.
        answer: The model's, fit for `pii_schema`; None where there was no call or it failed.
        threshold: Confidence or score from which on something counts.
        known: The configured types; a detection of another type may be the place of any category.
        rewrites: Whether the model's own redaction counts.
    """
    said = answer or {}
    categories: list[dict[str, Any]] = list(said.get("categories") or ())
    detections: list[dict[str, Any]] = list(said.get("detections") or ())
    placed: list[Hit] = list(local)
    lost: list[str] = []
    reported: set[tuple[int, int]] = set()
    names = {*known, *LOCAL_TYPES, *CONTEXT_TYPES}
    for detection in detections:
        kind = detection["type"] if detection["type"] in names else OTHER
        places = _places(text, detection, kind)
        reported.update((hit.start, hit.end) for hit in places)
        if detection["confidence"] >= threshold:
            placed += places
            lost += [] if places else [kind]
    scored = [each["type"] for each in categories if each["score"] >= threshold]
    found = {hit.type for hit in placed}
    if not found - set(known):
        lost += [kind for kind in scored if kind not in found]
    own = [hit for hit in local if (hit.start, hit.end) not in reported]
    named = {each["type"] for each in categories}
    result = {
        "categories": [
            *categories,
            *(
                {"type": kind, "score": 1.0}
                for kind in dict.fromkeys(hit.type for hit in own)
                if kind not in named
            ),
        ],
        "detections": [*detections, *(_told(text, hit) for hit in own)],
    }
    types = list(dict.fromkeys([*scored, *(hit.type for hit in placed), *lost]))
    hits = merged(placed)
    rewritten = _usable(said.get("redacted_content"), text, hits) if rewrites else None
    return Findings(hits, types, [] if rewritten else lost, rewritten, result)


def _told(text: str, hit: Hit) -> dict[str, Any]:
    return {
        "type": hit.type,
        "value": text[hit.start : hit.end],
        "confidence": hit.confidence,
        "start": hit.start,
        "end": hit.end,
    }


def _places(text: str, detection: dict[str, Any], kind: str) -> list[Hit]:
    """Where a detection stands: wherever its value does, else at the position that is reported, if any (D-57)."""
    value, confidence = detection["value"], detection["confidence"]
    start, end = max(0, int(detection["start"])), min(len(text), int(detection["end"]))
    places = set(occurrences(text, value, bounded))
    if text[start:end] == value or not places:
        places |= {(start, end)} if text[start:end].strip() else set()
    return [Hit(*place, kind, confidence) for place in sorted(places)]


def _usable(rewritten: str | None, text: str, hits: Sequence[Hit]) -> str | None:
    """The model's redaction, unless something flagged still stands in it (R-PII-6, D-58)."""
    if not rewritten or not rewritten.strip() or rewritten == text:
        return None
    left = any(text[hit.start : hit.end] in rewritten for hit in hits)
    return None if left else rewritten
