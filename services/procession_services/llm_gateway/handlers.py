"""Runs the model operation: calls the provider (or replays a cached answer) and streams it through the output chain."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final, NoReturn

import orjson

from procession.authors import is_cancelled
from procession.context import RunContext, add_usage
from procession.errors import ProcessorError
from procession.processor import Hook
from procession.prompt import shared_prompt
from procession.response import ResponseCollector
from procession.returns import UNSUPPORTED_MODEL
from procession.services import book_keys
from procession.stream import UNDELIVERED
from procession.structured import ObjectStream
from procession.usage import Scope, scope_keys
from procession_schemas.agent import StructuredOutput
from procession_schemas.chunks import Chunk
from procession_schemas.memory import MEMORY_KEY
from procession_schemas.model_settings import retries_of
from procession_schemas.run import ModelReport
from procession_schemas.work import ModelOp, StepConfig, StepFacts
from procession_services.llm_gateway.core.call import ModelCall, unknown_model
from procession_services.llm_gateway.core.ending import Ending
from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.guards import Guards
from procession_services.llm_gateway.providers import Provider
from procession_services.llm_gateway.providers.keys import NO_KEY, is_withholdable
from procession_services.llm_gateway.providers.retrying import stream_with_retries
from procession_services.processor_host.answers import (
    facts_of,
    metadata_of,
    take_answer,
    take_response,
)
from procession_services.processor_host.errors import Cancelled, Lent, ModelFailed
from procession_services.processor_host.job import Job
from procession_services.processor_host.outcomes import raise_outcome, take_lent, take_outcome
from procession_services.processor_host.stream_session import Session
from procession_services.processor_host.streams import StreamClient
from procession_services.runtime.ledger import Ledger

_OF_MEMORY: Final[dict[Scope, str]] = {"thread": "x-thread-id", "resource": "x-resource-id"}
"""The headers that tell a provider of a conversation (R-MS-5)."""


class ModelRunner:
    """Runs `model` operations."""

    def __init__(self, provider: Provider, streams: StreamClient, ledger: Ledger, guards: Guards) -> None:
        self._provider, self._streams, self._ledger, self._guards = provider, streams, ledger, guards

    async def run(self, op: ModelOp, job: Job) -> None:
        """Streams one answer and puts it into the context.

        Raises:
            ModelFailed: The provider failed for good.
            Cancelled: The run was cancelled; what came until then is in the context.
            TripWire: An output processor aborted, or a guard beside the model; the provider's connection is closed
                (D-21).
            ProcessorError: One failed, or the model is not one that can be called.
        """
        ctx = job.ctx
        job.result.facts = StepFacts()
        if job.abort_signal.aborted:
            raise Cancelled
        call = self._call(op, job)
        cached = ctx.cached
        if cached is None and not self._provider.knows(call.model):
            raise _unknown_model(ctx.config)
        await job.outbox.flush()
        answer = _Answer(op, job, self._streams, Ending(call))
        source = _guarded(
            _replay(cached) if cached is not None else self._live(call, op), ctx, fallback=op.fallback
        )
        if op.guards:
            source = self._guards.hold(
                op.guards, job, source, lambda chunks: self._refused(job, call, chunks)
            )
        await answer.take(source)
        if answer.lent is not None:
            self._count(job, call, answer.lent["usage"])
            raise Lent(take_lent(job, answer.lent))
        response = answer.response()
        if job.result.model is None:  # else what guards have held back of it is counted
            self._count(job, call, response["usage"], booked=answer.started)
        if answer.whole:
            take_answer(job, response, answer.parts())
            return
        _break_off(job, answer, response)

    def _call(self, op: ModelOp, job: Job) -> ModelCall:
        ctx, config = job.ctx, job.ctx.config
        structured = config.structured_output
        if structured and structured.model:  # the plan has made a processor of what the request says
            raise _unsupported(
                "a step cannot set structuredOutput.model; set it on the agent or in the request",
                config.set_by.get("structuredOutput"),
            )
        if op.keyless and not is_withholdable(config.model):
            raise _unsupported(
                f"the request names the API base {op.api_base}, which must not get a key, but the credentials of "
                f"{config.model!r} cannot be withheld; name it in PROCESSION_API_BASES or in a configured agent"
            )
        prompt = ctx.prompt if ctx.prompt is not None else shared_prompt(ctx.messages)
        if structured and structured.json_prompt_injection:
            prompt = [_schema_entry(structured), *prompt]
        headers = dict(op.entry.headers) if op.entry else {}
        if ctx.request_context.get(MEMORY_KEY):
            scopes = scope_keys(ctx.request_context, ctx.run_id)
            named = {header: scopes[scope] for scope, header in _OF_MEMORY.items() if scope in scopes}
            headers = {**named, **headers}
        return ModelCall(
            model=config.model,
            prompt=prompt,
            tools={
                name: {"description": ref.description or "", "parameters": ref.parameters or {}}
                for name, ref in config.tools.items()
            },
            tool_choice=config.tool_choice,
            active_tools=config.active_tools,
            model_settings=config.model_settings,
            provider_options=config.provider_options,
            response_format=structured.schema_
            if structured and not structured.json_prompt_injection
            else None,
            headers=headers,
            api_base=op.api_base,
            api_key=NO_KEY if op.keyless else None,
            include_raw_chunks=op.include_raw_chunks,
        )

    def _live(self, call: ModelCall, op: ModelOp) -> AsyncIterator[list[Chunk]]:
        of_step = retries_of(call.model_settings)  # what processInputStep says, for this step
        retries = op.max_retries if of_step is None else of_step
        return stream_with_retries(self._provider, call, retries, asyncio.sleep)

    def _count(self, job: Job, call: ModelCall, used: dict[str, Any], *, booked: bool = True) -> None:
        """Reports the usage of a call; a call that failed before it began to answer is not booked."""
        if job.ctx.cached is not None:
            return
        cost = self._provider.cost(call, used)
        usage: dict[str, int | None] = {k: v for k, v in used.items() if v is not None}
        job.result.model = ModelReport(model=call.model, calls=1, usage=usage, cost=cost)
        if booked:
            scopes = book_keys(job.ctx.request_context, job.ctx.run_id)
            self._ledger.add(job.ctx.tenant, scopes, call.model, usage, cost)

    def _refused(self, job: Job, call: ModelCall, chunks: list[Chunk]) -> None:
        """Counts a call whose answer guards keep from being seen; `chunks` are what had come of it."""
        if job.ctx.cached is not None:
            return
        collector = ResponseCollector()
        for chunk in chunks:
            collector.arrived(chunk)
        self._count(job, call, collector.usage, booked=len(chunks) > 1)
        job.ctx.usage = add_usage(job.ctx.usage, collector.usage)


def _unsupported(message: str, set_by: str | None = None) -> ProcessorError:
    hook = Hook.INPUT_STEP.value if set_by else ""
    return ProcessorError(
        message, processor_id=set_by or "", hook=hook, code="UNSUPPORTED", name="UnsupportedError"
    )


def _unknown_model(config: StepConfig) -> ProcessorError:
    """Says that the step's model cannot be called, and which processor chose it if one did (R-ER-3, D-30)."""
    chosen_by = config.model_by
    return ProcessorError(
        unknown_model(config.model),
        processor_id=chosen_by or "",
        hook=Hook.INPUT_STEP.value if chosen_by else "",
        code=UNSUPPORTED_MODEL if chosen_by else "UNKNOWN_MODEL",
        name="UnknownModelError",
    )


