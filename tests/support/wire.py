"""Plays the services of one tenant on the wire, for tests of clients."""

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator
from typing import Any

import nats
import orjson
from nats.aio.client import Client

from procession_schemas import subjects
from procession_services.bus.backlog import backlog
from procession_services.bus.streams import ensure_streams

__all__ = ["Services", "services_at"]

_TENANTS = (f"test-{os.getpid()}-{number}" for number in itertools.count())


class Services:
    """Takes the requests of one tenant and sends what a test wants sent."""

    def __init__(self, connection: Client, tenant: str) -> None:
        self.nats, self.tenant = connection, tenant
        self.forgotten = set[str]()
        self.waiting = dict[str, int]()
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._controls: asyncio.Queue[Any] = asyncio.Queue()
        self._moments = itertools.count()

    async def listen(self) -> None:
        """Begins to take requests and controls."""
        await self.nats.subscribe(f"{subjects.ROOT}.run.{self.tenant}.*", cb=self._requests.put)
        await self.nats.subscribe(f"{subjects.ROOT}.control.{self.tenant}.*", cb=self._controls.put)
        await self.nats.subscribe(subjects.api("orchestrator", self.tenant, "backlog"), cb=self._tell_backlog)
        await self.nats.flush()

    async def _tell_backlog(self, message: Any) -> None:
        with contextlib.suppress(nats.errors.Error, TimeoutError):  # NATS is away; the client asks again
            await message.respond(
                await backlog(self.nats.jetstream(), self._knows, message.subject, message.data)
            )

    async def _knows(self, _tenant: str, run: str, _request: int | None) -> tuple[bool, int | None]:
        self.asked.put_nowait(run)
        return run not in self.forgotten, self.waiting.get(run)

    async def request(self) -> tuple[str, dict[str, Any]]:
        """The next request: its subject and its body."""
        message = await self._requests.get()
        return message.subject, orjson.loads(message.data)

    async def control(self) -> Any:
        """The next control message."""
        return orjson.loads((await self._controls.get()).data)

    async def event(self, run: str, type_: str, **fields: Any) -> None:
        """Publishes an event of a run, a second after the one before."""
        at = f"2026-01-01T00:00:{next(self._moments):02}.000Z"
        body = {"type": type_, "runId": run, "at": at, **fields}
        await self.nats.jetstream().publish(subjects.event(self.tenant, run, type_), orjson.dumps(body))

    async def accept(self, run: str, **more: Any) -> None:
        """Says that a run is taken on."""
        await self.event(run, "run.accepted", agent="demo", messageId="m1", **more)

    async def chunks(self, run: str, seq: int, *texts: str, **more: Any) -> None:
        """Publishes a batch of text chunks."""
        chunks = [{"type": "text-delta", "runId": run, "payload": {"text": text}} for text in texts]
        body = orjson.dumps({"run": run, "seq": seq, "chunks": chunks, **more})
        await self.nats.jetstream().publish(subjects.chunk(self.tenant, run), body)

    async def finish(
        self,
        run: str,
        text: str = "",
        status: str = "finished",
        *,
        fence: int = -1,
        end_seq: int | None = None,
        **more: Any,
    ) -> None:
        """Publishes the result of a run; the end of its chunks has at least that fence, and is before that number."""
        result = _result(run, status, text=text) | more
        await self.event(run, "run.finished", fence=fence, endSeq=end_seq, result=result)

    async def suspend(self, run: str, *calls: str, fence: int, end_seq: int | None = None) -> None:
        """Says that a run waits for decisions on calls; what it sends then has that fence."""
        payload = {"calls": [{"toolCallId": call} for call in calls]}
        result = _result(run, "suspended", suspendPayload=payload)
        await self.event(run, "run.suspended", fence=fence, endSeq=end_seq, result=result)


def _result(run: str, status: str, **more: Any) -> dict[str, Any]:
    return {"runId": run, "agent": "demo", "status": status, "finishReason": "stop", **more}


@contextlib.asynccontextmanager
async def services_at(url: str) -> AsyncIterator[Services]:
    """Plays the services of a tenant of its own at a server."""
    connection = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=_quiet)
    await ensure_streams(connection.jetstream())
    services = Services(connection, next(_TENANTS))
    await services.listen()
    yield services
    await connection.close()


async def _quiet(_error: Exception) -> None:
    pass
