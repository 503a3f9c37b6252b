"""Compiles the final result of a run from its context (core.md 10.1)."""

from typing import Any

from procession.context import RunContext, is_rejected
from procession_schemas.messages import StepResult
from procession_schemas.run import RunResult
from procession_schemas.work import ResultOp


def compile_result(op: ResultOp, ctx: RunContext) -> RunResult:
    """The result as the client gets it; a blocked run never shows blocked text (A-13)."""
    steps = [dict(step) for step in ctx.steps]
    response = ctx.messages.get.response.db()
    text = ctx.text()
    if op.status in ("failed", "cancelled") and ctx.response and not ctx.response.get("accepted"):
        text += ctx.response.get("text", "")
    if ctx.final is not None and op.status == "finished":
        processed = "".join(_text(message) for message in response)
        if processed != text:
            text = processed
            for step in reversed(steps):
                if not is_rejected(step):  # type: ignore[arg-type]  # a copy of a StepResult
                    step["text"] = processed
                    break
    accepted = [s for s in ctx.steps if not is_rejected(s)]
    blocked = op.status == "blocked"
    return RunResult(
        run_id=ctx.run_id,
        agent=ctx.agent,
        status=op.status,
        finish_reason=op.finish_reason,
        text=text,
        usage=ctx.usage,
        steps=steps,
        tool_calls=_flat(accepted, "toolCalls"),
        tool_results=_flat(accepted, "toolResults"),
        reasoning_text="".join(s.get("reasoningText", "") for s in accepted) or None,
        sources=_flat(accepted, "sources"),
        files=_flat(accepted, "files"),
        object=None if blocked else ctx.object,
        used_fallback_value=True if ctx.used_fallback else None,
        messages=ctx.messages.get.all.db(),
        response={"id": ctx.message_id, "modelId": ctx.config.model, "messages": response},
        tripwire=op.tripwire,
        error=op.error,
        suspend_payload=op.suspend_payload,
        retries=ctx.retry_count,
    )


def _text(message: Any) -> str:
    return "".join(p.get("text", "") for p in message["content"]["parts"] if p.get("type") == "text")


def _flat(steps: list[StepResult], key: str) -> list[dict[str, Any]]:
    return [entry for step in steps for entry in step.get(key, [])]  # type: ignore[attr-defined]  # keys hold lists
