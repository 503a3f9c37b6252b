"""`classifier.json`: policies on answers, in messages and streams; wrong options."""

import re
from collections.abc import Mapping
from typing import Any

from procession_services.processors.classifier import Classification, Classifier
from procession_services.processors.core.questions import Answer, answers_schema
from tests.vectors.adapters import detector_run as run

_LEAST = 0.5


class Error(Exception):
    """What a policy of the vectors throws."""


class _Policy(Classifier):
    """Does what the vector's policy does, and keeps what it was called with."""

    policy = "none"

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.seen: list[dict[str, Any]] = []

    async def on_result(self, answers: Mapping[str, Answer], call: Classification) -> None:
        probabilities = [answer["probability"] for answer in answers.values() if "probability" in answer]
        probability = probabilities[0] if probabilities else None
        self.seen.append({"phase": call.phase, "probability": probability})
        if self.policy == "throws":
            raise Error("policy bug")
        if (probability or 0) < _LEAST:
            return
        if re.search("filter|both", self.policy):
            call.filter()
        if re.search("block|abort|both", self.policy):
            call.abort("Rejected by policy")


async def observe(vector: dict[str, Any]) -> Any:
    """Builds the processor, or calls the hook with the vector's answers."""
    given = vector["input"]
    wrong = run.build_error(Classifier, _options(vector))
    if given["hook"] == "constructor":
        return {"ok": True} if wrong is None else {"throws": wrong["text"], "id": wrong.get("id")}
    if wrong is not None:
        return {"throws": {"name": "Error", "id": wrong.get("id"), "message": wrong["text"]}}
    processor = _processor(vector)
    return _told(vector, processor, await run.play(processor, _model(vector), given))


def _options(vector: dict[str, Any]) -> dict[str, Any]:
    """A vector without any option makes a classifier without questions; a text names one that is registered."""
    given = run.options_of(vector["options"])
    if vector["input"]["hook"] == "constructor" and not vector["options"]:
        return given
    return {"questions": _questions(vector), **given}


def _questions(vector: dict[str, Any]) -> dict[str, Any]:
    questions: dict[str, Any] = {}
    for answers in _answers(vector):
        for name, answer in answers.items():
            if isinstance(answer, dict) and answer.get("type") == "choice":
                offered = [*answer.get("probabilities", {}), answer.get("choice"), "other", "another"]
                choices = list(dict.fromkeys(each for each in offered if isinstance(each, str)))
                questions[name] = {"type": "choice", "question": "Which?", "choices": choices}
            elif isinstance(answer, dict):
                questions[name] = {"type": "boolean", "question": "Is it?"}
    return questions or {"unsafe": {"type": "boolean", "question": "Is it unsafe?"}}


def _answers(vector: dict[str, Any]) -> list[Any]:
    script = vector["input"].get("answers", {})
    return script if isinstance(script, list) else [script]


def _processor(vector: dict[str, Any], **more: Any) -> _Policy:
    processor = _Policy.build({**_options(vector), **more})
    processor.policy = vector["options"].get("policy", "none")
    processor.id = vector["options"].get("id", processor.id)  # type: ignore[misc]  # an entry's `as`
    return processor


def _model(vector: dict[str, Any]) -> Any:
    script = vector["input"].get("answers", {})
    if not _streams(vector):
        return run.replies(script)
    clean = {name: {"type": "boolean", "probability": 0} for name in _questions(vector)}
    return run.by_content(script, _objections(vector), clean)


def _streams(vector: dict[str, Any]) -> bool:
    return bool(vector["input"]["hook"] == "processOutputStream")


def _objections(vector: dict[str, Any]) -> list[run.Objection]:
    return run.objections(
        vector, vector["input"]["answers"], "classifiedTexts", lambda answer: _outcome(vector, answer)
    )


def _outcome(vector: dict[str, Any], answer: Any) -> str:
    """What an answer does to a stream, empty where the policy lets it pass."""
    processor, policy = _processor(vector), vector["options"].get("policy", "none")
    if run.fails(answer, answers_schema(processor.options.questions)):
        return "trip" if processor.options.error_strategy == "strict" else "pass"
    if policy == "throws":
        return "throw"
    if not any(each.get("probability", 0) >= _LEAST for each in answer.values()):
        return ""
    return {"filter": "drop", "none": "pass"}.get(policy, "trip")


def _told(vector: dict[str, Any], processor: _Policy, played: run.Played) -> dict[str, Any]:
    told: dict[str, Any] = {"classifiedTexts": played.texts}
    if _streams(vector):
        told |= {"perChunk": played.entries, "phases": [each["phase"] for each in processor.seen]}
    else:
        told["onResultCalls"] = processor.seen
        told |= {} if played.messages is None else {"messages": played.messages}
        told |= {"logs": [{"level": "warn", "text": text} for text in played.logs]} if played.logs else {}
    return told | {key: value for key in ("tripwire", "throws") if (value := getattr(played, key))}


def override(vector: dict[str, Any], observed: Any, _differences: list[str]) -> str | None:
    """D-8 or D-14 for a stream that ends as the policy demands; D-27 where a text is cut to its length."""
    if not _streams(vector) and {each.partition("[")[0] for each in _differences} == {"classifiedTexts"}:
        limit = 2 * vector["options"]["maxInputLength"]
        cut = [text.encode("utf-16-le", "surrogatepass")[:limit] for text in observed["classifiedTexts"]]
        asked = [text.encode("utf-16-le", "surrogatepass") for text in vector["expected"]["classifiedTexts"]]
        return "D-27" if cut == asked else None
    if not _streams(vector) or "perChunk" not in observed:
        return None
    demanded = run.stream_as_demanded(
        lambda: _processor(vector), lambda: _model(vector), vector["input"], observed, _objections(vector)
    )
    window = "D-14" if vector["options"].get("chunkWindow") == 1 else "D-8"
    return window if demanded else None
