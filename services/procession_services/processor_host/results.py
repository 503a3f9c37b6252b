"""Compiles the final result of a run from its context (core.md 10.1)."""

from collections.abc import Iterable
from typing import Any, Final

from pydantic import ValidationError

from procession.context import UNKNOWN_USAGE, RunContext, is_rejected
from procession.processor import Hook
from procession.steps import with_media
from procession_schemas.messages import Message, Part, StepResult
from procession_schemas.run import Failure, RunResult
from procession_schemas.work import ResultOp

_ABOUT: Final = ("stepNumber", "finishReason", "usage", "model", "tripwire")
_BESIDE_ITS_WORDS: Final = ("files", "sources", "providerMetadata")


def compile_result(op: ResultOp, ctx: RunContext) -> RunResult:
    """The result as the client gets it, without text that was blocked (A-13) or could not be judged (D-1)."""
    blocked = op.status == "blocked"
    judged = ctx.final is not None  # by processOutputResult
    withheld = judged if blocked else op.error is not None and op.error.hook == Hook.OUTPUT_RESULT
    whole = with_media(ctx, ctx.steps)
    accepted = [] if withheld else [step for step in whole if not is_rejected(step)]
    steps = [_shown(step, blocked=blocked, withheld=withheld) for step in whole]
    last: StepResult = accepted[-1] if accepted else {}
    usage = ctx.usage if blocked else {**UNKNOWN_USAGE, "totalTokens": 0, **ctx.usage}
    text = "" if withheld else _final_text(op, ctx, steps)
    return RunResult(
        run_id=ctx.run_id,
        agent=ctx.agent,
        status=op.status,
        finish_reason=op.finish_reason or (ctx.response or {}).get("finishReason", "other"),
        text=text,
        usage=usage,
        total_usage=usage,
        warnings=last.get("warnings", []),
        provider_metadata=None if blocked else last.get("providerMetadata"),
        steps=steps,
        tool_calls=[] if blocked else _flat(accepted, "toolCalls"),
        tool_results=[] if blocked else _flat(accepted, "toolResults"),
        reasoning_text="".join(s.get("reasoningText", "") for s in accepted) or None,
        sources=[] if blocked else _flat(accepted, "sources"),
        files=[] if blocked else _flat(accepted, "files"),
        object=None if blocked or withheld or is_unjudged(op) else ctx.object,
        used_fallback_value=True if ctx.used_fallback else None,
        messages=_dicts(_told(ctx, withheld=withheld)),
        remembered_messages=_dicts(ctx.messages.get.remembered.db()),
        response=_response(ctx, last, withheld=withheld),
        tripwire=op.tripwire,
        error=_as_told(op, ctx),
        suspend_payload=op.suspend_payload,
        retries=ctx.retry_count,
    )


def is_unjudged(op: ResultOp) -> bool:
    """Whether a hook or a service has failed: an answer in hand is not told, since nobody has judged it (D-1)."""
    return op.status == "failed" and not op.finish


def _as_told(op: ResultOp, ctx: RunContext) -> Failure | None:
    """The run's error; where it is a model's, as the output chain let it through: what that took out stays out."""
    told, error = ctx.told_error, op.error
    if error is None or told is None or op.status != "failed" or not op.finish:
        return error
    said = told if isinstance(told, dict) else {"message": told}
    try:
        return Failure.model_validate({"code": error.code, **said})
    except ValidationError:  # an author's, which may be anything
        return Failure(code=error.code, message=str(said.get("message", "")))


def _shown(step: StepResult, *, blocked: bool, withheld: bool) -> dict[str, Any]:
    """A step as the client gets it: of a blocked run its words only, and not those where its end is `withheld`."""
    if withheld:
        about = {name: value for name, value in step.items() if name in _ABOUT}
        return {**about, "text": "", "toolCalls": [], "toolResults": []}
    untold = _BESIDE_ITS_WORDS if blocked else ("files",)  # which are long, and in the result already
    return {name: value for name, value in step.items() if name not in untold}


