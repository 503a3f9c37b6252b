"""`regex-filter.json`."""

import copy
from itertools import islice
from typing import Any

from procession.errors import InvalidOptionsError, TripWire
from procession.processor import Hook
from procession_services.processors.regex_filter import RegexFilter
from tests.vectors.adapters.common import (
    Bench,
    Streamed,
    at_once,
    from_message,
    from_tripwire,
    splits,
    text_in,
    without,
)


def _build(vector: dict[str, Any]) -> RegexFilter:
    return RegexFilter.build(without(vector["options"]))


async def observe(vector: dict[str, Any]) -> dict[str, Any]:
    """What the vector's call does."""
    try:
        processor = _build(vector)
    except InvalidOptionsError as error:
        return {"throws": str(error)}
    if vector["input"]["hook"] == "constructor":
        return {"ok": True}
    bench = Bench([processor])
    hook = Hook(vector["input"]["hook"])
    shown = (
        _shown_stream(await _stream(bench, hook, vector))
        if "chunks" in vector["input"]
        else await _shown(bench, hook, vector)
    )
    if bench.logs:
        shown["logs"] = bench.logs
    if bench.violations and "violations" in vector["expected"]:  # else nobody listened when it was recorded
        shown["violations"] = bench.violations
    return shown


def _has(vector: dict[str, Any], hook: Hook) -> bool:
    return hook in RegexFilter.hooks_for(without(vector["options"]))


async def _stream(bench: Bench, hook: Hook, vector: dict[str, Any]) -> Streamed:
    if not _has(vector, hook):
        bench.processors = []
    return await bench.stream(vector["input"]["chunks"])


def _shown_stream(streamed: Streamed) -> dict[str, Any]:
    steps = streamed.steps[:-1] if streamed.tripwire else streamed.steps
    told: dict[str, Any] = {
        "perChunk": [_entry(step) for step in steps],
        "held": "",
        "emittedText": text_in(streamed.out),
    }
    return told | ({"tripwire": streamed.tripwire} if streamed.tripwire else {})


def _entry(step: list[dict[str, Any]]) -> dict[str, Any]:
    told: dict[str, Any] = {"returned": step[0] if step else None}
    if more := step[1:]:
        told["reprocess"] = more[0] if len(more) == 1 else more
    return told


async def _shown(bench: Bench, hook: Hook, vector: dict[str, Any]) -> dict[str, Any]:
    given = vector["input"]["messages"]
    if not _has(vector, hook):
        return {"messages": copy.deepcopy(given), "sameArray": True}
    try:
        before, after = await bench.messages(hook, given)
    except TripWire as tripwire:
        bench.violations.clear()
        told = from_tripwire(tripwire)
        _count_units(bench, told["metadata"]["matches"])
        return {"tripwire": told}
    texts = {(m["id"], at): p.get("text") for m in before for at, p in enumerate(m["content"]["parts"])}
    for violation in bench.violations:
        where = violation["detail"]
        for entry in where.get("redactions", ()):
            text = texts[where["messageId"], where["partIndex"]]
            entry["length"] = _units(text[entry["index"] : entry["index"] + entry["length"]])
            entry["index"] = _units(text[: entry["index"]])
    return {
        "messages": [_flat(told, message) for told, message in zip(given, after, strict=True)],
        "sameArray": before is after,
    }


