"""Takes a model's answer into its run: done by the replica that has streamed it, or else by the gateway."""

from typing import Any

from procession.context import RunContext, add_usage
from procession.response import REPLAYED, local_calls
from procession.structured import parse_object, schema_problem
from procession_schemas.chunks import Chunk
from procession_schemas.work import StepFacts
from procession_services.processor_host.errors import ModelFailed
from procession_services.processor_host.job import Job


def take_response(ctx: RunContext, response: dict[str, Any], parts: list[Any]) -> list[Any]:
    """Makes `response` that of the attempt in hand; gives the parts of its message, data that waited for one included.

    `response` is what `ResponseCollector.to_dict` tells, and becomes the context's own.
    """
    made = response.pop("object", None) or {}
    ctx.object, ctx.used_fallback = made.get("object"), bool((made.get("metadata") or {}).get("fallback"))
    cached = ctx.cached
    response["fromCache"] = cached is not None
    response |= {key: told for key in REPLAYED if (told := (cached or {}).get(key)) is not None}
    ctx.usage = add_usage(ctx.usage, response["usage"])
    ctx.prompt, ctx.response = None, response
    waiting, ctx.pending_parts = ctx.pending_parts, []
    return [*waiting, *parts]


def facts_of(response: dict[str, Any], *, started: bool) -> StepFacts:
    """What the run's reducer needs to know of a response."""
    return StepFacts(
        finish_reason=response["finishReason"],
        tool_calls=len(local_calls(response["toolCalls"])),
        started=started,
    )


def take_answer(job: Job, response: dict[str, Any], parts: list[Any]) -> None:
    """Takes a whole answer into the conversation.

    Raises:
        ModelFailed: It is not the object that was asked for, and the request is strict about it.
    """
    ctx = job.ctx
    ctx.messages.append_response_parts(
        take_response(ctx, response, parts), metadata=metadata_of(ctx.config.model)
    )
    job.result.facts = facts_of(response, started=True)
    _structure(job, response)
    if ctx.object is not None:
        ctx.messages.append_response_parts([], metadata={"structuredOutput": ctx.object})


def metadata_of(model: str) -> dict[str, Any]:
    """What a message keeps of the model that wrote it."""
    provider, _, name = model.partition("/")
    return {"modelId": name or model, "provider": provider if name else ""}


def _structure(job: Job, response: dict[str, Any]) -> None:
    """Validates a structured answer (R-SO-2, R-SO-3)."""
    structured = job.ctx.config.structured_output
    if structured is None or response["toolCalls"] or response["finishReason"] == "tool-calls":
        return
    value, problem = parse_object(response["text"], structured.schema_)
    if problem is None:
        job.ctx.object = value
        job.emit({"type": "object-result", "object": value})
    elif structured.error_strategy == "fallback":
        job.ctx.object, job.ctx.used_fallback = structured.fallback_value, True
        chunk: Chunk = {
            "type": "object-result",
            "object": structured.fallback_value,
            "metadata": {"fallback": True},
        }
        job.emit(chunk)
    elif structured.error_strategy == "strict":
        error = {"name": "StructuredOutputError", "message": problem, "kind": "structured-output"}
        set_by = job.ctx.config.set_by.get("structuredOutput")
        if set_by and schema_problem(structured.schema_):
            error["setBy"] = set_by
        response["error"], response["finishReason"] = error, "error"
        raise ModelFailed(error)
