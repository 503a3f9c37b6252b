"""Runs the tool calls of a response: the runner of the operation `tools`."""

import asyncio
import copy
import hashlib
import logging
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import orjson

from procession.args import AbortSignal
from procession.authors import found_in, is_ours, raised
from procession.calls import Calls
from procession.context import RunContext
from procession.errors import ProcessorError, TripWire
from procession.json_values import NotJsonError, encoded, error_text
from procession.parts import AROUND_DEPTH, InvalidMessageError, copy_json
from procession.registry import Registry
from procession.tools import ToolContext, ToolSuspended
from procession_schemas.agent import ProcessorRef
from procession_schemas.base import JsonObject
from procession_schemas.work import StepFacts, ToolsOp, WorkCommand, WorkResult
from procession_services.processor_host.errors import Suspended
from procession_services.tools.calling import CallWriter, ToolResultError, invoke, to_json
from procession_services.tools.core.outcomes import Outcome, awaiting_approval, failed, suspended
from procession_services.tools.core.plan import Plan, Ready, Settled, plan
from procession_services.tools.execution import Ended, Execution, Executions, Round, Sink
from procession_services.tools.step_tools import StepTool, step_tools

_log = logging.getLogger(__name__)
CONCURRENCY: Final = 10
"""Calls of one response that run at the same time (R-TX-1)."""


class Job(Protocol):
    """What running tools needs of the command in hand."""

    command: WorkCommand
    ctx: RunContext
    calls: Calls
    result: WorkResult

    @property
    def abort_signal(self) -> AbortSignal:
        """Fires when the run is cancelled."""

    @property
    def registry(self) -> Registry:
        """What is installed in this process."""

    def sink(self, processors: list[ProcessorRef]) -> AbstractAsyncContextManager[Sink]:
        """Opens the way to the client through these processors."""


_EXECUTIONS: Final = Executions()


async def run_tools(op: ToolsOp, job: Job, executions: Executions = _EXECUTIONS) -> None:
    """Runs the calls and puts their outcomes into `ctx.outcomes`, in call order (R-CH-7).

    Outcomes that are there already, from a round that was suspended, stay and are not made again. Once the
    run is cancelled no further call is begun; those that run may end, and count (R-CX-2), for some seconds.

    Raises:
        Suspended: A call waits for a person; outcomes so far are in the context (R-AP-2).
        TripWire: An output processor aborted over a chunk that a tool wrote, or a tool raised it.
        ProcessorError: One failed over it; or a tool left what nobody can read.
        Cancelled: The run was cancelled, and a call did not end.
    """
    execution = executions.join(_round_key(op, job), lambda: Execution(_Round(op, job).run))
    job.abort_signal.on_abort(execution.cancel)
    try:
        ended = await execution.follow(lambda: job.sink(op.processors))
    finally:
        job.abort_signal.forget(execution.cancel)
    job.ctx.outcomes = copy_json(ended.outcomes, AROUND_DEPTH)
    if job.ctx.request_context is not ended.request_context:  # a delivery that joined
        job.ctx.request_context.clear()
        job.ctx.request_context.update(copy.deepcopy(ended.request_context))
    _left_readable(job, [outcome["toolName"] for outcome in ended.outcomes])
    job.result.facts = job.result.facts or StepFacts()
    job.result.facts.outcomes = len(ended.outcomes)
    if ended.waiting and not job.abort_signal.aborted:
        raise Suspended(copy.deepcopy(ended.waiting))


def _left_readable(job: Job, names: list[str]) -> None:
    """Refuses what tools have made of messages and request context, where nobody could read that any more."""
    who = "one of the tools " + ", ".join(repr(name) for name in dict.fromkeys(names))
    try:
        job.ctx.messages.check()
        encoded(job.ctx.request_context, "requestContext")
    except InvalidMessageError as error:
        told = f"{who} left a message that cannot be read: {error}"
        raise ProcessorError(told, code=error.code, name=type(error).__name__) from error
    except NotJsonError as error:
        told = f"{who} left what is not JSON: {error}"
        raise ProcessorError(told, code="CONTEXT_NOT_JSON", name=type(error).__name__) from error


def cancel_tools(tenant: str, run: str) -> None:
    """Tells the calls of a run, where there are any, that it was cancelled."""
    _EXECUTIONS.cancel(tenant, run)


