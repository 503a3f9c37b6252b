"""What commands send through the output chain beside a model's answer, and what of them is lent to a replica of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn, Self

from procession_schemas.agent import ProcessorRef
from procession_schemas.chunks import Chunk
from procession_services.processor_host.errors import Lent
from procession_services.processor_host.job import Job
from procession_services.processor_host.outcomes import raise_outcome, take_lent, take_outcome
from procession_services.processor_host.service import Host
from procession_services.processor_host.stream_session import Session
from procession_services.processor_host.streams import StreamClient


class StreamSinks:
    """Ways through the output processors for the commands of one service process.

    Attributes:
        streams: What opens them.
    """

    def __init__(self, streams: StreamClient) -> None:
        self.streams = streams

    @classmethod
    async def of(cls, host: Host) -> Self:
        """Those of a service that starts; they end with it."""
        streams = StreamClient(host.bus, host.store, host.service, host.settings.replica)
        await streams.start()
        host.on_stop.append(streams.stop)
        return cls(streams)

    @asynccontextmanager
    async def sink(self, job: Job, processors: list[ProcessorRef]) -> AsyncIterator[Any]:
        """A way through the output chain for chunks of a command that is not a model's answer."""
        session = await self.streams.open(job, processors)
        sink = _SideSink(self.streams, session)
        try:
            yield sink
            await self.streams.finish(session)
        finally:
            self.streams.close(session)
            if session.outcome:
                take_outcome(job, session.outcome)
                sink.rewritten = session.outcome.get("rewritten") or {}
                sink.told_error = session.outcome.get("toldError")
            else:  # as where a hook does not wait any more for what it writes
                job.outbox.give_up(session.attempt)
        raise_outcome(session.outcome)

    async def lend(self, op: Any, job: Job) -> NoReturn:
        """Has a replica run the command's operations from this one on, which sends chunks through the chain.

        Raises:
            Lent: It has; or a processor ended it early.
        """
        session = await self.streams.open(job, op.processors, job.ops_from(op), ended=True, well=True)
        try:
            outcome = await self.streams.finish(session)
        finally:
            self.streams.close(session)
        if "lent" not in outcome:
            take_outcome(job, outcome)
            raise_outcome(outcome)
        raise Lent(take_lent(job, outcome))


class _SideSink:
    """Chunks of tools and hooks on their way through the output chain."""

    def __init__(self, streams: StreamClient, session: Session) -> None:
        self.rewritten: dict[str, dict[str, Any]] = {}
        self.told_error: Any = None
        self._streams, self._session = streams, session

    async def send(self, chunks: list[Chunk], *, last: bool = False) -> None:
        if not await self._streams.send(self._session, chunks, end=last):
            raise_outcome(self._session.outcome)
