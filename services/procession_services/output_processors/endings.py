"""What the sender of a stream is told when it has ended: what came of it, or why it has ended early."""

import logging
from typing import Any

import orjson

from procession.authors import said
from procession.context import RunContext
from procession.errors import InvalidOptionsError, ProcessorError, TripWire, UnknownComponentError
from procession.json_values import error_text
from procession.processor import Hook
from procession_services.output_processors.opening import Session
from procession_services.processor_host.job import Job
from procession_services.processor_host.outbox import UnsendableError
from procession_services.processor_host.wire import wire_failure, wire_tripwire

log = logging.getLogger(__name__)


def outcome(session: Session, *, logged: bool) -> dict[str, Any]:
    """What came of a stream; `logged`: its sender, or we, log what its processors have received."""
    ctx, job = session.ctx, session.job
    if job is not None:
        told: dict[str, Any] = {"logged": logged}
        if job.result.result is None or job.result.result.status == "suspended":
            if logged:
                ctx.stream_ids.append(session.outbox.fence)
            told |= _left(session, job)
        return told | {"lent": orjson.Fragment(job.result.to_json()), "usage": session.collector.usage}
    names = {link.id for link in session.chain.links}
    return {
        "logged": logged,
        "kind": session.kind,
        "states": {name: ctx.states[name] for name in names if name in ctx.states},
        "requestContext": ctx.request_context,
        "response": session.collector.to_dict(),
        "parts": session.collector.parts,
        "reports": [r.to_dict() for r in session.calls.reports.values()],
        "rewritten": session.results.rewritten(),
        "toldError": session.collector.error,
        **_changes(ctx, session.lent),
    }


def _left(session: Session, job: Job) -> dict[str, Any]:
    """The context as we leave it; as text where the sender only stores it, so that neither of us parses it.

    One that is too long is told as it is: the command has failed for that. So is one that is not JSON, and telling it
    fails (`unsendable`).
    """
    body = job.context_body()
    if body is None:
        return {"context": job.ctx.to_dict()}
    return {"contextText": body.decode()} if session.as_text else {"context": orjson.Fragment(body)}


def _changes(ctx: RunContext, lent: dict[str, Any] | None) -> dict[str, Any]:
    """What the chain made of the conversation; of a side stream its changes only, since the sender makes others."""
    if lent is None:
        return {"messages": ctx.messages.serialize()}
    was, now = lent["requestContext"], ctx.request_context
    return {
        "messages": None,
        "contextChanges": [
            key for key in {**was, **now} if (key in was, was.get(key)) != (key in now, now.get(key))
        ],
        "messageChanges": ctx.messages.changes_since(lent["messages"]),
    }


def given_back(run: str, error: Exception) -> dict[str, Any]:
    """What is said of a stream that has not ended, since something is away that it needs: to be asked for again."""
    log.warning("giving back a stream of run %s: %s", run, said(error))
    return {"unknown": True, "away": said(error)}


def ending(error: BaseException) -> dict[str, Any]:
    """What ended a stream early; of what has no JSON form, only who raised it."""
    try:
        if isinstance(error, TripWire):
            told = {"tripwire": wire_tripwire(error).model_dump(by_alias=True, exclude_none=True)}
        else:
            told = {"error": _failure(error)}
        orjson.dumps(told)
    except Exception:  # noqa: BLE001 - a text or metadata of an author's, which may be anything
        kind = type(error).__name__
        place = {"processorId": getattr(error, "processor_id", ""), "hook": getattr(error, "hook", "")}
        place = {
            name: value for name, value in place.items() if isinstance(value, str) and value.isprintable()
        }
        code = "PROCESSOR_FAILED" if place.get("processorId") else "INTERNAL"
        text = f"raised a {kind} whose text or metadata is not JSON"
        told = {"error": {"code": code, "message": text, "name": kind, **place}}
    return told


def _failure(error: BaseException) -> dict[str, Any]:
    if isinstance(error, ProcessorError | UnknownComponentError | InvalidOptionsError):
        return wire_failure(error).model_dump(by_alias=True, exclude_none=True)
    return {
        "code": "INTERNAL",
        "message": f"the output chain failed with a {type(error).__name__}: {error_text(error)}",
        "name": type(error).__name__,
    }


def unsendable(session: Session, error: TypeError) -> ProcessorError:
    """The error for a stream whose outcome is not JSON; it names the hook, if only one can have done it."""
    failure = ProcessorError(f"the outcome of a stream is not JSON: {error}", code="CONTEXT_NOT_JSON")
    try:
        session.ctx.to_json()
    except ProcessorError as found:
        failure = found
    session.calls.blame(failure)
    return failure


def explained(session: Session, error: UnsendableError) -> ProcessorError:
    """The error about a chunk that cannot be sent, with the stream hook that has made it, or those that may have."""
    if spoiled := session.chain.spoiled(error):
        return spoiled
    is_behind = session.behind is not None and error.number >= session.behind
    if is_behind or error.kind == "object":  # which is made of texts that have come through
        return error
    makers = session.chain.makers(error.kind, session.outbox.takes)
    several = f"; it was made by one of {', '.join(map(repr, makers))}" if makers[1:] else ""
    return ProcessorError(
        f"{error}{several}",
        processor_id="" if several else makers[0],
        hook=Hook.OUTPUT_STREAM.value,
        code=error.code,
    )
