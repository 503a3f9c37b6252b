"""`prompt-injection-detector.json`: strategies on messages, the listener, and a model that fails."""

from typing import Any

from procession_services.processors.core.category_scores import scores_schema
from procession_services.processors.prompt_injection_detector import (
    DETECTION_TYPES,
    InjectionDetection,
    PromptInjectionDetector,
)
from tests.vectors.adapters import detector_run as run


class _Listening(PromptInjectionDetector):
    """Keeps what its listener hears; raises where the vector's does."""

    raises = False

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.events: list[dict[str, Any]] = []

    async def on_detection(self, detection: InjectionDetection) -> None:
        self.events.append(
            {
                "detectionResult": detection.result,
                "input": detection.text,
                "flagged": detection.flagged,
                "strategyApplied": detection.strategy_applied,
            }
        )
        if self.raises:
            raise RuntimeError("listener")


async def observe(vector: dict[str, Any]) -> Any:
    """Calls the hook with the vector's model."""
    return await _observed(vector)


async def _observed(vector: dict[str, Any], **more: Any) -> dict[str, Any]:
    processor = _Listening.build(run.options_of(vector["options"], **more))
    processor.raises = run.raises(vector["options"])
    played = await run.play(processor, run.replies(vector["input"]["detectorResult"]), vector["input"])
    told: dict[str, Any] = {"detectorCalls": len(played.requests)}
    if played.messages is not None:
        told["messages"] = played.messages
    if played.requests:
        told["schemaFields"] = list((played.requests[0].schema or {})["properties"])
    if any(key.startswith("onDetection") for key in vector["options"]):
        told["events"] = processor.events
    if played.logs:
        told["logs"] = [{"level": _level(text), "text": text} for text in played.logs]
    return told | {key: value for key in ("tripwire", "throws") if (value := getattr(played, key))}


def _level(line: str) -> str:
    """What the reference tells as information; we count every objection as a warning."""
    return "info" if line.endswith(("(filter)", "(rewrite)")) else "warn"


def override(vector: dict[str, Any], observed: Any, _differences: list[str]) -> str | None:
    """D-1 for a failure that is left to the default, D-6 and D-28 for what a rewrite keeps."""
    script = vector["input"]["detectorResult"]
    answers = script if isinstance(script, list) else [script]
    options = vector["options"]
    types = options.get("detectionTypes") or DETECTION_TYPES
    more = ("rewritten_content",) if options.get("strategy") == "rewrite" else ()
    schema = scores_schema("categories", "type", types, *more)
    if (
        any(run.fails(answer, schema) for answer in answers)
        and run.fails_open(vector)
        and observed.get("tripwire")
    ):
        open_ = run.now(_observed(vector, errorStrategy="warn"))
        return "D-1" if run.facts(open_) == run.facts(vector["expected"]) else None
    same = run.facts({**observed, "messages": 0}) == run.facts({**vector["expected"], "messages": 0})
    return run.rewritten_as_demanded(vector, observed) if same else None