def _schema_entry(structured: StructuredOutput) -> dict[str, Any]:
    """The schema as a system message, for models that take no response format (R-SO-1)."""
    schema = orjson.dumps(structured.schema_).decode()
    told = (
        structured.instructions or "Answer with one JSON value that fits this JSON Schema, and nothing else:"
    )
    return {"role": "system", "content": f"{told}\n{schema}"}


def _break_off(job: Job, answer: "_Answer", response: dict[str, Any]) -> NoReturn:
    """Takes what there is of an answer that is not whole, and raises why."""
    ctx = job.ctx
    parts = take_response(ctx, response, answer.parts())
    answer.raise_early_end()
    job.result.facts = facts_of(response, started=answer.started)
    if answer.failure is None:
        _keep_partial(ctx, parts)
        raise Cancelled
    ctx.messages.append_response_parts(parts, metadata=metadata_of(ctx.config.model))
    response["error"], response["finishReason"] = answer.failure.to_wire(), "error"
    if set_by := ctx.config.set_by.get(answer.failure.setting):
        response["error"]["setBy"] = set_by
    raise ModelFailed(response["error"])


def _keep_partial(ctx: RunContext, parts: list[Any]) -> None:
    """Keeps what came before a cancellation, as a message of its own: it is no part of an accepted step (R-DM-2).

    No more comes of this attempt: what is written later makes no message behind that one.
    """
    if parts:
        message = {"role": "assistant", "content": {"format": 2, "parts": parts}}
        ctx.messages.add(message, "response", merge=False)
        ctx.messages.accept_response()


