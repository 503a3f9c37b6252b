"""The output chain for commands that this service itself works on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from procession.calls import Link
from procession.response import ResponseCollector
from procession.stream import StreamChain
from procession_schemas.agent import ProcessorRef
from procession_schemas.chunks import Chunk
from procession_services.output_processors.parts import PartsStore, RunParts, StreamPlace
from procession_services.processor_host.job import ChunkSink, Job, SinkFactory


class ToolResults:
    """What the output chain makes of tool results, since `toolResults` of a step show that (R-OS-7)."""

    def __init__(self) -> None:
        self._sent: dict[str, Any] = {}
        self._delivered: dict[str, Any] = {}

    def sent(self, chunk: Chunk) -> None:
        """Notes a chunk that goes into the chain."""
        if chunk["type"] == "tool-result":
            self._sent[chunk["payload"]["toolCallId"]] = chunk["payload"].get("result")

    def delivered(self, chunk: Chunk) -> None:
        """Notes a chunk that reached the client."""
        if chunk["type"] == "tool-result":
            self._delivered[str(chunk["payload"].get("toolCallId"))] = chunk["payload"].get("result")

    def rewritten(self) -> dict[str, dict[str, Any]]:
        """What `ChunkSink.rewritten` tells."""
        told: dict[str, dict[str, Any]] = {}
        for call_id, result in self._sent.items():
            if call_id not in self._delivered:
                told[call_id] = {"hidden": True}
            elif self._delivered[call_id] is not result:
                told[call_id] = {"streamed": self._delivered[call_id]}
        return told


class LocalSink:
    """Chunks through the chain in this process: that of the stream `before` them, if they are a part of it."""

    def __init__(
        self, job: Job, links: list[Link], parts: list[list[Chunk]], before: StreamChain | None
    ) -> None:
        self.rewritten: dict[str, dict[str, Any]] = {}
        self.told_error: Any = None
        self._results = ToolResults()
        self._job = job
        self._collector = ResponseCollector()
        deliver = partial(_deliver, job, self._results)
        if before is not None and before.links is links:
            self.chain = before.again(deliver, self._collector)
        else:
            self.chain = StreamChain(
                links, job.ctx, job.calls, deliver, parts=parts, collector=self._collector
            )
            self.chain.on_chance = before.by_chance if before else None

    async def send(self, chunks: list[Chunk], *, last: bool = False) -> None:
        """Hands chunks to the chain."""
        for chunk in chunks:
            self._results.sent(chunk)
            await self.chain.feed(chunk)
        if not last:
            await self._job.outbox.flush()

    async def end(self) -> None:
        """Gives out what the chain holds back."""
        await self.chain.end()
        self.rewritten = self._results.rewritten()
        self.told_error = self._collector.error


def _deliver(job: Job, results: ToolResults, chunk: Chunk) -> None:
    results.delivered(chunk)
    job.outbox.put(chunk)
    job.keep_data(chunk)


class LocalSinks:
    """Makes local sinks, each of which is a stream of its run."""

    def __init__(self, parts: PartsStore) -> None:
        self._parts = parts

    @asynccontextmanager
    async def sink(self, job: Job, processors: list[ProcessorRef]) -> AsyncIterator[ChunkSink]:
        """The chain of these processors on the job's context."""
        place = StreamPlace.of(job.ctx)
        parts = await self._parts.open(place)
        before = [len(received) for received in parts.lists_of(len(processors))]
        try:
            async with within(parts)(job, processors) as sink:
                yield sink
        finally:
            if parts.grown(before):
                job.ctx.stream_ids.append(job.outbox.fence)
                await self._parts.save(place, job.outbox.fence, parts, before)
            else:
                self._parts.keep(place, parts)


def within(parts: RunParts, before: StreamChain | None = None) -> SinkFactory:
    """Makes local sinks that are a part of the stream which has received these."""
    return partial(_sink, parts, before)


@asynccontextmanager
async def _sink(
    parts: RunParts, before: StreamChain | None, job: Job, processors: list[ProcessorRef]
) -> AsyncIterator[LocalSink]:
    links = await job.instances.links(processors, job.command.chain_places)
    sink = LocalSink(job, links, parts.lists_of(len(links)), before)
    async with sink.chain:
        yield sink
        await sink.end()
