"""`system-prompt-scrubber.json`: a scripted model finds; each chunk is a text of its own, as for the reference."""

import re
from collections.abc import Callable
from typing import Any

from procession_services.processors.system_prompt_scrubber import SystemPromptScrubber
from tests.vectors.adapters import detector_run as run

_TRIP = "trip"


async def observe(vector: dict[str, Any]) -> Any:
    """Calls the hook with the vector's model."""
    if vector["input"]["hook"] == "constructor":
        given = run.options_of(vector["options"])
        error = run.build_error(
            SystemPromptScrubber, given if "model" in vector["options"] else _without_model(given)
        )
        return {"throws": error["text"]} if error else {"built": True}
    return await _observed(vector)


def _without_model(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "model"}


async def _observed(vector: dict[str, Any], **more: Any) -> dict[str, Any]:
    given = vector["input"]
    processor = SystemPromptScrubber.build(run.options_of(vector["options"], **more))
    ends = [chunk for each in given.get("chunks", ()) for chunk in _with_end(each)]
    played = await run.play(processor, run.replies(given.get("detectorResult")), {**given, "chunks": ends})
    told: dict[str, Any] = {"detectorCalls": len(played.requests)}
    if "chunks" in given:
        told["perChunk"] = _per_chunk(given["chunks"], played.entries)
    if played.messages is not None:
        told["messages"] = played.messages
    if played.logs:
        told["logs"] = [{"level": "warn", "text": text} for text in played.logs]
    return told | {key: value for key in ("tripwire", "throws") if (value := getattr(played, key))}