class _Answer:
    """One answer on its way: through an output replica, or straight to the client when no processor wants it.

    It is `whole`, or was cancelled, or there is a `failure`, or a processor has ended it early. A replica that got it
    whole has taken it into the run and done what follows: `lent` is the outcome of that.
    """

    def __init__(self, op: ModelOp, job: Job, streams: StreamClient, ending: Ending) -> None:
        self.started = self._was_cut = False
        self.failure: ProviderError | None = None
        self.lent: dict[str, Any] | None = None
        self._op, self._job, self._streams, self._ending = op, job, streams, ending
        self._collector = ResponseCollector(keep_chunks=op.keep_chunks)
        self._objects = ObjectStream() if job.ctx.config.structured_output else None
        self._session: Session | None = None
        self._opening: asyncio.Future[Session] | None = None
        self._pumping: asyncio.Future[None] | None = None

    @property
    def whole(self) -> bool:
        """Whether the source has come to its end, and that is one of an answer."""
        ended_early = {"tripwire", "error"} & self._outcome().keys()
        return not (self._was_cut or self.failure or ended_early)

    async def _open(self, chunks: list[Chunk], *, ended: bool, well: bool) -> Session:
        """Leases an output replica for a stream that begins so."""
        op, job = self._op, self._job
        session = await self._streams.open(
            job, op.processors, job.ops_from(op), replica=op.replica, chunks=chunks, ended=ended, well=well
        )
        session.ended_early.add_done_callback(lambda _: self._cut())
        self._session = session
        return session

    async def take(self, source: AsyncIterator[list[Chunk]]) -> None:
        """Reads the source to its end, or until a processor or the caller has had enough, and has it concluded."""
        try:
            await self._read(source)
        except BaseException:
            self._give_up()
            raise
        if self._opening is None:
            await self._job.outbox.flush()
        else:
            await self._conclude(await self._opening)

    async def _read(self, source: AsyncIterator[list[Chunk]]) -> None:
        self._pumping = pump = asyncio.ensure_future(self._pump(source))
        self._job.abort_signal.on_abort(self._cut)
        try:
            await pump
        except ProviderError as error:
            self.failure = error.with_traceback(None)  # whose frames have us
            error.__cause__ = error.__context__ = None  # whose frames have them
        except asyncio.CancelledError as error:
            if not self._was_cut or is_cancelled(error):
                pump.cancel()
                raise
        finally:
            self._job.abort_signal.forget(self._cut)

    def _give_up(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._session is not None:
            self._streams.close(self._session)

    async def _conclude(self, session: Session) -> None:
        try:
            outcome = await self._streams.finish(session, well=self.whole)
        finally:
            self._streams.close(session)
        if "lent" in outcome:
            self.lent = outcome
        else:
            take_outcome(self._job, outcome)

    def _cut(self) -> None:
        pump = self._pumping
        if pump is not None and not pump.done():
            self._was_cut = True
            pump.cancel()

    async def _pump(self, source: AsyncIterator[list[Chunk]]) -> None:
        async with aclosing(source) as chunks:  # type: ignore[type-var]  # an async generator
            async for batch in chunks:
                self.failure = self._ending.failure(batch)
                if not await self._send(batch):
                    return

    async def _send(self, chunks: list[Chunk]) -> bool:
        self.started = self.started or len(chunks) > 1 or chunks[0]["type"] != "step-start"
        if self._op.processors:
            end = chunks[-1]["type"] == "finish"  # always the last one
            well = end and self.failure is None
            if self._opening is None:
                self._opening = asyncio.ensure_future(self._open(chunks, ended=end, well=well))
                chunks = []
            session = self._session
            if session is None:
                session = await asyncio.shield(self._opening)
            return await self._streams.send(session, chunks, end=end, well=well)
        job = self._job
        for chunk in chunks:
            self._collector.arrived(chunk)
            if self._collector.repeated(chunk):
                continue
            self._collector.passed(chunk)
            if chunk["type"] in UNDELIVERED:
                continue
            for made in self._objects.before(chunk) if self._objects else ():
                job.outbox.put(made)
            job.outbox.put(chunk)
        await job.outbox.flush()
        return True

    def _outcome(self) -> dict[str, Any]:
        return (self._session.outcome or {}) if self._session else {}

    def response(self) -> dict[str, Any]:
        """The facts of the answer as the output chain left it."""
        if self._session is None:
            return self._collector.to_dict()
        empty = ResponseCollector(keep_chunks=self._op.keep_chunks).to_dict()
        return {**empty, **self._outcome().get("response", {})}

    def parts(self) -> list[Any]:
        """The parts of the assistant message."""
        return self._collector.parts if self._session is None else self._outcome().get("parts", [])

    def raise_early_end(self) -> None:
        """Raises what made a processor end the stream."""
        raise_outcome(self._outcome())


async def _guarded(
    source: AsyncIterator[list[Chunk]], ctx: RunContext, *, fallback: bool = False
) -> AsyncIterator[list[Chunk]]:
    """Puts `step-start` in front of the answer once it begins, or of its end or failure (R-CH-4, R-AE-11).

    Not of a failure where there is a `fallback`, whose answer begins with it.
    """
    warnings = (ctx.cached or {}).get("warnings", [])
    start: Chunk = {
        "type": "step-start",
        "payload": {"messageId": ctx.message_id, "request": {}, "warnings": warnings},
    }
    used = _used_call_ids(ctx)
    begun = False
    async with aclosing(source) as chunks:  # type: ignore[type-var]  # an async generator
        try:
            async for batch in chunks:
                if used:
                    _mark_repeated(batch, used)
                yield batch if begun else [start, *batch]
                begun = True
        except ProviderError:
            if not begun and not fallback:
                yield [start]
            raise
        if not begun:
            yield [start]


def _used_call_ids(ctx: RunContext) -> set[str]:
    parts = (part for message in ctx.messages.get.response.db() for part in message["content"]["parts"])
    return {part["toolInvocation"]["toolCallId"] for part in parts if "toolInvocation" in part}


def _mark_repeated(batch: list[Chunk], used: set[str]) -> None:
    """Marks calls whose id an earlier step has used, as models do that count from one in every answer."""
    for chunk in batch:
        if chunk["type"] == "tool-call" and chunk["payload"]["toolCallId"] in used:
            chunk["payload"]["repeated"] = True


async def _replay(cached: dict[str, Any]) -> AsyncIterator[list[Chunk]]:
    """A cached answer as a stream (R-CA-2); it goes through the output chain like a live one (D-22)."""
    chunks = [c for c in cached.get("chunks", []) if c["type"] != "step-start"]
    for chunk in chunks:
        yield [
            {
                "type": chunk["type"],
                "payload": {k: v for k, v in (chunk.get("payload") or {}).items() if k != "startedAt"},
            }
        ]
