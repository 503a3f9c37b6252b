"""Makes a stream of a lease: the sender's context, the chain, and the way to the client."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from procession.args import AbortSignal
from procession.calls import Calls
from procession.context import RunContext
from procession.response import ResponseCollector
from procession.services import Environment
from procession.stream import StreamChain
from procession.structured import ObjectStream
from procession_schemas.agent import ProcessorRef
from procession_schemas.chunks import Chunk
from procession_schemas.work import ModelOp, WorkCommand
from procession_services.output_processors.local import ToolResults
from procession_services.output_processors.parts import PartsStore, RunParts, StreamPlace
from procession_services.output_processors.remembered import RememberedModels
from procession_services.processor_host.carrying import is_apart, unpacked
from procession_services.processor_host.executor import Executor
from procession_services.processor_host.job import Job, id_maker, restore
from procession_services.processor_host.outbox import Outbox, Shown, last_sent
from procession_services.processor_host.service import Host
from procession_services.processor_host.violations import violation_sink
from procession_services.runtime.clock import monotonic_ns


class Session(Struct):
    """A stream that this replica serves."""

    id: str
    attempt: int
    answer: str
    kind: str
    command: WorkCommand
    ctx: RunContext
    calls: Calls
    chain: StreamChain
    collector: ResponseCollector
    outbox: Outbox
    parts: RunParts
    before: list[int]
    place: StreamPlace
    logs: bool
    """Its sender can log what the stream's processors have received."""
    as_text: bool
    """Its sender takes the context that we leave as text; those of the version before do not."""
    lent: dict[str, Any] | None
    """The request context and the messages as they were lent, of a side stream: its sender may change them, too."""
    first: dict[str, Any] | None = None
    taken: int = 0
    reply: str = ""
    """Where the sender waits for the reply to its lease; the first answer takes it along if that comes soon."""
    replying: asyncio.TimerHandle | None = None
    results: ToolResults = field(default_factory=ToolResults)
    frames: "asyncio.Queue[dict[str, Any]]" = field(default_factory=asyncio.Queue)
    received: int = 0
    processed: int = 0
    acked: int = 0
    unacked_bytes: int = 0
    """Those of the frames since the last acknowledgement."""
    missing: int = -1
    flush_at: float = 0.0
    behind: int | None = None
    """The number of the first chunk that comes from behind the stream."""
    job: Job | None = None
    """What we went on with when the stream had ended well."""
    timed: bool = False
    task: "asyncio.Task[None] | None" = None
    left: bool = False
    """We have cancelled its task: it goes on elsewhere, or not at all."""

    @property
    def waits(self) -> bool:
        """Whether it has done all that has come, and waits for more."""
        return self.first is None and self.frames.empty() and self.processed == self.received


class ForgottenError(Exception):
    """What a lease needs is not in Redis any more; its sender puts it there with each lease."""


