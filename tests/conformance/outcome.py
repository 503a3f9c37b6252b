"""A run's chunks and result -> the run's entry in the recording."""

from typing import Any

from procession_schemas.run import RunResult
from tests.conformance.record import chunk_of, error_info, usage_of

__all__ = ["generate_record", "stream_record"]


def stream_record(chunks: list[dict[str, Any]], result: RunResult, run: dict[str, Any]) -> dict[str, Any]:
    """The entry of a streamed run: its chunks and what its result says.

    Where the reference rejects a promise, the object of a failed run, the entry says `{"rejected": message}`.
    """
    record: dict[str, Any] = {
        "chunks": [chunk_of(chunk) for chunk in chunks],
        "text": result.text,
        "finishReason": result.finish_reason,
    }
    record |= _ending(result)
    if (run.get("options") or {}).get("structuredOutput"):
        failed = {"rejected": result.error.message} if result.error else None
        record["object"] = failed or result.object
    record["steps"] = [_step(step) for step in result.steps]
    record["usage"] = usage_of(result.usage)
    record["toolResults"] = _tool_results(result)
    if wanted := run.get("ui_metadata"):
        record["uiMetadata"] = _metadata(result, wanted)
    return record


def generate_record(result: RunResult, run: dict[str, Any]) -> dict[str, Any]:
    """The entry of a run that was only waited for; `generate()` raises where the run failed."""
    if result.error is not None:
        return {"threw": result.error.message}
    record: dict[str, Any] = {"text": result.text, "finishReason": result.finish_reason, **_ending(result)}
    if result.object is not None:
        record["object"] = result.object
    return record | {
        "steps": len(result.steps),
        "usage": usage_of(result.usage),
        "toolResults": [{k: v for k, v in each.items() if k != "isError"} for each in _tool_results(result)],
    }


def _ending(result: RunResult) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if result.tripwire is not None:
        out["tripwire"] = _tripwire(result.tripwire.model_dump(by_alias=True))
    if result.error is not None:
        out["error"] = error_info(result.error.model_dump(by_alias=True))
    return out


def _tripwire(tripwire: dict[str, Any]) -> dict[str, Any]:
    return {
        k: tripwire[k] for k in ("reason", "retry", "metadata", "processorId") if tripwire.get(k) is not None
    }


def _step(step: dict[str, Any]) -> dict[str, Any]:
    out = {
        "text": step.get("text", ""),
        "finishReason": step.get("finishReason"),
        "toolCalls": [_flat(call).get("toolName") for call in step.get("toolCalls") or []],
        "toolResults": [_output(each) for each in step.get("toolResults") or []],
    }
    return out | ({"tripwire": _tripwire(step["tripwire"])} if step.get("tripwire") else {})


def _flat(entry: dict[str, Any]) -> dict[str, Any]:
    """The data of a call or result, which is under `payload` where it is shaped like a chunk."""
    payload = entry.get("payload")
    return payload if isinstance(payload, dict) else entry


def _output(entry: dict[str, Any]) -> Any:
    flat = _flat(entry)
    return flat["result"] if "result" in flat else flat.get("output")


def _tool_results(result: RunResult) -> list[dict[str, Any]]:
    return [
        {"name": _flat(each).get("toolName"), "result": _output(each)}
        | ({"isError": True} if _flat(each).get("isError") else {})
        for each in result.tool_results
    ]


def _metadata(result: RunResult, wanted: list[str]) -> list[dict[str, Any]]:
    """What processors put on the generated messages, as far as the scenario asks for it."""
    found = []
    for message in result.response.get("messages") or []:
        content = message.get("content")
        metadata = (
            (content.get("metadata") if isinstance(content, dict) else None) or message.get("metadata") or {}
        )
        if any(key in metadata for key in wanted):
            found.append({key: metadata[key] for key in wanted if key in metadata})
    return found
