"""The operations that any service can run on a run's context."""

from datetime import timedelta
from functools import partial
from typing import Any, Final, Literal

from procession import hooks
from procession.args import APIError, RequestContext, Writer
from procession.calls import Link
from procession.context import UNKNOWN_USAGE, counted
from procession.errors import BrokenComponentError, InvalidOptionsError, TripWire, UnknownComponentError
from procession.messages import InvalidMessageError
from procession.processor import Hook
from procession.response import local_calls
from procession.steps import current_step, for_hooks
from procession.writers import TurnWriter
from procession_schemas import work
from procession_schemas.chunks import Chunk
from procession_schemas.memory import MEMORY_KEY
from procession_schemas.messages import StepResult
from procession_services.processor_host.errors import Stopped
from procession_services.processor_host.factories import called_in_time
from procession_services.processor_host.fitting import fitting_finish
from procession_services.processor_host.job import Job, OpRunner
from procession_services.processor_host.results import compile_result, is_unjudged
from procession_services.processor_host.wire import hook_failure
from procession_services.runs.arrays import place
from procession_services.runtime.clock import iso, now

_BEHIND_CHUNKS: Final = frozenset({Hook.OUTPUT_STEP, Hook.OUTPUT_RESULT})
"""Hooks whose conversation has what was written in the stream and in hooks before."""


async def open_run(op: work.OpenOp, job: Job) -> None:
    """Builds the conversation and the request context from the request (R-SY-1)."""
    messages = job.ctx.messages
    if op.memory is not None:
        messages.thread_id, messages.resource_id = op.memory["thread"]["id"], op.memory["resourceId"]
    for text in op.instructions:
        messages.add_system(text)
    _add(job, op.context, "context")
    _add(job, op.input, "input")
    if op.waited:
        _say_now(job)
    for text in op.system:
        messages.add_system(text, "user-provided")
    job.ctx.request_context = RequestContext(op.request_context)
    job.ctx.tracing_context = op.tracing_context
    if op.memory is not None:
        job.ctx.request_context[MEMORY_KEY] = op.memory


def _add(job: Job, given: list[Any], field: Literal["context", "input"]) -> None:
    try:
        job.ctx.messages.add(given, field)
    except InvalidMessageError as error:
        raise InvalidMessageError(error.field.replace("messages", field, 1), error.problem) from error


def _say_now(job: Job) -> None:
    """What the run brought comes behind what was said while it waited, whenever it was written."""
    at = now()
    for number, message in enumerate(job.ctx.messages.get.input.db()):
        message["createdAt"] = iso(at + timedelta(milliseconds=number))


async def arrays(op: work.ArraysOp, job: Job) -> None:
    """Has the output and error arrays of this run made (R-CF-3)."""
    job.result.arrays = {}
    for kind, factory in op.factories.items():
        refs = await called_in_time(factory, job.registry, job.ctx.request_context, kind)
        placed = place(kind, refs, job.registry)
        job.result.arrays[kind] = [each.to_dict() for each in placed]


async def baseline(_op: work.BaselineOp, job: Job) -> None:
    """Freezes the system messages that every step starts from."""
    job.ctx.messages.freeze_baseline()


async def begin(op: work.BeginOp, job: Job) -> None:
    """Sets the context up for an attempt, or for the next model in one (R-FB-2)."""
    ctx = job.ctx
    goes_on = ctx.response is not None and not ctx.response.get("accepted")
    ctx.step_number, ctx.retry_count = op.step, op.retry_count
    ctx.config = op.config
    ctx.prompt = ctx.cached = ctx.response = None
    ctx.outcomes = []
    ctx.messages.reset_system(op.feedback)
    if not goes_on:
        ctx.messages.begin_response(ctx.message_id)


async def hook(op: work.HookOp, job: Job) -> None:
    """Runs one hook over its processors; what they write later has no place any more."""
    kind = Hook(op.hook)
    if kind in _BEHIND_CHUNKS:
        keep_pending(job)
    async with job.writer([] if kind is Hook.OUTPUT_RESULT else op.stream_processors) as writer:
        await _hook(op, kind, job, writer)
    if kind is Hook.OUTPUT_RESULT:
        keep_pending(job)


async def _hook(op: work.HookOp, kind: Hook, job: Job, writer: Writer) -> None:
    ctx, calls = job.ctx, job.calls
    links = await job.instances.links(op.processors, op.places or _side_by_side(op))
    match kind:
        case Hook.INPUT:
            await hooks.run_input(ctx, links, calls)
        case Hook.INPUT_STEP:
            await hooks.run_input_step(ctx, links, calls, writer, partial(_complete_tools, job))
        case Hook.LLM_REQUEST:
            await hooks.run_llm_request(ctx, links, calls, writer)
        case Hook.LLM_RESPONSE:
            await hooks.run_llm_response(ctx, links, calls, writer)
        case Hook.OUTPUT_STEP:
            await hooks.run_output_step(ctx, links, calls, writer)
        case Hook.OUTPUT_RESULT:
            reason = op.finish_reason or (ctx.response or {}).get("finishReason", "other")
            await hooks.run_output_result(ctx, links, calls, writer, reason)
        case Hook.API_ERROR:
            error = api_error((ctx.response or {}).get("error") or {})
            job.result.retry = await hooks.run_api_error(ctx, links, calls, writer, error)
        case _:
            raise ValueError(f"{op.hook} is not run by a hook operation")


