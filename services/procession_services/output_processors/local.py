"""The output chain for commands that this service itself works on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from procession.response import ResponseCollector
from procession.stream import StreamChain
from procession_schemas.agent import ProcessorRef
from procession_schemas.chunks import Chunk
from procession_services.output_processors.parts import PartsStore
from procession_services.processor_host.job import Job


class LocalSink:
    """Chunks through the chain in this process; `delivered` are those that reached the client."""

    def __init__(self, job: Job, chain_options: dict[str, Any]) -> None:
        self.delivered: list[Chunk] = []
        self._job = job
        self._collector = ResponseCollector()
        self._chain = StreamChain(deliver=self._deliver, collector=self._collector, **chain_options)

    def _deliver(self, chunk: Chunk) -> None:
        self.delivered.append(chunk)
        self._job.outbox.put(chunk)
        self._job.keep_data(chunk)

    async def send(self, chunks: list[Chunk]) -> None:
        """Hands chunks to the chain."""
        for chunk in chunks:
            await self._chain.feed(chunk)
        await self._job.outbox.flush()

    async def end(self) -> None:
        """Gives out what the chain holds back."""
        await self._chain.end()
        await self._job.outbox.flush()


class LocalSinks:
    """Makes local sinks."""

    def __init__(self, parts: PartsStore) -> None:
        self._parts = parts

    @asynccontextmanager
    async def sink(self, job: Job, processors: list[ProcessorRef]) -> AsyncIterator[LocalSink]:
        """The chain of these processors on the job's context."""
        command = job.command
        links = job.instances.links(processors)
        parts = await self._parts.open(command.tenant, command.run, command.seq, len(links))
        before = [len(received) for received in parts.lists[: len(links)]]
        options = {"links": links, "ctx": job.ctx, "calls": job.calls, "parts": parts.lists[: len(links)]}
        try:
            sink = LocalSink(job, options)
            yield sink
            await sink.end()
        finally:
            await self._parts.save(command.tenant, command.run, command.seq, parts, before)
