"""Input guardrails beside the model call: asked while the provider answers, whose answer waits for their verdict."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Final

from pydantic import ValidationError

from procession.authors import is_cancelled
from procession.errors import ProcessorError, TripWire
from procession.processor import Hook
from procession_schemas.agent import ProcessorRef
from procession_schemas.chunks import Chunk
from procession_schemas.guard import GuardReply, GuardRequest
from procession_schemas.work import Guard
from procession_services.bus import Bus, Inbox, oversized
from procession_services.bus.alive import first_answer
from procession_services.processor_host.job import Job
from procession_services.processor_host.outcomes import raise_outcome

log = logging.getLogger(__name__)
SERVICE: Final = "input_processors"
SECONDS: Final = 60.0
"""The timeout of a guard that has none of its own."""
HELD: Final = 1024
"""Reads of an answer that may wait for the verdict; then the provider has to wait."""
_GRACE_SECONDS: Final = 1.0
"""How much later than the guard's own service we give up: it knows the guard's policy."""
_KEPT_SECONDS: Final = 300.0
_Held = asyncio.Queue[list[Chunk] | BaseException | None]


class Guards:
    """Asks the guards of model operations."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def hold(
        self,
        guards: list[Guard],
        job: Job,
        source: AsyncIterator[list[Chunk]],
        refused: Callable[[list[Chunk]], None],
    ) -> AsyncIterator[list[Chunk]]:
        """Reads an answer and asks the guards meanwhile; gives nothing out before all of them have agreed.

        `refused` gets what was read of an answer that is not to be seen, after its source was closed: a guard objects,
        or the run was cancelled.

        Raises:
            TripWire: A guard aborted; of several, the first one in the array.
            ProcessorError: One failed whose policy is `fail`, changed what it must not, or gave no verdict in time.
        """
        held = _Held(HELD)
        reading = asyncio.create_task(_read(source, held))
        try:
            try:
                await self._verdict(guards, job)
            except (TripWire, ProcessorError, asyncio.CancelledError) as error:
                await _ended(reading)
                if not isinstance(error, asyncio.CancelledError) or job.abort_signal.aborted:
                    refused(_chunks(held))
                raise
            while isinstance(read := await held.get(), list):
                yield read
            if read is not None:
                raise read
        finally:
            await _ended(reading)

    async def _verdict(self, guards: list[Guard], job: Job) -> None:
        """Asks all guards at once and takes their answers in the order of the array."""
        async with AsyncExitStack() as stack:
            inboxes = [await stack.enter_async_context(self._bus.inbox()) for _ in guards]
            bodies = await self._bodies(guards, job, inboxes)
            asked = [
                asyncio.create_task(self._ask(guard.processor, job.command.tenant, body, inbox))
                for guard, body, inbox in zip(guards, bodies, inboxes, strict=True)
            ]
            try:
                for guard, reply in zip(guards, asked, strict=True):
                    _take(job, guard.processor, await reply)
            finally:
                for each in asked:
                    each.cancel()
                await asyncio.gather(*asked, return_exceptions=True)
        job.result.verdict = "passed"

    async def _bodies(self, guards: list[Guard], job: Job, inboxes: list[Inbox]) -> list[bytes]:
        """The requests, the conversation through Redis where it is too long for one of them."""
        ctx, command = job.ctx, job.command.but(ops=[])
        requests = [
            GuardRequest(
                command=command,
                guard=Guard(processor=_limited(guard.processor), index=guard.index),
                messages=ctx.messages.serialize(),
                state=ctx.states.get(guard.processor.instance, {}),
                request_context=ctx.request_context,
                tracing_context=ctx.tracing_context,
                beats=inbox.address,
            )
            for guard, inbox in zip(guards, inboxes, strict=True)
        ]
        bodies = [request.to_json() for request in requests]
        if all(map(self._bus.fits, bodies)):
            return bodies
        key, store = f"guard:{command.id}", job.calls.environment.store(command.tenant)
        await store.put(key, requests[0].messages, ttl=_KEPT_SECONDS)
        carried = {"messages": None, "messages_key": key}
        return [request.model_copy(update=carried).to_json() for request in requests]

    async def _ask(self, ref: ProcessorRef, tenant: str, body: bytes, inbox: Inbox) -> GuardReply:
        """Asks one guard."""
        if not self._bus.fits(body):
            size = oversized(len(body), self._bus.max_payload)
            raise _failed(ref, f"the request to the guard {ref.instance} {size}")
        silent = _Silent()
        try:
            return GuardReply.model_validate_json(await self._told(ref, tenant, body, inbox, silent))
        except TimeoutError:
            text = f"no verdict from {ref.instance} within {_seconds(ref):g} s; {silent.why()}"
            raise _failed(ref, text, code="PROCESSOR_TIMEOUT", name="TimeoutError") from None
        except ValidationError as error:
            raise _failed(ref, f"the verdict of {ref.instance} cannot be read: {error}") from error

    async def _told(
        self, ref: ProcessorRef, tenant: str, body: bytes, inbox: Inbox, silent: "_Silent"
    ) -> bytes:
        """The verdict. Each replica that is asked may take as long as the guard may."""
        limit, clock = _seconds(ref) + _GRACE_SECONDS, asyncio.get_running_loop().time
        async with asyncio.timeout(limit) as time:

            def another() -> None:
                silent.replicas += 1
                time.reschedule(clock() + limit)

            return await first_answer(
                self._bus,
                inbox,
                (SERVICE, tenant, "guard"),
                lambda: body,
                on_another=another,
            )


