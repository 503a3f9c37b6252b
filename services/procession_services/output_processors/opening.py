"""Makes a stream of a lease: the sender's context, the chain, and the way to the client."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from procession.args import AbortSignal, RequestContext
from procession.calls import Calls
from procession.context import RunContext
from procession.message_list import MessageList
from procession.response import ResponseCollector
from procession.stream import StreamChain
from procession.structured import ObjectStream
from procession_schemas.agent import ProcessorRef
from procession_schemas.chunks import Chunk
from procession_schemas.work import WorkCommand
from procession_services.output_processors.local import ToolResults
from procession_services.output_processors.parts import PartsStore, RunParts
from procession_services.processor_host.carrying import unpacked
from procession_services.processor_host.executor import Executor, id_maker, restore
from procession_services.processor_host.outbox import Outbox, last_sent
from procession_services.processor_host.service import Host
from procession_services.runtime.clock import monotonic_ns, now_iso


@dataclass(slots=True)
class Session:
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
    number: int
    conversation: bytes
    last: bool = False
    part: int = 0
    first: dict[str, Any] | None = None
    results: ToolResults = field(default_factory=ToolResults)
    frames: "asyncio.Queue[dict[str, Any]]" = field(default_factory=asyncio.Queue)
    received: int = 0
    processed: int = 0
    acked: int = 0
    missing: int = -1
    borrowed: dict[str, Any] | None = None
    """What came of operations that the sender has lent us, as it is told."""
    timed: bool = False
    task: "asyncio.Task[None] | None" = None


class Opener:
    """Makes streams of leases."""

    def __init__(self, host: Host, executor: Executor, parts: PartsStore) -> None:
        self._bus, self._store, self._executor, self._parts = host.bus, host.store, executor, parts

    async def open(self, lease: dict[str, Any], command: WorkCommand, address: str) -> Session:
        """The stream that a lease asks for; what comes of it goes to `address`."""
        number = lease.get("stream", 0)
        links = self._executor.instances.links([ProcessorRef.model_validate(p) for p in lease["processors"]])
        ctx, outbox, parts = await asyncio.gather(
            self._context(lease, command),
            self._outbox(lease, command),
            self._parts.open(command.tenant, command.run, number, len(links)),
        )
        calls = Calls(clock=monotonic_ns, abort_signal=AbortSignal(), environment=self._executor.environment)
        calls.violation = self._executor.violation_sink(command, ctx)
        collector = ResponseCollector(keep_chunks=bool(lease.get("keepChunks")))
        objects = ObjectStream() if lease.get("objects") else None
        results = ToolResults()
        deliver = deliverer(outbox, objects, results)
        lists = parts.lists[: len(links)]
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
            number=number,
            conversation=orjson.dumps(ctx.messages.serialize()),
            last=bool(lease.get("last")),
            results=results,
        )

    async def _outbox(self, lease: dict[str, Any], command: WorkCommand) -> Outbox:
        """Where the stream's chunks go; after a failover those that clients have are made again and held back.

        Where time has had a say in what the last replica sent, nothing can be held back: clients get all of it anew.
        """
        tenant, run, start, fence = command.tenant, command.run, lease["outSeq"], lease.get("fence", 0)
        if not lease.get("resume"):
            return Outbox(self._bus, tenant, run, start, live=command.stream, fence=fence)
        suppress = -1
        if not lease.get("anew"):
            suppress = await last_sent(self._bus, tenant, run, fence + lease.get("after", 0))
        fence += lease["attempt"]
        outbox = Outbox(self._bus, tenant, run, start, live=command.stream, suppress=suppress, fence=fence)
        if lease.get("anew"):
            await outbox.renew(start, lease["attempt"])
        else:
            await outbox.mark()
        return outbox

    async def _context(self, lease: dict[str, Any], command: WorkCommand) -> RunContext:
        """The sender's context, as far as stream hooks see it."""
        messages = await unpacked(self._executor.environment.store(command.tenant), lease, "messages")
        new_id = id_maker(command, f".{lease.get('stream', 0)}")
        if messages is None:
            stored = await self._store.load_context(command.tenant, command.run)
            ctx = restore(command, stored.data, new_id)
        else:
            ctx = restore(command, None, new_id)
            ctx.messages = MessageList.deserialize(messages, new_id=new_id, now=now_iso)
        ctx.request_context = RequestContext(lease["requestContext"])
        ctx.tracing_context = lease.get("tracingContext", {})
        ctx.states.update(lease["states"])
        ctx.step_number, ctx.retry_count = lease["stepNumber"], lease["retryCount"]
        return ctx


def deliverer(outbox: Outbox, objects: ObjectStream | None, results: ToolResults) -> Callable[[Chunk], None]:
    """What takes the chunks that come out of the chain."""

    def deliver(chunk: Chunk) -> None:
        for made in objects.before(chunk) if objects else ():
            outbox.put(made)
        results.delivered(chunk)
        outbox.put(chunk)

    return deliver