def _told(ctx: RunContext, *, withheld: bool) -> list[Message]:
    every = ctx.messages.get.all.db()
    return [m for m in every if ctx.messages.source_of(m["id"]) != "response"] if withheld else every


def _response(ctx: RunContext, last: StepResult, *, withheld: bool) -> dict[str, Any]:
    told = {"id": ctx.message_id, "modelId": ctx.config.model}
    if timestamp := last.get("response", {}).get("timestamp"):
        told["timestamp"] = timestamp
    return {**told, "messages": [] if withheld else ctx.messages.get.response.db()}


def _dicts(messages: list[Message]) -> list[dict[str, Any]]:
    return [dict(message) for message in messages]


def _final_text(op: ResultOp, ctx: RunContext, steps: list[dict[str, Any]]) -> str:
    """The run's text as processors have left it (R-OR-5), however the run ended; its steps are given theirs."""
    as_left = _as_left(ctx, steps)
    accepted = [(kept, step) for kept, step in zip(ctx.steps, steps, strict=True) if not is_rejected(kept)]
    texts = [step.get("text", "") for _, step in accepted]
    own, beside = _answers(ctx)
    if op.status == "cancelled":
        return "".join(texts) + _unaccepted(ctx, beside)
    last = beside or own
    if op.status != "finished" or last is None or not accepted:
        return "".join(texts)
    kept, step = accepted[-1]
    if last is own and as_left and "segment" in kept:
        return "".join(texts)
    # A processor's message at the end, marks of its own, or a step that has nothing in the run's message.
    processed = _text(last)
    step["text"] = processed.removeprefix("".join(texts[:-1]))
    return processed


def _as_left(ctx: RunContext, steps: list[dict[str, Any]]) -> bool:
    """Gives each accepted step the text that is left of it in the run's message.

    Where processors have taken that away between two steps, it was begun anew: what came before keeps its text. Where
    they have taken it away at the end, data that they wrote since do not bring it back. False where it has other steps
    than those, since a processor has put or taken a `step-start`: then all keep theirs.
    """
    segments = ctx.messages.response_steps()
    at = len(segments) - (2 if ctx.messages.attempt_has_parts else 1)
    left: list[tuple[dict[str, Any], str]] = []
    for kept, step in zip(reversed(ctx.steps), reversed(steps), strict=True):
        if "segment" not in kept:  # it was rejected, or has nothing there
            continue
        if segments and kept["segment"] != at:
            if left and kept["segment"] > at:
                break
            if left or not all(part["type"].startswith("data-") for parts in segments for part in parts):
                return False
            segments = []
        left.append((step, _joined(segments[at]) if segments else ""))
        at -= 1
    for step, text in left:
        step["text"] = text
    return True


def _answers(ctx: RunContext) -> tuple[Message | None, Message | None]:
    """The run's own message, and one behind it that is not: a processor's, or what came before a cancellation."""
    own: Message | None = None
    beside: Message | None = None
    for message in ctx.messages.get.response.db():
        if message["id"] == ctx.message_id:
            own, beside = message, None
        elif message["role"] == "assistant":
            beside = message
    return own, beside


def _unaccepted(ctx: RunContext, beside: Message | None) -> str:
    """What is left of the answer that was cancelled, or whose tools were."""
    if not ctx.unaccepted_text():
        return ""
    if ctx.messages.attempt_has_parts:
        return _joined(ctx.messages.response_steps()[-1])
    return _text(beside) if beside else ""


def _text(message: Message) -> str:
    return _joined(message["content"]["parts"])


def _joined(parts: Iterable[Part]) -> str:
    return "".join(part.get("text", "") for part in parts if part["type"] == "text")


def _flat(steps: list[StepResult], key: str) -> list[dict[str, Any]]:
    return [entry for step in steps for entry in step.get(key, [])]  # type: ignore[attr-defined]  # keys hold lists
