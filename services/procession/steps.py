"""The step results of a run (core.md 7.6): what its context keeps of a step, and what hooks and clients get.

A context is stored at every command, so a step keeps what nothing else holds. Its sources and files stay parts of the
run's assistant message, and are read from there by its `segment`: what a processor takes out of the message is in no
step. Its text is kept as it streamed, which is what hooks get; the run's result tells what is left of it (R-OR-5).
"""

from collections.abc import Sequence
from typing import Any, cast

from procession.context import RunContext
from procession.parts import AROUND_DEPTH, copy_json
from procession_schemas.messages import Part, StepResult


def current_step(ctx: RunContext) -> StepResult:
    """The step result of the attempt in hand as the context keeps it."""
    response = ctx.response or {}
    outcomes = {o["toolCallId"]: o for o in ctx.outcomes}
    step: StepResult = {
        "stepNumber": ctx.step_number,
        "stepType": "initial" if ctx.step_number == 0 else "tool-result",
        "text": response.get("text", ""),
        "toolCalls": [_flat_call(c) for c in response.get("toolCalls", []) if not c.get("repeated")],
        "toolResults": [
            {
                "toolCallId": o["toolCallId"],
                "toolName": o["toolName"],
                "output": o["streamed"] if "streamed" in o else o["result"],
            }
            for o in outcomes.values()
            if "result" in o and not o.get("hidden")
        ],
        "finishReason": response.get("finishReason", "other"),
        "usage": response.get("usage", {}),
        "model": ctx.config.model,
        "warnings": response.get("warnings", []),
    }
    told = dict(response.get("metadata", {}))
    optional = {
        "reasoningText": response.get("reasoningText"),
        "providerMetadata": told.pop("providerMetadata", None),
        "request": response.get("request"),
        "response": told,
    }
    kept = cast("StepResult", {key: value for key, value in optional.items() if value})
    if (segment := _segment(ctx)) is not None:
        kept["segment"] = segment
    return {**step, **kept}


def with_media(ctx: RunContext, steps: Sequence[StepResult]) -> list[StepResult]:
    """Copies of the steps with their sources and files, where the run's message holds some."""
    parts = ctx.messages.response_steps() if any("segment" in step for step in steps) else []
    return [_with_media(step, parts) for step in steps]


def for_hooks(ctx: RunContext, steps: Sequence[StepResult]) -> list[StepResult]:
    """The steps with every field of core.md 7.6; what they hold is shared."""
    ctx.steps_shown = True
    return [_whole(step) for step in with_media(ctx, steps)]


def copies(steps: Sequence[StepResult]) -> list[StepResult]:
    """What `with_media` has made, with every field of core.md 7.6; nothing in it is shared."""
    return copy_json([_whole(step) for step in steps], AROUND_DEPTH)


def _flat_call(call: dict[str, Any]) -> dict[str, Any]:
    return {"toolCallId": call["toolCallId"], "toolName": call["toolName"], "input": call.get("args")}


def _segment(ctx: RunContext) -> int | None:
    """Which step of the message is the attempt's; None where it has nothing there."""
    return len(ctx.messages.response_steps()) - 1 if ctx.messages.attempt_has_parts else None


def _with_media(step: StepResult, segments: list[list[Part]]) -> StepResult:
    told = cast("StepResult", {**step})
    at = told.pop("segment", len(segments))
    parts = segments[at] if at < len(segments) else []
    if sources := [part["source"] for part in parts if part["type"] == "source"]:
        told["sources"] = sources
    if files := [_file(part) for part in parts if part["type"] == "file"]:
        told["files"] = files
    return told


def _file(part: Part) -> dict[str, Any]:
    return {"data": part.get("data"), "mimeType": part.get("mimeType", "")}


def _whole(step: StepResult) -> StepResult:
    thought = step.get("reasoningText", "")
    reasoning: list[dict[str, Any]] = [{"type": "reasoning", "text": thought}] if thought else []
    sources, files = step.get("sources", []), step.get("files", [])
    content = [
        *reasoning,
        *([{"type": "text", "text": step["text"]}] if step.get("text") else []),
        *({"type": "source", **source} for source in sources),
        *({"type": "file", **file} for file in files),
        *({"type": "tool-call", **call} for call in step.get("toolCalls", [])),
        *({"type": "tool-result", **result} for result in step.get("toolResults", [])),
    ]
    empty: StepResult = {
        "toolCalls": [],
        "toolResults": [],
        "warnings": [],
        "request": {},
        "response": {},
        "providerMetadata": {},
    }
    return {
        **empty,
        **step,
        "content": content,
        "reasoning": reasoning,
        "reasoningText": thought,
        "sources": sources,
        "files": files,
    }