def _side_by_side(op: work.HookOp) -> list[int]:
    return list(range(op.offset, op.offset + len(op.processors)))


def api_error(error: dict[str, Any]) -> APIError:
    """The provider's error as error processors see it, its cause chain included."""
    cause = error.get("cause")
    return APIError(
        message=error.get("message", ""),
        name=error.get("name", "APICallError"),
        status_code=error.get("statusCode"),
        is_retryable=error.get("isRetryable"),
        code=error.get("code"),
        type=error.get("type"),
        kind=error.get("kind"),
        response_headers=error.get("responseHeaders") or {},
        response_body=error.get("responseBody"),
        cause=api_error(cause) if isinstance(cause, dict) else None,
        data=error,
    )


def _complete_tools(job: Job, link: Link) -> None:
    """Fills in description and schema of tools that a step hook added by id.

    Raises:
        ProcessorError: There is no such tool, or not with these options.
    """
    for name, ref in job.ctx.config.tools.items():
        if ref.parameters is None:
            try:
                tool = job.registry.tool(ref.id).build(ref.options)
            except (UnknownComponentError, BrokenComponentError, InvalidOptionsError) as error:
                raise hook_failure(error, link.id, Hook.INPUT_STEP.value) from error
            update = {"description": ref.description or tool.description, "parameters": tool.parameters}
            job.ctx.config.tools[name] = ref.but(**update)


async def unless_tools(_op: work.UnlessToolsOp, job: Job) -> None:
    """Ends the command when tools have to run; raises Stopped."""
    if local_calls((job.ctx.response or {}).get("toolCalls", [])):
        raise Stopped


async def if_outcomes(_op: work.IfOutcomesOp, job: Job) -> None:
    """Ends the command when a call has no outcome, or the run was cancelled meanwhile; raises Stopped."""
    calls = local_calls((job.ctx.response or {}).get("toolCalls", []))
    if len(job.ctx.outcomes) < max(1, len(calls)) or job.abort_signal.aborted:
        raise Stopped


async def emit(op: work.EmitOp, job: Job) -> None:
    """Sends chunks to the client as they are."""
    job.emit(*op.chunks)  # type: ignore[arg-type]  # chunks from the wire


async def stream(op: work.StreamOp, job: Job) -> None:
    """Sends chunks through the output chain, and keeps what that has made of an error."""
    async with job.sink(op.processors) as sink:
        await sink.send(op.chunks, last=True)  # type: ignore[arg-type]  # chunks from the wire
    job.ctx.told_error = sink.told_error


async def tool_results(op: work.ToolResultsOp, job: Job) -> None:
    """Records what the tools gave, in call order: hooks, conversation, stream (R-CH-7, R-TR)."""
    ctx = job.ctx
    links = await job.instances.links(op.result_processors, op.places)
    again = {c["toolCallId"]: c for c in (ctx.response or {}).get("toolCalls", []) if c.get("repeated")}
    keep_pending(job)
    async with (
        job.sink(op.processors) as sink,
        TurnWriter(lambda chunk: sink.send([chunk])) as writer,
    ):
        for outcome in ctx.outcomes:
            call_id = outcome["toolCallId"]
            base = {"toolCallId": call_id, "toolName": outcome["toolName"], "args": outcome.get("args")}
            chunk: Chunk
            if call_id in again:
                ctx.messages.begin_again(again[call_id])
            if "result" in outcome:
                await hooks.run_tool_result(ctx, links, job.calls, writer, outcome)
            if "result" in outcome:
                ctx.messages.set_tool_result(call_id, outcome["result"])
                if "modelOutput" in outcome:
                    _set_model_output(job, call_id, outcome["modelOutput"])
                chunk = {"type": "tool-result", "payload": {**base, "result": outcome["result"]}}
            elif "denied" in outcome:
                denied = outcome["denied"]
                ctx.messages.set_tool_denied(call_id, denied.get("reason") or "declined")
                payload = {**base, "approval": denied.get("approval", {"approved": False})}
                chunk = {"type": "tool-output-denied", "payload": payload}
            else:
                error = outcome["error"]
                ctx.messages.set_tool_error(call_id, error["message"])
                chunk = {"type": "tool-error", "payload": {**base, "error": error}}
            await sink.send([chunk], last=outcome is ctx.outcomes[-1])
    for outcome in ctx.outcomes:
        if "result" in outcome:
            outcome.update(sink.rewritten.get(outcome["toolCallId"], {}))


def _set_model_output(job: Job, call_id: str, output: Any) -> None:
    for message in reversed(job.ctx.messages.get.all.db()):
        for part in message["content"]["parts"]:
            invocation: Any = part.get("toolInvocation")
            if invocation and invocation["toolCallId"] == call_id:
                invocation["modelOutput"] = output
                return