def _units(text: str) -> int:
    """The length of a text in UTF-16 units, in which the vectors count (D-27)."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _count_units(bench: Bench, matches: list[dict[str, Any]]) -> None:
    """Gives the matches of a tripwire the positions of the vectors; they come text by text."""
    processor: Any = bench.processors[0]
    rest = iter(matches)
    for message in bench.seen:
        for part in message["content"]["parts"]:
            text = part.get("text") or ""
            hits = (
                sum(len(region.hits) for region in processor._rules.find(text))
                if part["type"] == "text"
                else 0
            )
            for match in islice(rest, hits):
                match["index"] = _units(text[: match["index"]])


def _flat(told: dict[str, Any], message: Any) -> dict[str, Any]:
    """A message in the form in which the vector gave it."""
    shown = from_message(message)
    if "parts" not in told:
        text = shown.pop("parts")[0]["text"]
        shown.pop("content", None)
        shown["contentString" if "contentString" in told else "content"] = text
    return shown


# --- rules that override -----------------------------------------------------------------------


def override(vector: dict[str, Any], observed: Any, differences: list[str]) -> str | None:
    """D-28 for text outside the parts, D-8 for streams; None where neither demands what was observed."""
    if "messages" in vector["input"]:
        return "D-28" if _as_parts(vector, observed) else None
    return "D-8" if "chunks" in vector["input"] and _as_whole(vector, observed) else None


def _as_parts(vector: dict[str, Any], observed: Any) -> bool:
    """Whether legacy text was treated as a part, and the flat copy follows the parts."""
    given = vector["input"]["messages"]
    if not any("content" in told or "contentString" in told for told in given):
        return False
    as_parts = copy.deepcopy(vector)
    for told in as_parts["input"]["messages"]:
        flat = told.pop("contentString", told.pop("content", None))
        if "parts" not in told:
            told["parts"] = [{"type": "text", "text": flat}]
    wanted = at_once(observe(as_parts))
    if "tripwire" in wanted or "tripwire" in observed:
        return bool(wanted.get("tripwire") == observed.get("tripwire"))
    for told, message in zip(given, wanted["messages"], strict=True):
        texts = [part["text"] for part in message["parts"] if part["type"] == "text"]
        if "parts" not in told:
            del message["parts"]
            message["contentString" if "contentString" in told else "content"] = texts[0]
        elif "content" in told:
            message["content"] = texts[-1] if texts else told["content"]
    return bool(wanted == observed)


def _as_whole(vector: dict[str, Any], observed: Any) -> bool:
    """Whether the stream was treated as its whole texts are, however it is cut, and kept its order."""
    chunks = vector["input"]["chunks"]
    texts: dict[str, str] = {}
    for chunk in chunks:
        if chunk["type"] == "text-delta":
            texts[chunk["id"]] = texts.get(chunk["id"], "") + chunk["text"]
    whole = Bench([_build(vector)])
    messages = [
        {"id": i, "role": "assistant", "parts": [{"type": "text", "text": t}]} for i, t in texts.items()
    ]
    try:
        _, after = at_once(whole.messages(Hook.OUTPUT_RESULT, messages))
    except TripWire as tripwire:
        wanted = tripwire.metadata["matches"]
        return all(_blocked(vector, cut, wanted, texts) for cut in [chunks, *splits(chunks)])
    redacted = {message["id"]: from_message(message)["parts"][0]["text"] for message in after}
    return all(_redacted(vector, cut, redacted, whole) for cut in [chunks, *splits(chunks)])


def _blocked(vector: dict[str, Any], chunks: Any, wanted: list[Any], texts: dict[str, str]) -> bool:
    """Whether the stream was stopped before anything of a match left."""
    streamed = at_once(Bench([_build(vector)]).stream(chunks))
    found = (streamed.tripwire or {}).get("metadata", {}).get("matches")
    clean = "".join(texts.values())[: min(match["index"] for match in wanted)] if len(texts) == 1 else ""
    begins = clean.startswith(text_in(streamed.out)) or len(texts) > 1
    return bool(found) and all(match in wanted for match in found) and begins


def _redacted(vector: dict[str, Any], chunks: Any, wanted: dict[str, str], whole: Bench) -> bool:
    """Whether each text came out as it does when it is redacted at once, and everything else in its order."""
    bench = Bench([_build(vector)])
    streamed = at_once(bench.stream(chunks))
    texts = {text_id: text_in(c for c in streamed.out if c.get("id") == text_id) for text_id in wanted}
    others = [[c for c in side if c["type"] != "text-delta"] for side in (streamed.out, chunks)]
    return (
        not streamed.tripwire
        and texts == wanted
        and others[0] == others[1]
        and _redactions(bench) == _redactions(whole)
    )


def _redactions(bench: Bench) -> list[Any]:
    found = [entry for told in bench.violations for entry in told["detail"].get("redactions", ())]
    return sorted(found, key=lambda entry: entry["index"])