class Opener:
    """Makes streams of leases."""

    def __init__(self, host: Host, executor: Executor, parts: PartsStore) -> None:
        self._bus, self._store, self._executor, self._parts = host.bus, host.store, executor, parts

    async def open(self, lease: dict[str, Any], command: WorkCommand, address: str) -> Session:
        """The stream that a lease asks for; what comes of it goes to `address`.

        Raises:
            ForgottenError: Its context is not there any more.
        """
        refs = [ProcessorRef.of(p) for p in lease["processors"]]
        links = await self._executor.instances.links(refs, command.chain_places)
        ctx, outbox = await self._context(lease, command), await self._outbox(lease, command)
        place = StreamPlace.of(ctx)
        parts = await self._parts.open(place)
        model = next((op for op in command.ops[:1] if isinstance(op, ModelOp)), None)
        calls = Calls(
            clock=monotonic_ns, abort_signal=AbortSignal(), environment=self._environment(lease, ctx.tenant)
        )
        if lease.get("cancelled"):
            calls.abort_signal.abort()
        calls.violation = violation_sink(self._executor.bus, command, ctx, f".{ctx.streams}")
        collector = ResponseCollector(keep_chunks=model is not None and model.keep_chunks)
        objects = ObjectStream() if model is not None and ctx.config.structured_output else None
        results = ToolResults()
        deliver = deliverer(outbox, objects, results)
        lists = parts.lists_of(len(links))
        return Session(
            id=lease["session"],
            attempt=lease["attempt"],
            answer=address,
            kind=lease["kind"],
            command=command,
            ctx=ctx,
            calls=calls,
            chain=StreamChain(links, ctx, calls, deliver, parts=lists, collector=collector),
            collector=collector,
            outbox=outbox,
            parts=parts,
            before=[len(received) for received in lists],
            place=place,
            logs=lease.get("logs", False),
            as_text=lease.get("asText", False),
            lent=None if command.ops else _copied(ctx),
            results=results,
        )

    def _environment(self, lease: dict[str, Any], tenant: str) -> Environment:
        """Ours, with the answers of models that the stream had before it came here."""
        ours = self._executor.environment
        moved = bool(lease.get("resume"))
        models = RememberedModels(ours.models, ours.store(tenant), lease["session"], moved=moved)
        return replace(ours, models=models)

    async def _outbox(self, lease: dict[str, Any], command: WorkCommand) -> Outbox:
        """Where the stream's chunks go; after a failover those that clients have are made again and held back.

        Where time has had a say in what the last replica sent, or what models told its processors may be forgotten,
        nothing can be held back: clients get all of it anew.
        """
        tenant, run, start, fence = command.tenant, command.run, lease["outSeq"], lease.get("fence", 0)
        reset = lease.get("reset")
        if not lease.get("resume"):
            return Outbox(self._bus, tenant, run, start, live=command.stream, fence=fence, reset=reset)
        shown, anew = Shown(), lease.get("anew", False) or await self._has_forgotten(lease.get("life", 0))
        if not anew:
            shown = await last_sent(self._bus, tenant, run, fence + lease.get("after", 0))
            if shown.timed:
                anew, shown = True, Shown()
        fence += lease["attempt"]
        if shown.last >= start:
            reset = None  # what clients have of the stream said so
        outbox = Outbox(
            self._bus, tenant, run, start, live=command.stream, shown=shown, fence=fence, reset=reset
        )
        if anew:
            outbox.timed = True  # the numbers are others, too
            await outbox.renew(stream=lease["attempt"])
        else:
            await outbox.mark()
        return outbox

    async def _has_forgotten(self, life: int) -> bool:
        """Whether Redis has begun another life than that one, so that it may have lost what it had answered."""
        if life:
            await self._store.redis.ping()
        return life not in (0, self._store.life)

    async def _context(self, lease: dict[str, Any], command: WorkCommand) -> RunContext:
        """The sender's context.

        Raises:
            ForgottenError: The lease only names it, and Redis has forgotten it. What is stored of the run lacks what
                the sender has not committed.
        """
        data = await unpacked(self._executor.environment.store(command.tenant), lease, "context")
        if data is None and is_apart(lease, "context"):
            raise ForgottenError(f"Redis has lost the context of stream {lease['session']}")
        if data is None:
            data = await self._store.load_context(command.tenant, command.run)
        return restore(command, data, id_maker(command, f".{data['streams'] if data else 0}"))


def _copied(ctx: RunContext) -> dict[str, Any]:
    lent = {"requestContext": ctx.request_context, "messages": ctx.messages.serialize()}
    return cast("dict[str, Any]", orjson.loads(orjson.dumps(lent)))


def deliverer(outbox: Outbox, objects: ObjectStream | None, results: ToolResults) -> Callable[[Chunk], None]:
    """What takes the chunks that come out of the chain."""

    def deliver(chunk: Chunk) -> None:
        for made in objects.before(chunk) if objects else ():
            outbox.put(made)
        results.delivered(chunk)
        outbox.put(chunk)

    return deliver