def _with_end(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    """The end of the text block makes a chunk a text of its own."""
    return [chunk, {"type": "text-end"}] if chunk["type"] == "text-delta" else [chunk]


def _per_chunk(chunks: list[dict[str, Any]], entries: list[Any]) -> list[Any]:
    """What came of each chunk; what belongs to a text's end is the text's."""
    left, out = list(entries), []
    for chunk in chunks:
        count = len(_with_end(chunk))
        if len(left) < count:
            break
        came = [
            each for entry in left[:count] for each in (entry if isinstance(entry, list) else [entry]) if each
        ]
        del left[:count]
        came = [each for each in came if each["type"] != "text-end"]
        text = "".join(each["text"] for each in came if each["type"] == "text-delta")
        out.append({**came[0], "text": text} if text else came[0] if came else None)
    return out


def override(vector: dict[str, Any], observed: Any, _differences: list[str]) -> str | None:
    """D-13 for what is found and what stands for it, D-6 and D-28 for what is kept, D-1 for failures."""
    if vector["input"]["hook"] == "constructor":
        given = vector["options"].get("model") not in (None, "<undefined>", "")
        return "D-13" if observed == {"built": True} and not given else None
    if observed.get("throws"):
        return None
    script = vector["input"].get("detectorResult")
    answers = script if isinstance(script, list) else [script]
    if any(map(_fails, answers)) and run.fails_open(vector) and observed.get("tripwire"):
        open_ = run.now(_observed(vector, errorStrategy="warn"))
        as_warned = {**vector, "options": {**vector["options"], "errorStrategy": "warn"}}
        same = run.facts(open_) == run.facts(vector["expected"])
        return "D-1" if same or override(as_warned, open_, []) else None
    expected_calls = vector["expected"].get("detectorCalls", observed["detectorCalls"])
    if observed["detectorCalls"] != expected_calls and not vector["options"].get("customPatterns"):
        return None
    answers = [*answers, *[answers[-1]] * 1000]
    rule = _stream_rule if "chunks" in vector["input"] else _result_rule
    return rule(vector, observed, answers)


def _fails(answer: Any) -> bool:
    if (
        not isinstance(answer, dict)
        or "modelThrows" in answer
        or not {"detections", "reason"} <= answer.keys()
    ):
        return True
    found = answer["detections"] or []
    return any(
        not 0 <= each.get("confidence", -1) <= 1 or not {"type", "value", "start", "end"} <= each.keys()
        for each in found
    )


def _demanded(text: str, answer: Any, options: dict[str, Any]) -> Any:
    """What has to become of a text: another one, None (dropped), or `trip` (D-13)."""
    if _fails(answer):
        return text
    sure = [
        each for each in answer["detections"] or () if each["confidence"] >= options.get("threshold", 0.7)
    ]
    return _acted(text, sure, answer.get("redacted_content"), options) if sure else text


def _patterns(text: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    """What the custom patterns find, as detections (D-13)."""
    hits = [hit for each in options.get("customPatterns") or () for hit in re.finditer(each, text)]
    return [{"start": hit.start(), "end": hit.end(), "value": hit[0]} for hit in hits]


def _acted(text: str, sure: list[dict[str, Any]], rewritten: Any, options: dict[str, Any]) -> Any:
    strategy = options.get("strategy", "redact")
    if strategy == "warn":
        return text
    if strategy != "redact":
        return None if strategy == "filter" else _TRIP
    marked, wishes = _marked(text, sure)
    secrets = [text[a:b] for a, b in _runs(marked)]
    if rewritten and not any(secret in rewritten for secret in secrets):
        return rewritten
    out, place = "", 0
    for a, b in _runs(marked):
        out += text[place:a] + _instead(text[a:b], wishes, a, b, options)
        place = b
    return out + text[place:]


def _marked(text: str, sure: list[dict[str, Any]]) -> tuple[list[int], list[tuple[int, int, str]]]:
    """For each character the group of detections that it belongs to, 0 for none; and their places."""
    places: list[tuple[int, int, str]] = []
    for each in sure:
        a, b = max(each["start"], 0), min(each["end"], len(text))
        own = [(a, b)] if a < b else []
        if each["value"] and text[a:b] != each["value"]:
            at = text.find(each["value"])
            while at >= 0:
                own.append((at, at + len(each["value"])))
                at = text.find(each["value"], at + len(each["value"]))
        places += [(x, y, each.get("redacted_value") or "") for x, y in own or [(0, len(text))]]
    groups = [0] * len(text)
    number, reach = 0, -1
    for a, b, _ in sorted(places):
        number += a >= reach
        groups[a:b] = [number] * (b - a)
        reach = max(reach, b)
    return groups, places


def _runs(groups: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for at, group in enumerate(groups):
        if group and at and groups[at - 1] == group:
            runs[-1] = (runs[-1][0], at + 1)
        elif group:
            runs.append((at, at + 1))
    return runs


def _instead(text: str, wishes: list[tuple[int, int, str]], a: int, b: int, options: dict[str, Any]) -> str:
    method = options.get("redactionMethod", "mask")
    if method == "placeholder":
        inside = [wish for start, end, wish in wishes if a <= start and end <= b]
        own = inside[0] if len(inside) == 1 else ""
        return own or str(options.get("placeholderText", "[SYSTEM_PROMPT]"))
    return "*" * len(text) if method == "mask" else ""


def _reference(text: str, answer: Any, options: dict[str, Any]) -> Any:
    """What the reference makes of a text (R-SCR-4 to R-SCR-6), in UTF-16 units."""
    found = [] if _fails(answer) else answer["detections"] or []
    strategy = options.get("strategy", "redact")
    if not found or strategy == "warn":
        return text
    if strategy != "redact":
        return None if strategy == "filter" else _TRIP
    if answer.get("redacted_content"):
        return answer["redacted_content"]
    units = text.encode("utf-16-le", "surrogatepass")
    for each in sorted(found, key=lambda it: -it["start"]):
        instead = _instead(
            each["value"], [(0, len(each["value"]), each.get("redacted_value") or "")], 0, 1 << 30, options
        )
        a, b = (2 * max(each[key], 0) for key in ("start", "end"))
        units = units[:a] + instead.encode("utf-16-le") + units[b:]
    return units.decode("utf-16-le", "replace")


def _stream_rule(vector: dict[str, Any], observed: dict[str, Any], answers: list[Any]) -> str | None:
    options = vector["options"]
    reference = _streamed(vector, answers, lambda text, answer: _reference(text, answer, options))
    entries = [
        None if each and each.get("text") == "" else each for each in vector["expected"].get("perChunk", ())
    ]
    told = (entries, bool(vector["expected"].get("tripwire")))
    if not _fails(answers[0]) and told != reference:
        return None  # not a recording of what the rules say
    ours = _streamed(vector, answers, lambda text, answer: _both_stages(text, answer, options))
    if (observed["perChunk"], bool(observed.get("tripwire"))) != ours:
        return None
    return "D-8" if ours == reference else "D-13"  # the buffer sends no empty chunk for what it removed


def _both_stages(text: str, answer: Any, options: dict[str, Any]) -> Any:
    """A text of a stream through patterns, then the model; of a stream, `filter` drops what a pattern finds."""
    hits = _patterns(text, options)
    if hits and options.get("strategy") == "filter":
        text = _acted(text, hits, None, {"strategy": "redact", "redactionMethod": "remove"})
    elif hits:
        text = _acted(text, hits, None, options)
    return text if text == _TRIP else _demanded(text, answer, options)


def _streamed(
    vector: dict[str, Any], answers: list[Any], judge: Callable[[str, Any], Any]
) -> tuple[list[Any], bool]:
    """Entries for each chunk, and whether the stream was aborted."""
    out: list[Any] = []
    calls = iter(answers)
    for chunk in vector["input"]["chunks"]:
        made: Any = chunk
        if chunk["type"] == "text-delta" and chunk["text"].strip():
            text = judge(chunk["text"], next(calls))
            if text == _TRIP:
                return out, True
            made = {**chunk, "text": text} if text else None
        out.append(made)
    return out, False


def _result_rule(vector: dict[str, Any], observed: dict[str, Any], answers: list[Any]) -> str | None:
    given, options, calls = vector["input"]["messages"], vector["options"], iter(answers)
    rules: set[str] = set()
    wanted = {each["id"]: each for each in vector["expected"].get("messages", ())}
    got = {each["id"]: each for each in observed.get("messages", ())}
    for message in given:
        text = _text(message)
        last_only = options.get("lastMessageOnly") and message is not given[-1]
        answer = next(calls) if message["role"] == "assistant" and text and not last_only else None
        demanded = text if answer is None else _of_message(text, answer, options)
        reference = text if answer is None else _reference(text, answer, options)
        if demanded == _TRIP:
            return "D-13" if observed.get("tripwire") else None
        theirs, ours = wanted.get(message["id"]), got.get(message["id"])
        told = _TRIP if vector["expected"].get("tripwire") else theirs and _text(theirs)
        if told != reference:
            return None  # not a recording of what the rules say
        if demanded is None or ours is None:
            if demanded is not None or ours is not None:
                return None
            continue
        if not _kept(message, ours, demanded):
            return None
        rules |= _rules(ours, theirs)
    if observed.get("tripwire") or not rules:
        return None
    return next(rule for rule in ("D-13", "D-6", "D-28") if rule in rules)


def _of_message(text: str, answer: Any, options: dict[str, Any]) -> Any:
    hits = _patterns(text, options)
    made = _acted(text, hits, None, options) if hits else text
    return made if made in (None, _TRIP) else _demanded(made, answer, options)


def _text(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


def _kept(before: dict[str, Any], ours: dict[str, Any], text: str) -> bool:
    """Whether only the text changed, into this one."""
    texts = [part["text"] for part in ours["parts"] if part["type"] == "text"]
    others = [[part for part in each["parts"] if part["type"] != "text"] for each in (before, ours)]
    flat = "content" not in ours or ours["content"] == (texts[-1] if texts else None)
    rest = [{k: v for k, v in each.items() if k not in ("parts", "content")} for each in (before, ours)]
    return "".join(texts) == text and others[0] == others[1] and flat and rest[0] == rest[1]


def _rules(ours: dict[str, Any], theirs: dict[str, Any] | None) -> set[str]:
    """The rules that part our message from the reference's."""
    if theirs is None:
        return {"D-13"}
    texts = [
        "".join(part["text"] for part in each["parts"] if part["type"] == "text") for each in (ours, theirs)
    ]
    rules = {"D-13"} if texts[0] != texts[1] else set()
    if ours["parts"] != theirs["parts"]:
        rules.add("D-6")
    if ours.get("content") != theirs.get("content"):
        rules.add("D-28")
    return rules