class _Silent:
    """How many replicas fell silent over a guard, so that another one was asked."""

    def __init__(self) -> None:
        self.replicas = 0

    def why(self) -> str:
        """Why there is no verdict."""
        if not self.replicas:
            return f"is {SERVICE} up?"
        asked = f"{self.replicas + 1} replicas of {SERVICE} were asked in turn"
        return (
            f"{asked}, and all fell silent: the guard may have ended or blocked its process (see their logs)"
        )


def _seconds(ref: ProcessorRef) -> float:
    return SECONDS if ref.timeout is None else ref.timeout


def _limited(ref: ProcessorRef) -> ProcessorRef:
    return ref.but(timeout=_seconds(ref))


def _failed(
    ref: ProcessorRef, text: str, *, code: str = "PROCESSOR_FAILED", name: str = "Error"
) -> ProcessorError:
    return ProcessorError(text, processor_id=ref.instance, hook=Hook.INPUT.value, code=code, name=name)


def _take(job: Job, ref: ProcessorRef, reply: GuardReply) -> None:
    """Takes what a guard did into the run; raises its objection or failure."""
    job.ctx.states[ref.instance] = reply.state
    job.calls.add_reports(reply.reports)
    if reply.tripwire is not None:
        job.result.verdict = "blocked"
    if reply.error is not None:
        reply.error.processor_id = reply.error.processor_id or ref.instance
    raise_outcome(reply.model_dump(by_alias=True, exclude_none=True, include={"tripwire", "error"}))


async def _read(source: AsyncIterator[list[Chunk]], held: _Held) -> None:
    """Reads to the end, and puts behind what was read why there is no more: None, or an exception."""
    end: BaseException | None = None
    try:
        async with aclosing(source) as batches:  # type: ignore[type-var]  # an async generator
            async for batch in batches:
                await held.put(batch)
    except (Exception, asyncio.CancelledError) as error:  # whoever takes what is held raises it
        if is_cancelled(error):
            raise
        end = error  # a library that was cancelled from within says so, too
    await held.put(end)


async def _ended(reading: "asyncio.Task[None]") -> None:
    """Stops reading; the provider's connection is closed then."""
    reading.cancel()
    await asyncio.wait([reading])


def _chunks(held: _Held) -> list[Chunk]:
    chunks: list[Chunk] = []
    while not held.empty():
        read = held.get_nowait()
        chunks += read if isinstance(read, list) else []
    return chunks
