"""`language-detector.json`: the model's detection is scripted, so the model detects."""

import copy
from typing import Any

from procession_services.processors.core.detector_text import detector_text
from procession_services.processors.core.languages import NAMES
from procession_services.processors.language_detector import LanguageDetector
from tests.vectors.adapters import detector_run as run
from tests.vectors.adapters.by_hand import stored

_NOTE = "language_detection"
_TARGETS = ["English", "en"]


async def observe(vector: dict[str, Any]) -> Any:
    """Calls the hook with the vector's model."""
    if vector["input"]["hook"] == "constructor":
        error = run.build_error(LanguageDetector, _options(vector["options"]))
        return {"throws": error["text"]} if error else {"built": True}
    return await _observed(vector)


def _options(given: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**run.options_of(given), "detector": "model", **more}


async def _observed(vector: dict[str, Any], **more: Any) -> dict[str, Any]:
    processor = LanguageDetector.build(_options(vector["options"], **more))
    played = await run.play(processor, run.replies(vector["input"].get("detectorResult")), vector["input"])
    told: dict[str, Any] = {"detectorCalls": len(played.requests)}
    if played.requests:
        told["schemaFields"] = list((played.requests[0].schema or {})["properties"])
    if played.messages is not None:
        told["messages"] = played.messages
    if played.logs:
        told["logs"] = [{"level": "warn", "text": text} for text in played.logs]
    return told | {key: value for key in ("tripwire", "throws") if (value := getattr(played, key))}


def override(vector: dict[str, Any], observed: Any, _differences: list[str]) -> str | None:
    """D-1 for a failure left to the default; D-25 and D-66 for what is reported, D-6 and D-28 for what is kept."""
    if vector["input"]["hook"] == "constructor":
        return None
    if _fails(vector) and run.fails_open(vector) and (observed.get("tripwire") or {}).get("reason"):
        open_ = run.now(_observed(vector, errorStrategy="warn"))
        as_warned = {**vector, "options": {**vector["options"], "errorStrategy": "warn"}}
        same = run.facts(open_) == run.facts(vector["expected"])
        return "D-1" if same or override(as_warned, open_, []) else None
    if observed.get("throws") or observed.get("tripwire"):
        return None
    told, rules = _demanded(vector)
    if told is None:
        return None
    fixed = {**vector, "expected": {**vector["expected"], "messages": told}}
    expected = {key: value for key, value in run.facts(fixed["expected"]).items() if key != "tripwire"}
    if run.facts({**observed, "messages": told}) != expected:
        return None
    if observed["messages"] != told:
        kept = run.rewritten_as_demanded(fixed, observed)
        if kept is None:
            return None
        rules.append(kept)
    return rules[0] if rules else None


def _fails(vector: dict[str, Any]) -> bool:
    script = vector["input"].get("detectorResult")
    return any(
        run.fails(each, _schema(vector)) for each in (script if isinstance(script, list) else [script])
    )


def _schema(vector: dict[str, Any]) -> dict[str, Any]:
    """R-LANG-3."""
    kinds: dict[str, Any] = {
        "iso_code": {"type": ["string", "null"]},
        "confidence": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
    }
    if vector["options"].get("strategy") == "translate":
        kinds["translated_text"] = {"type": ["string", "null"]}
    return {"type": "object", "properties": kinds, "required": list(kinds)}


def _demanded(vector: dict[str, Any]) -> tuple[list[dict[str, Any]] | None, list[str]]:
    """The messages that the reference gives, with notes as D-25 and D-66 demand them; and the rules that change some.

    None where a message would have to be treated otherwise than by its note.
    """
    options, expected = vector["options"], vector["expected"]
    targets = (
        _TARGETS if options.get("targetLanguages") in (None, "<undefined>") else options["targetLanguages"]
    )
    given = {message["id"]: message for message in vector["input"]["messages"]}
    script = vector["input"].get("detectorResult")
    script = [*script, *[script[-1]] * len(given)] if isinstance(script, list) else [script] * len(given)
    known = _schema(vector)["properties"]
    answers = iter(
        [
            {} if run.fails(it, _schema(vector)) else {k: v for k, v in it.items() if k in known}
            for it in script
        ]
    )
    rules: list[str] = []
    out = []
    before = expected.get("messages") or vector["input"]["messages"]
    for message in before:
        text = detector_text(stored(given[message["id"]]))
        last_only = options.get("lastMessageOnly") and message is not before[-1]
        if last_only or len(text) < options.get("minTextLength", 10):
            out.append(message)
            continue
        note, rule = _note(next(answers), targets, options.get("threshold", 0.7))
        if note is None:
            if _NOTE in message.get("metadata", {}):
                return None, []
            out.append(message)
            continue
        noted = message
        if rule:
            like = copy.deepcopy(given[message["id"]] if rule == "D-66" else message)
            noted = {**like, "metadata": {**like.get("metadata", {}), _NOTE: note}}
            rules.append(rule)
        out.append(noted)
    return out, rules


def _note(answer: Any, targets: list[str], threshold: float) -> tuple[dict[str, Any] | None, str | None]:
    """What has to be noted of a message in a wanted language, and by which rule; no rule where R-LANG stands."""
    told = answer if isinstance(answer, dict) and "modelThrows" not in answer else {}
    code, confidence = (
        told.get("iso_code"),
        told.get("confidence") or (0.95 if told.get("translated_text") else 0),
    )
    if 0 < confidence < threshold:
        return None, None
    note: dict[str, Any] = {}
    if code:
        language = code.lower().partition("-")[0]
        note = {"detected_language": NAMES.get(code.lower()) or NAMES.get(language) or code, "iso_code": code}
    if confidence:
        note["confidence"] = confidence
    note |= {"is_target_language": True, "target_languages": targets}
    if not code or not confidence or any(_exact(each, code) for each in targets):
        return note, "D-25"
    if any(_regional(each, code) for each in targets):
        return note, "D-66"
    return note, None


def _code(target: str) -> str:
    lower = target.lower()
    named = {name.lower(): code for code, name in NAMES.items()}
    return lower if lower in NAMES else named.get(lower) or lower


def _exact(target: str, code: str) -> bool:
    """R-LANG-11."""
    return _code(target) == code.lower() or target.lower() == NAMES.get(code.lower(), code).lower()


def _regional(target: str, code: str) -> bool:
    """The same language, one side of it without a region."""
    one, other = _code(target), code.lower()
    return ("-" in one) != ("-" in other) and one.partition("-")[0] == other.partition("-")[0]
