"""`moderation.json`: messages, streams, and a model that fails."""

from typing import Any

from procession_services.processors.core.category_scores import scores_schema
from procession_services.processors.moderation import CATEGORIES, Moderation
from tests.vectors.adapters import detector_run as run

_CLEAN: dict[str, Any] = {"category_scores": [], "reason": None}


async def observe(vector: dict[str, Any]) -> Any:
    """Calls the hook with the vector's model."""
    return _told(vector, await run.play(_processor(vector), _model(vector), vector["input"]))


def _processor(vector: dict[str, Any], **more: Any) -> Moderation:
    return Moderation.build(run.options_of(vector["options"], **more))


def _model(vector: dict[str, Any]) -> Any:
    script = vector["input"]["detectorResult"]
    if not _streams(vector):
        return run.replies(script)
    return run.by_content(script, _objections(vector), _CLEAN)


def _streams(vector: dict[str, Any]) -> bool:
    return bool(vector["input"]["hook"] == "processOutputStream")


def _schema(vector: dict[str, Any]) -> dict[str, Any]:
    return scores_schema("category_scores", "category", vector["options"].get("categories") or CATEGORIES)


def _objections(vector: dict[str, Any]) -> list[run.Objection]:
    return run.objections(
        vector, vector["input"]["detectorResult"], "textsJudged", lambda answer: _outcome(vector, answer)
    )


def _outcome(vector: dict[str, Any], answer: Any) -> str:
    """What an answer does to a stream, empty where it is below the threshold."""
    options = _processor(vector).options
    if run.fails(answer, _schema(vector)):
        return "trip" if options.error_strategy == "strict" else "pass"
    scores = [each["score"] for each in answer["category_scores"] or ()]
    flagged = bool(scores) and max(scores) >= options.threshold
    return {"block": "trip", "filter": "drop", "warn": "pass"}[options.strategy] if flagged else ""


def _told(vector: dict[str, Any], played: run.Played) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if _streams(vector):
        told |= {"perChunk": played.entries, "textsJudged": played.texts}
    else:
        told |= {"detectorCalls": len(played.requests)}
        told |= {} if played.messages is None else {"messages": played.messages}
    if played.logs:
        level = "info" if vector["options"].get("strategy") == "filter" else "warn"
        told["logs"] = [{"level": level, "text": text} for text in played.logs]
    return told | {key: value for key in ("tripwire", "throws") if (value := getattr(played, key))}


def override(vector: dict[str, Any], observed: Any, _differences: list[str]) -> str | None:
    """D-1 for a failure that is left to the default, D-8 or D-14 for a stream."""
    script = vector["input"]["detectorResult"]
    answers = script if isinstance(script, list) else [script]
    broken = any(run.fails(answer, _schema(vector)) for answer in answers)
    if not _streams(vector):
        if not (broken and run.fails_open(vector) and observed.get("tripwire")):
            return None
        open_ = run.now(run.play(_processor(vector, errorStrategy="warn"), _model(vector), vector["input"]))
        return "D-1" if run.facts(_told(vector, open_)) == run.facts(vector["expected"]) else None
    if not run.stream_as_demanded(
        lambda: _processor(vector), lambda: _model(vector), vector["input"], observed, _objections(vector)
    ):
        return None
    if broken and run.fails_open(vector) and observed.get("tripwire"):
        return "D-1"
    return "D-14" if vector["options"].get("chunkWindow") == 1 else "D-8"
