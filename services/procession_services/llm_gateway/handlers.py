"""Runs the model operation: calls the provider (or replays a cached answer) and streams it through the output chain."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Self

import orjson

from procession.context import RunContext, add_usage
from procession.errors import ProcessorError
from procession.prompt import to_prompt
from procession.response import ResponseCollector, local_calls
from procession.structured import ObjectStream, parse_object
from procession.usage import scope_keys
from procession_schemas.agent import StructuredOutput
from procession_schemas.chunks import HIDDEN_TYPES, Chunk
from procession_schemas.run import ModelReport
from procession_schemas.work import ModelOp, StepFacts, UnlessToolsOp
from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.guards import Guards
from procession_services.llm_gateway.providers import Provider
from procession_services.llm_gateway.providers.retrying import stream_with_retries
from procession_services.processor_host.errors import Cancelled, ModelFailed
from procession_services.processor_host.job import Job
from procession_services.processor_host.outcomes import raise_outcome, take_outcome
from procession_services.processor_host.stream_session import Session
from procession_services.processor_host.streams import StreamClient
from procession_services.runtime.ledger import Ledger

_UNDELIVERED = HIDDEN_TYPES | {"finish"}


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
            message = f"unknown model {call.model!r}: write it as 'provider/name' with a provider that LiteLLM knows"
            raise ProcessorError(
                message, processor_id="", hook="", code="UNKNOWN_MODEL", name="UnknownModelError"
            )
        answer = _Answer(op, job, self._streams)
        source = _guarded(_replay(cached) if cached is not None else self._live(call, op), ctx)
        if op.guards:
            source = self._guards.hold(
                op.guards, job, source, lambda chunks: self._refused(job, call, chunks)
            )
        failure: ProviderError | None = None
        async with answer:
            try:
                await answer.take(source)
            except ProviderError as error:
                failure = error
        response = answer.response()
        made = response.pop("object", None) or {}
        ctx.object, ctx.used_fallback = made.get("object"), bool((made.get("metadata") or {}).get("fallback"))
        response["fromCache"] = cached is not None
        if cached is None:
            self._count(job, call, response, booked=answer.started)
        ctx.usage = add_usage(ctx.usage, response["usage"])
        ctx.prompt = None
        ctx.response = response
        parts = [*ctx.pending_parts, *answer.parts()]
        ctx.pending_parts = []
        answer.raise_early_end()
        if answer.cancelled:
            _keep_partial(ctx, parts)
        else:
            ctx.messages.append_response_parts(parts, metadata=_metadata(call.model))
        job.result.facts = StepFacts(
            finish_reason=response["finishReason"],
            tool_calls=len(local_calls(response["toolCalls"])),
            started=answer.started,
        )
        if failure is not None:
            response["error"] = failure.to_wire()
            response["finishReason"] = "error"
            raise ModelFailed(response["error"])
        if answer.cancelled:
            raise Cancelled
        await self._structure(job, response)

    def _call(self, op: ModelOp, job: Job) -> ModelCall:
        ctx, config = job.ctx, job.ctx.config
        structured = config.structured_output
        if structured and structured.model:  # the plan has made a processor of what the request says
            message = "a step cannot set structuredOutput.model; set it on the agent or in the request"
            raise ProcessorError(
                message, processor_id="", hook="", code="UNSUPPORTED", name="UnsupportedError"
            )
        prompt = ctx.prompt if ctx.prompt is not None else to_prompt(ctx.messages)
        if structured and structured.json_prompt_injection:
            prompt = [_schema_entry(structured), *prompt]
        headers = dict(op.entry.headers) if op.entry else {}
        memory = ctx.request_context.get("MastraMemory")
        if memory:
            headers.setdefault("x-thread-id", memory["thread"]["id"])
            headers.setdefault("x-resource-id", memory["resourceId"])
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
            include_raw_chunks=op.include_raw_chunks,
        )

    def _live(self, call: ModelCall, op: ModelOp) -> AsyncIterator[list[Chunk]]:
        return stream_with_retries(self._provider, call, op.max_retries, asyncio.sleep)

    def _count(self, job: Job, call: ModelCall, response: dict[str, Any], *, booked: bool) -> None:
        """Reports the usage of a call; a call that failed before it began to answer is not booked."""
        cost = self._provider.cost(call, response["usage"])
        usage: dict[str, int | None] = {k: v for k, v in response["usage"].items() if v is not None}
        job.result.model = ModelReport(model=call.model, calls=1, usage=usage, cost=cost)
        if booked:
            scopes = scope_keys(job.ctx.request_context, job.ctx.run_id)
            self._ledger.add(job.ctx.tenant, scopes, call.model, usage, cost)

    def _refused(self, job: Job, call: ModelCall, chunks: list[Chunk]) -> None:
        """Counts a call whose answer a guard keeps from being seen; `chunks` are what had come of it."""
        if job.ctx.cached is not None:
            return
        collector = ResponseCollector()
        for chunk in chunks:
            collector.arrived(chunk)
        response = collector.to_dict()
        self._count(job, call, response, booked=len(chunks) > 1)
        job.ctx.usage = add_usage(job.ctx.usage, response["usage"])

    async def _structure(self, job: Job, response: dict[str, Any]) -> None:
        """Validates a structured answer (R-SO-2, R-SO-3)."""
        structured = job.ctx.config.structured_output
        if structured is None or response["toolCalls"] or response["finishReason"] == "tool-calls":
            return
        value, problem = parse_object(response["text"], structured.schema_)
        if problem is None:
            job.ctx.object = value
            await job.emit({"type": "object-result", "object": value})
        elif structured.error_strategy == "fallback":
            job.ctx.object, job.ctx.used_fallback = structured.fallback_value, True
            chunk: Chunk = {
                "type": "object-result",
                "object": structured.fallback_value,
                "metadata": {"fallback": True},
            }
            await job.emit(chunk)
        elif structured.error_strategy == "strict":
            error = {"name": "StructuredOutputError", "message": problem, "kind": "structured-output"}
            response["error"], response["finishReason"] = error, "error"
            raise ModelFailed(error)


def _metadata(model: str) -> dict[str, Any]:
    provider, _, name = model.partition("/")
    return {"modelId": name or model, "provider": provider if name else ""}


def _schema_entry(structured: StructuredOutput) -> dict[str, Any]:
    """The schema as a system message, for models that take no response format (R-SO-1)."""
    schema = orjson.dumps(structured.schema_).decode()
    told = (
        structured.instructions or "Answer with one JSON value that fits this JSON Schema, and nothing else:"
    )
    return {"role": "system", "content": f"{told}\n{schema}"}


def _keep_partial(ctx: RunContext, parts: list[Any]) -> None:
    """Keeps what came before a cancellation, as a message of its own: it is no part of an accepted step (R-DM-2)."""
    if parts:
        message = {"role": "assistant", "content": {"format": 2, "parts": parts}}
        ctx.messages.add(message, "response", merge=False)


class _Answer:
    """One answer on its way: through an output replica, or straight to the client when no processor wants it."""

    def __init__(self, op: ModelOp, job: Job, streams: StreamClient) -> None:
        self.started = self.cancelled = self._was_cut = False
        self._op, self._job, self._streams = op, job, streams
        self._collector = ResponseCollector(keep_chunks=op.keep_chunks)
        self._objects = ObjectStream() if job.ctx.config.structured_output else None
        self._session: Session | None = None
        self._opening: asyncio.Future[Session] | None = None
        self._pumping: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        if not self._op.guards:
            self._begin_opening()
        return self

    def _begin_opening(self) -> None:
        if self._op.processors and self._opening is None:
            self._opening = asyncio.ensure_future(self._open())

    async def _open(self) -> Session:
        """Leases an output replica; done while the provider is still thinking."""
        last = isinstance(self._job.next_op(self._op), UnlessToolsOp)
        options = {"keepChunks": self._op.keep_chunks, "objects": self._objects is not None, "last": last}
        session = await self._streams.open(
            self._job, self._op.processors, kind="model", replica=self._op.replica, options=options
        )
        session.keep = last
        session.ended_early.add_done_callback(lambda _: self._cut())
        self._session = session
        return session

    async def __aexit__(self, *error: object) -> None:
        if self._opening is None:
            await self._job.outbox.flush()
            return
        if error[0] is not None:
            self._opening.cancel()
            if self._session is not None:
                self._streams.close(self._session)
            return
        session = await self._opening
        try:
            take_outcome(self._job, await self._streams.finish(session))
        finally:
            if session.keep and not {"tripwire", "error"} & (session.outcome or {"error": None}).keys():
                self._streams.keep(self._job, session)
            else:
                self._streams.close(session)

    async def take(self, source: AsyncIterator[list[Chunk]]) -> None:
        """Reads the source to its end, or until a processor or the caller has had enough."""
        self._pumping = pump = asyncio.ensure_future(self._pump(source))
        self._job.abort_signal.on_abort(lambda: self._cut(cancelled=True))
        try:
            await pump
        except asyncio.CancelledError:
            if not self._was_cut:
                pump.cancel()
                raise

    def _cut(self, *, cancelled: bool = False) -> None:
        pump = self._pumping
        if pump is not None and not pump.done():
            self._was_cut = True
            self.cancelled = self.cancelled or cancelled
            pump.cancel()

    async def _pump(self, source: AsyncIterator[list[Chunk]]) -> None:
        async with aclosing(source) as chunks:  # type: ignore[type-var]  # an async generator
            async for batch in chunks:
                if not await self._send(batch):
                    return

    async def _send(self, chunks: list[Chunk]) -> bool:
        self.started = self.started or len(chunks) > 1 or chunks[0]["type"] != "step-start"
        self._begin_opening()
        if self._opening is not None:
            session = self._session
            if session is None:
                session = await asyncio.shield(self._opening)
            end = chunks[-1]["type"] == "finish"  # always the last one
            return await self._streams.send(session, chunks, end=end)
        job = self._job
        for chunk in chunks:
            if self._collector.repeated(chunk):
                continue
            self._collector.arrived(chunk)
            self._collector.passed(chunk)
            if chunk["type"] in _UNDELIVERED:
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


async def _guarded(source: AsyncIterator[list[Chunk]], ctx: RunContext) -> AsyncIterator[list[Chunk]]:
    """Puts `step-start` in front of the answer once it begins, or of its failure (R-AE-11)."""
    start: Chunk = {
        "type": "step-start",
        "payload": {"messageId": ctx.message_id, "request": {}, "warnings": []},
    }
    used = _used_call_ids(ctx)
    begun = False
    async with aclosing(source) as chunks:  # type: ignore[type-var]  # an async generator
        try:
            async for batch in chunks:
                _mark_repeated(batch, used)
                yield batch if begun else [start, *batch]
                begun = True
        except ProviderError:
            if not begun:
                yield [start]
            raise


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
