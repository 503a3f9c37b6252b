"""Answers the gateway: what an input guardrail says that runs beside the model call."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import orjson
from pydantic import ValidationError

from procession import hooks
from procession.args import AbortSignal, RequestContext
from procession.authors import is_ours
from procession.calls import Calls, Link
from procession.context import RunContext
from procession.errors import InvalidOptionsError, ProcessorError, TripWire, UnknownComponentError
from procession.message_list import MessageList
from procession.processor import Hook
from procession.returns import wrong
from procession_schemas import subjects
from procession_schemas.guard import GuardReply, GuardRequest
from procession_schemas.run import Failure
from procession_schemas.validation import misfit
from procession_schemas.work import WorkCommand
from procession_services.bus import oversized
from procession_services.bus.alive import beating
from procession_services.processor_host.executor import Executor
from procession_services.processor_host.job import id_maker, restore
from procession_services.processor_host.violations import violation_sink
from procession_services.processor_host.wire import wire_failure, wire_tripwire
from procession_services.runtime.clock import monotonic_ns, now_iso

log = logging.getLogger(__name__)
CHANGED: Final = "PARALLEL_PROCESSOR_CHANGED_INPUT"


class GuardAnswers:
    """Runs `processInput` of one processor on a conversation that it may not change."""

    def __init__(
        self, executor: Executor, publish: Callable[[str, bytes], Awaitable[None]], *, max_reply: int
    ) -> None:
        self._executor, self._publish, self._max_reply = executor, publish, max_reply

    async def answer(self, subject: str, body: bytes) -> bytes:
        """The reply to one request, failures included; the tenant is that of the subject."""
        try:
            request = GuardRequest.model_validate_json(body)
        except ValidationError as error:
            return _told("INTERNAL", f"the request cannot be read: {misfit(error).message}")
        _, _, tenant, *_ = subjects.parse(subject)
        try:
            async with beating(self._publish, request.beats):
                reply = await self._judge(request, request.command.but(tenant=tenant))
            told = reply.to_json()
        except BaseException as error:  # whatever it is, the gateway must not wait for it
            if is_ours(error):
                raise
            log.exception("the guard %s could not be run", request.guard.processor.instance)
            return _told("INTERNAL", f"the guard {request.guard.processor.instance} could not be run")
        if len(told) > self._max_reply:
            return _told("INTERNAL", f"the reply {oversized(len(told), self._max_reply)}")
        return told

    async def _judge(self, request: GuardRequest, command: WorkCommand) -> GuardReply:
        executor, reply = self._executor, GuardReply()
        ctx = await self._context(request, command)
        calls = Calls(clock=monotonic_ns, abort_signal=AbortSignal(), environment=executor.environment)
        calls.violation = violation_sink(executor.bus, command, ctx)
        try:
            [link] = await executor.instances.links([request.guard.processor], [request.guard.index])
            await _run(ctx, link, calls)
            reply.state = ctx.state(link.id)
        except TripWire as tripwire:
            reply.tripwire = wire_tripwire(tripwire)
        except (ProcessorError, UnknownComponentError, InvalidOptionsError) as error:
            reply.error = wire_failure(error)
        reply.reports = list(calls.reports.values())
        return reply

    async def _context(self, request: GuardRequest, command: WorkCommand) -> RunContext:
        messages = request.messages
        if messages is None:
            messages = await self._executor.environment.store(command.tenant).get(request.messages_key or "")
        if messages is None:
            raise LookupError(f"the conversation is not in Redis: {request.messages_key}")
        new_id = id_maker(command, f".g{request.guard.index}")
        ctx = restore(command, None, new_id)
        ctx.messages = MessageList.deserialize(messages, new_id=new_id, now=now_iso)
        ctx.request_context = RequestContext(request.request_context)
        ctx.tracing_context = request.tracing_context
        ctx.states[request.guard.processor.instance] = request.state
        return ctx


async def _run(ctx: RunContext, link: Link, calls: Calls) -> None:
    """Runs the hook; refuses changes of what the model reads, or of what later hooks do."""
    before = _fixed(ctx)
    await hooks.run_input(ctx, [link], calls)
    with calls.taking(ctx, link, Hook.INPUT):
        if _fixed(ctx) != before:
            text = "changed the messages or the request context, but beside the model it may only abort"
            raise wrong(link, Hook.INPUT, CHANGED, f"{text}; set parallel: false")
        ctx.check_states(Hook.INPUT.value)


def _fixed(ctx: RunContext) -> bytes:
    """What a guard must leave as it is; other values than JSON's count as a change of it."""
    return orjson.dumps([ctx.messages.serialize(), ctx.request_context, ctx.tracing_context], default=repr)


def _told(code: str, message: str) -> bytes:
    return GuardReply(error=Failure(code=code, message=message, hook=Hook.INPUT.value)).to_json()


BUSY: Final = _told("OVERLOADED", "input_processors has too many open requests")
"""The answer where too many wait already."""
