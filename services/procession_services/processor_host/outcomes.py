"""What an output replica says of a stream, taken into the command that sent it."""

from typing import Any

import orjson

from procession.args import RequestContext
from procession.errors import ProcessorError, TripWire
from procession.message_list import MessageList
from procession_schemas.run import HookReport
from procession_schemas.work import WorkResult
from procession_services.processor_host.job import Job
from procession_services.runtime.clock import now_iso


def take_outcome(job: Job, outcome: dict[str, Any]) -> None:
    """Puts what the output chain changed into the run's context."""
    ctx = job.ctx
    reports = [HookReport.of(report) for report in outcome.get("reports", ())]
    _take_stream(job, outcome, reports)
    if "kind" not in outcome:
        return  # there was no stream
    for name, state in outcome["states"].items():
        live = ctx.state(name)  # a hook that waits for its writer has this very dict
        live.clear()
        live.update(state)
    _take_context(ctx.request_context, outcome)
    if outcome["messages"] and outcome["kind"] == "model":
        ctx.messages = MessageList.deserialize(outcome["messages"], new_id=job.new_id, now=now_iso)
    if changes := outcome.get("messageChanges"):
        ctx.messages.take_changes(changes)
    if outcome["logged"]:
        ctx.stream_ids.append(outcome.get("fence", 0))
    if outcome["kind"] == "side":
        ctx.pending_parts.extend(outcome["parts"])


def _take_context(context: RequestContext, outcome: dict[str, Any]) -> None:
    """Takes what the chain has changed; where the replica does not name the changes, it has sent everything."""
    told = outcome["requestContext"]
    for key in outcome.get("contextChanges", [*context, *told]):
        if key in told:
            context[key] = told[key]
        else:
            context.pop(key, None)


def _take_stream(job: Job, outcome: dict[str, Any], reports: list[HookReport]) -> None:
    """Goes on behind the chunks that the replica has sent, and adds its tallies to ours."""
    job.outbox.go_on_behind(outcome["outSeq"], outcome.get("fence", 0))
    job.result.replica = outcome["replica"]
    job.calls.add_reports(reports)


def take_lent(job: Job, outcome: dict[str, Any]) -> WorkResult:
    """Takes over what the replica did behind the stream; returns the result of those operations."""
    result = WorkResult.of(outcome["lent"])
    _take_stream(job, outcome, result.reports)
    if (left := outcome.get("contextText")) is not None:
        job.left = left.encode()
    elif (context := outcome.get("context")) is not None:  # too long, so that it failed
        job.left = orjson.dumps(context)
    job.parts = outcome.get("log", "").encode()
    return result


def raise_outcome(outcome: dict[str, Any] | None) -> None:
    """Raises what ended the stream early, where it was a processor.

    Raises:
        TripWire: A processor aborted.
        ProcessorError: A processor failed.
    """
    if not outcome:
        return
    if tripwire := outcome.get("tripwire"):
        raise TripWire(
            tripwire["reason"],
            retry=bool(tripwire.get("retry")),
            metadata=tripwire.get("metadata"),
            processor_id=tripwire["processorId"],
            told=True,
        )
    if error := outcome.get("error"):
        raise ProcessorError(
            error["message"],
            processor_id=error.get("processorId") or "",
            hook=error.get("hook") or "",
            code=error["code"],
            name=error.get("name") or "Error",
        )