async def stop(op: work.StopOp, job: Job) -> None:
    """Asks the stop conditions, up to the first that says yes (R-LP-3)."""
    steps = for_hooks(job.ctx, job.ctx.accepted_steps())
    for ref in op.conditions:
        job.result.stop = await job.registry.stops(ref.id, steps, ref.options)
        if job.result.stop:
            return


async def reject(op: work.RejectOp, job: Job) -> None:
    """Takes the attempt's output back; it stays visible only as an entry of the result's steps (R-AB-28, R-AB-32)."""
    ctx = job.ctx
    response = ctx.response or {}
    ctx.messages.rollback_response(failed=op.tripwire is None)
    if op.listed:
        step: StepResult = {
            "stepNumber": ctx.step_number,
            "text": "",
            "toolCalls": current_step(ctx)["toolCalls"],
            "toolResults": [],
            "finishReason": op.finish_reason,
            "usage": response.get("usage", {}),
            "model": ctx.config.model,
        }
        if op.tripwire:
            step["tripwire"] = op.tripwire.model_dump(by_alias=True, exclude_none=True)
        ctx.steps.append(step)
    ctx.response, ctx.outcomes, ctx.pending_parts = None, [], []


async def accept(_op: work.AcceptOp, job: Job) -> None:
    """Counts the attempt as a step."""
    ctx = job.ctx
    ctx.steps.append(current_step(ctx))
    ctx.messages.accept_response()
    if ctx.response is not None:
        ctx.response["accepted"] = True


async def step_finish(op: work.StepFinishOp, job: Job) -> None:
    """Sends `step-finish` with what the attempt used.

    A guard that judges all that has come rejects a rejected attempt once more at its end: that costs no other attempt
    (R-AB-23), and the client is told of the end all the same, without the text.
    """
    response = job.ctx.response or {}
    reason = op.reason or response.get("finishReason", "other")
    warnings = response.get("warnings", [])
    result: dict[str, Any] = {"reason": reason, "isContinued": op.is_continued, "warnings": warnings}
    if op.tripwire:
        result["retryReason"] = op.tripwire.reason
        result["retryProcessorId"] = op.tripwire.processor_id
        if op.tripwire.metadata is not None:
            result["retryMetadata"] = op.tripwire.metadata
    output = {"text": response.get("text", ""), "usage": {**UNKNOWN_USAGE, **response.get("usage", {})}}
    payload = {
        "messageId": job.ctx.message_id,
        "stepResult": result,
        "output": output,
        "metadata": response.get("metadata", {}),
    }
    chunk = fitting_finish({"type": "step-finish", "payload": payload}, job.outbox.takes)
    try:
        async with job.sink(op.processors) as sink:
            await sink.send([chunk], last=True)
    except TripWire as tripwire:
        if op.reason != "retry" or not tripwire.retry:
            raise
        payload["output"] = {**output, "text": ""}
        job.emit(fitting_finish({"type": "step-finish", "payload": payload}, job.outbox.takes))
    keep_pending(job)


async def fail(op: work.FailOp, job: Job) -> None:
    """Counts the attempt as a failed step and notes the failure on the message, so that memory keeps it (R-AE-14)."""
    keep_pending(job)
    await accept(work.AcceptOp(), job)
    job.ctx.messages.add_error_part(op.error.name or "Error", op.error.message)


async def result(op: work.ResultOp, job: Job) -> None:
    """Compiles the result and ends the stream.

    Raises:
        ProcessorError: What hooks have left in the context is not JSON.
    """
    keep_pending(job)
    if is_unjudged(op):
        job.ctx.messages.rollback_response()
    if job.calls.reports:  # else it is as it has travelled
        job.to_json()
    final = compile_result(op, job.ctx)
    job.result.result = final
    if op.finish:
        payload = {
            "stepResult": {"reason": final.finish_reason, "isContinued": False},
            "output": {"text": final.text, "usage": counted(final.usage)},
            "messageId": job.ctx.message_id,
        }
        job.outbox.put(fitting_finish({"type": "finish", "payload": payload}, job.outbox.takes))
    await job.outbox.flush(end=True)


def keep_pending(job: Job) -> None:
    """Moves data parts that were written meanwhile to the assistant message."""
    if job.ctx.pending_parts:
        job.ctx.messages.append_response_parts(job.ctx.pending_parts)
        job.ctx.pending_parts = []


RUNNERS: dict[str, OpRunner] = {
    "open": open_run,
    "arrays": arrays,
    "baseline": baseline,
    "begin": begin,
    "hook": hook,
    "emit": emit,
    "stream": stream,
    "toolResults": tool_results,
    "ifOutcomes": if_outcomes,
    "stop": stop,
    "reject": reject,
    "accept": accept,
    "unlessTools": unless_tools,
    "stepFinish": step_finish,
    "fail": fail,
    "result": result,
}
__all__ = ["RUNNERS", "api_error", "keep_pending"]
