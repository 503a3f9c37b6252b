"""`working-memory-state.json`: the signal for a stored note, and for what was sent before."""

from typing import Any

from procession.args import AbortSignal, InputStepArgs, ModelInfo, RequestContext
from procession.calls import abort
from procession.message_list import MessageList
from procession.state_signals import SentState, StateSignalArgs
from procession_services.memory.working_state import WorkingMemoryState
from tests.support.patches import patched
from tests.vectors.adapters.memory_stage import DictMessages, memory_context, on_stage


async def observe(vector: dict[str, Any]) -> Any:
    """Calls `compute_state_signal`."""
    given = vector["input"]
    written, scope = given.get("format") or "markdown", given.get("scope")
    options: dict[str, Any] = {"hasTemplate": given.get("hasTemplate", True)}
    if written == "json":
        options["template"] = {"format": "json", "content": "{}"}
    if scope:
        options["scope"] = scope
    store = DictMessages()
    if given.get("stored") is not None:
        store.notes["r1", "t1" if scope == "thread" else None] = given["stored"]
    context = memory_context(given.get("context", {"threadId": "t1", "resourceId": "r1"}))
    with on_stage(store):
        signal = await WorkingMemoryState.build(options).compute_state_signal(_arguments(given, context))
    return {"signal": signal}


def _arguments(given: dict[str, Any], context: RequestContext) -> StateSignalArgs:
    common: dict[str, Any] = {
        "abort": abort,
        "retry_count": 0,
        "request_context": context,
        "tracing_context": {},
        "state": {},
        "run_id": "run",
    }
    messages = MessageList(new_id=lambda: "id", now=lambda: "2026-01-01T00:00:00.000Z")
    step = InputStepArgs(
        **common, step_number=0, steps=[], abort_signal=AbortSignal(), messages=[], message_list=messages,
        system_messages=[], model=ModelInfo("test/model"), tool_choice="auto", active_tools=None, tools={},
        provider_options={}, model_settings={}, structured_output=None, message_id="answer",
    )  # fmt: skip
    snapshot = given.get("lastSnapshot")
    return StateSignalArgs(
        **common,
        step=step,
        thread_id="t1",
        resource_id="r1",
        has_snapshot=bool(given.get("hasSnapshot")),
        last_snapshot=_sent(snapshot, "snapshot") if snapshot else None,
        deltas=[_sent(each, "delta") for each in given.get("deltas") or ()],
        current_cache_key=(given.get("tracking") or {}).get("currentCacheKey"),
    )


def _sent(told: dict[str, Any], mode: str) -> SentState:
    return SentState(told.get("contents", ""), mode, told.get("cacheKey", ""), told.get("metadata") or {})


def override(vector: dict[str, Any], observed: Any, differences: list[str]) -> str | None:
    """D-87: a line that is unchanged is in no hunk, also where it was the last one; the patch says the same."""
    expected, signal, given = vector["expected"].get("signal"), observed.get("signal"), vector["input"]
    if not expected or not signal or signal.get("mode") != "delta" or signal["contents"] != signal["delta"]:
        return None
    if {**signal, "contents": expected.get("contents"), "delta": expected.get("delta")} != expected:
        return None
    snapshot = given.get("lastSnapshot") or {}
    sent = [*(given.get("deltas") or [])[-1:], snapshot]
    values = [each["metadata"]["value"] for each in sent if "value" in (each.get("metadata") or {})]
    known = [*values, snapshot.get("contents")][0]
    return "D-87" if patched(known, signal["contents"]) == signal["value"] else None