def _round_key(op: ToolsOp, job: Job) -> Round:
    """What makes it the same round, also as a command that was sent anew because Redis may have forgotten some."""
    asked = orjson.dumps([(job.ctx.response or {}).get("toolCalls", []), op.decisions])
    return job.command.tenant, job.command.run, job.command.version, hashlib.sha256(asked).digest()


class _Round:
    """The calls of one response, as far as they get before one of them waits for a person."""

    def __init__(self, op: ToolsOp, job: Job) -> None:
        self._op = op
        self._ctx = job.ctx
        self._environment = job.calls.environment
        self._tools = step_tools(job.registry, job.ctx.config)
        one_by_one = op.require_approval or any(tool.may_wait for tool in self._tools.values())
        self._gate = asyncio.Semaphore(1 if one_by_one else CONCURRENCY)
        self._waiting: list[JsonObject] = []

    async def run(self, execution: Execution) -> Ended:
        """Runs what can run; a tripwire that a tool raises is raised when the other calls have ended."""
        plans = plan(
            (self._ctx.response or {}).get("toolCalls", []),
            {name: tool.offer for name, tool in self._tools.items()},
            decisions=self._op.decisions,
            done=self._ctx.outcomes,
        )
        running = (self._one(each, execution) for each in plans)
        results = await asyncio.gather(*running, return_exceptions=True)
        outcomes: list[Outcome] = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            if result is not None:
                outcomes.append(result)
        return Ended(outcomes, self._waiting, self._ctx.request_context)

    async def _one(self, call: Plan, execution: Execution) -> Outcome | None:
        """The outcome of a call; None when it is not ours, waits, or comes after one that waits."""
        if isinstance(call, Settled):
            return call.outcome
        if not isinstance(call, Ready):
            return None
        async with self._gate:
            if self._waiting or execution.signal.aborted:
                return None
            try:
                return await self._approved(call, execution)
            except TripWire as tripwire:
                tripwire.complete(tripwire.processor_id or call.tool)
                execution.signal.abort()
                raise

    async def _approved(self, call: Ready, execution: Execution) -> Outcome | None:
        tool, context = self._tools[call.tool], self._ctx.request_context
        required = self._op.require_approval
        if not call.approved and await tool.needs_approval(call.begun["args"], context, required=required):
            self._waiting.append(awaiting_approval(call.begun))
            return None
        return await self._call(tool, call, execution)

    async def _call(self, tool: StepTool, call: Ready, execution: Execution) -> Outcome | None:
        writer = CallWriter(execution, call.begun["toolCallId"], call.tool)
        context, args = self._context(call, execution, writer), copy_json(call.begun["args"])
        try:
            return {**call.begun, **await invoke(tool.tool, args, context, tool.ref.timeout)}
        except BaseException as error:  # R-TX-4: a tool's failure is its outcome
            decision = found_in(error, TripWire) or found_in(error, ToolSuspended)
            try:
                if isinstance(decision, TripWire):
                    raise decision from decision.__cause__
                if decision:
                    return self._suspended(tool, call, decision)
            finally:
                del decision  # no circle with its traceback (ADR 23)
            if is_ours(error):
                raise
            return self._failed(call, error)
        finally:
            writer.close()

    def _context(self, call: Ready, execution: Execution, writer: CallWriter) -> ToolContext:
        ctx = self._ctx
        signal = AbortSignal()
        execution.signal.on_abort(signal.abort)
        return ToolContext(
            tool_call_id=call.begun["toolCallId"],
            tool_name=call.tool,
            run_id=ctx.run_id,
            tenant=ctx.tenant,
            writer=writer,
            request_context=ctx.request_context,
            abort_signal=signal,
            tracing_context=ctx.tracing_context,
            messages=list(ctx.messages.get.all.db()),
            resume_data=call.resume_data,
            environment=self._environment,
        )

    def _suspended(self, tool: StepTool, call: Ready, suspension: ToolSuspended) -> Outcome | None:
        schema = tool.tool.resume_schema
        if schema is None:
            text = (
                f"The tool {call.tool!r} suspends, so it must declare a `resume_schema`; {{}} takes any data."
            )
            return failed(call.begun, "ToolSuspendedError", text)
        try:
            self._waiting.append(suspended(call.begun, to_json(suspension.payload), schema))
        except ToolResultError as error:
            return self._failed(call, error)
        return None

    def _failed(self, call: Ready, error: BaseException) -> Outcome:
        _log.warning("tool %s of run %s raised %s", call.tool, self._ctx.run_id, raised(error))
        return failed(call.begun, type(error).__name__, error_text(error))
