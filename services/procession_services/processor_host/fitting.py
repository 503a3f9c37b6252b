"""What is longer than the broker takes, told shorter: ends, of which the chunks had the rest, and tripwires."""

from collections.abc import Callable
from typing import Any, Final

from procession_schemas.chunks import Chunk
from procession_schemas.events import ProcessorViolation, RunFinished, RunSuspended
from procession_schemas.run import RunResult, Tripwire

Fits = Callable[[bytes], bool]
"""Whether the broker takes a message with that body."""
_LONGEST_TEXT: Final = 200_000
"""Characters of a text that is too long on its own."""
_LONGEST_REASON: Final = 2_000
"""Characters of a reason in a message that would be too long with all of it."""
_LONGEST_TRIPWIRE: Final = 128_000
"""Bytes of a tripwire, which the command that tells of it has three times, and the client's result again."""
_SHORTENED: Final[dict[str, Any]] = {"shortened": True}
_NAMES: Final = ("toolCallId", "toolName")


def fitting_end(event: RunFinished | RunSuspended, fits: Fits) -> bytes:
    """The event's JSON, its result as whole as fits."""
    body = event.to_json()
    for shorter in (_without_details, _without_all_text, _bare):
        if fits(body):
            break
        body = event.model_copy(update={"result": shorter(event.result)}).to_json()
    return body


def fitting_finish(chunk: Chunk, takes: Callable[[Chunk], bool]) -> Chunk:
    """A `step-finish` or `finish`, its text as whole as fits: the deltas had all of it."""
    for longest in (_LONGEST_TEXT, 0):
        if takes(chunk):
            break
        payload = chunk["payload"]
        output = {**payload["output"], "text": payload["output"]["text"][:longest], **_SHORTENED}
        about = {name: value for name, value in payload.items() if longest or name != "metadata"}
        chunk = {**chunk, "payload": {**about, "output": output}}
    return chunk


def fitting_violation(event: ProcessorViolation, fits: Fits) -> bytes:
    """The event's JSON, without the violation's details where they do not fit."""
    body = event.to_json()
    if fits(body):
        return body
    shorter = {"message": event.message[:_LONGEST_REASON], "detail": _SHORTENED}
    return event.model_copy(update=shorter).to_json()


def fitting_tripwire(tripwire: Tripwire) -> Tripwire:
    """The tripwire, without metadata that are too long, and with the beginning only of a reason that is."""
    for shorter in ({"metadata": _SHORTENED}, {"reason": tripwire.reason[:_LONGEST_REASON]}):
        if len(tripwire.to_json()) <= _LONGEST_TRIPWIRE:
            break
        tripwire = tripwire.model_copy(update=shorter)
    return tripwire


def _without_details(result: RunResult) -> RunResult:
    """The result without what says again what its text says."""
    return result.model_copy(
        update={
            "messages": [],
            "remembered_messages": [],
            "provider_metadata": None,
            "warnings": [],
            "steps": [],
            "tool_calls": [],
            "tool_results": [],
            "sources": [],
            "files": [],
            "response": _SHORTENED,
            "object": None,
            "reasoning_text": None,
        }
    )


def _without_all_text(result: RunResult) -> RunResult:
    """The same with the beginning of its text; the chunks had all of it."""
    return _without_details(result).model_copy(update={"text": result.text[:_LONGEST_TEXT]})


def _bare(result: RunResult) -> RunResult:
    """How a run ended, or for which calls it waits, and no more; where it is the error or a call that is too long."""
    error, tripwire, calls = result.error, result.tripwire, (result.suspend_payload or {}).get("calls", [])
    return RunResult(
        run_id=result.run_id,
        agent=result.agent,
        status=result.status,
        finish_reason=result.finish_reason,
        usage=result.usage,
        retries=result.retries,
        duration_ms=result.duration_ms,
        response=_SHORTENED,
        error=error and error.model_copy(update={"message": error.message[:_LONGEST_REASON], "detail": None}),
        tripwire=tripwire
        and tripwire.model_copy(update={"reason": tripwire.reason[:_LONGEST_REASON], "metadata": None}),
        suspend_payload={"calls": [{k: call.get(k) for k in _NAMES} for call in calls]} if calls else None,
    )
