"""`python -m benchmarks replay`: what it costs another output replica to take over a stream of many chunks.

We play the sender of a stream lease whose replica has died: CHUNKS holds all but the newest chunk, and a replica
gets the lease with every raw chunk so far. Measured is the time from there until the one chunk comes
that clients do not have, and the CPU of the replica.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nats
import orjson
from nats.aio.client import Client

from benchmarks.machine import cpu_seconds, facts
from benchmarks.records import spread
from procession.message_list import MessageList
from procession_schemas import subjects
from procession_schemas.work import WorkCommand
from procession_services.bus.streams import ensure_streams
from procession_services.runtime.embedded import embedded

__all__ = ["FULL", "QUICK", "Size", "measure"]

_SERVICE: Final = "output_processors"
_TENANT: Final = "bench"
_FRAME: Final = 4000
_CHAINS: Final[dict[str, list[dict[str, Any]]]] = {
    "three that do little": [
        {"id": "bench-pass-through"}, {"id": "bench-word-count"}, {"id": "bench-content-filter"},
    ],
    "pii-detector": [{"id": "pii-detector"}],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: chunks of a stream, and how often."""

    chunks: tuple[int, ...]
    repetitions: int


FULL: Final = Size(chunks=(100, 1000, 10_000, 50_000), repetitions=5)
QUICK: Final = Size(chunks=(10, 100), repetitions=1)


async def measure(size: Size) -> dict[str, Any]:
    """Starts everything, measures, and stops it."""
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="procession-replay-"))
        servers = await stack.enter_async_context(embedded(Path(directory)))
        pid = await stack.enter_async_context(_replica(servers.nats_url, servers.redis_url))
        connection = await stack.enter_async_context(await nats.connect(servers.nats_url))
        await ensure_streams(connection.jetstream())
        sender = _Sender(connection, pid)
        await sender.open()
        rows = [
            await _row(sender, name, chunks, size.repetitions) for name in _CHAINS for chunks in size.chunks
        ]
    return {"machine": facts(), "replay": rows, "problems": []}


async def _row(sender: "_Sender", chain: str, chunks: int, repetitions: int) -> dict[str, Any]:
    await sender.take_over(chain, chunks)
    taken = [await sender.take_over(chain, chunks) for _ in range(repetitions)]
    return {
        "processors": chain,
        "chunks": chunks,
        "gap_ms": spread([gap * 1e3 for gap, _ in taken], 1),
        "replica_cpu_ms": spread([cpu * 1e3 for _, cpu in taken], 1),
        "replica_us_per_chunk": round(min(cpu for _, cpu in taken) / chunks * 1e6, 1),
    }


@asynccontextmanager
async def _replica(nats_url: str, redis_url: str) -> AsyncIterator[int]:
    """One replica of the output processors; yields its process id."""
    environment = {
        **os.environ,
        "PROCESSION_NATS_URL": nats_url,
        "PROCESSION_REDIS_URL": redis_url,
        "PROCESSION_PLUGINS": "benchmarks.processors",
    }
    command = (sys.executable, "-m", "procession_services", "serve", _SERVICE)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        yield process.pid
    finally:
        process.terminate()
        await process.wait()


class _Sender:
    """Takes leases on streams that somebody else had."""

    def __init__(self, connection: Client, pid: int) -> None:
        self._nats, self._pid = connection, pid
        self._numbers = iter(range(1_000_000))
        self._seen: asyncio.Queue[int] = asyncio.Queue()
        self._done = asyncio.Event()

    async def open(self) -> None:
        """Listens for chunks and answers."""
        await self._nats.subscribe(f"{subjects.ROOT}.chunk.{_TENANT}.*", cb=self._on_chunks)
        await self._nats.subscribe(f"{subjects.answers('llm_gateway', 'replay')}.*", cb=self._on_answer)

    async def take_over(self, chain: str, count: int) -> tuple[float, float]:
        """Seconds until the newest chunk came, and of the replica's CPU."""
        run = f"replay-{next(self._numbers)}"
        raw = [
            {"type": "text-delta", "payload": {"id": "t", "text": f"word {n} and more "}}
            for n in range(count)
        ]
        raw.append({"type": "text-end", "payload": {"id": "t"}})
        had = {"run": run, "seq": count - 1, "fence": 1, "chunks": raw[count - 1 : count]}
        await self._nats.jetstream().publish(subjects.chunk(_TENANT, run), orjson.dumps(had))
        lease = _lease(chain, run)
        cpu, began = cpu_seconds(self._pid), time.perf_counter()
        body = orjson.dumps({**lease, "chunks": raw})
        if len(body) > self._nats.max_payload:
            body = orjson.dumps(lease)
        reply = orjson.loads((await self._nats.request(subjects.lease(_SERVICE), body, timeout=20)).data)
        for start in range(reply.get("taken", 0), len(raw), _FRAME):
            await self._frame(reply["inbox"], run, start, raw[start : start + _FRAME])
        while await self._seen.get() < count:
            pass
        gap = time.perf_counter() - began
        cpu = cpu_seconds(self._pid) - cpu
        self._done.clear()
        await self._frame(reply["inbox"], run, len(raw), [], e=True)
        await self._done.wait()
        return gap, cpu

    async def _frame(self, inbox: str, run: str, start: int, chunks: list[Any], **more: bool) -> None:
        frame = {"s": run, "l": 2, "n": start, "c": chunks, **more}
        await self._nats.publish(
            inbox, orjson.dumps(frame), reply=f"{subjects.answers('llm_gateway', 'replay')}.{run}"
        )

    async def _on_chunks(self, message: Any) -> None:
        batch = orjson.loads(message.data)
        if batch["fence"] > 1 and batch["chunks"]:
            self._seen.put_nowait(batch["seq"] + len(batch["chunks"]) - 1)

    async def _on_answer(self, message: Any) -> None:
        if "done" in orjson.loads(message.data):
            self._done.set()


def _lease(chain: str, run: str) -> dict[str, Any]:
    command = WorkCommand(
        run=run, tenant=_TENANT, agent="bench", seq=1, service="llm_gateway", version=1, out_seq=0, message_id="m",
        ops=[],
    )  # fmt: skip
    messages = MessageList(new_id=lambda: "m", now=lambda: "").serialize()
    return {
        "session": run, "kind": "model", "attempt": 2, "acks": subjects.answers("llm_gateway", "replay"),
        "resume": True,
        "command": command.to_dict(), "processors": _CHAINS[chain], "states": {}, "outSeq": 0,
        "requestContext": {}, "stepNumber": 0, "retryCount": 0, "fence": 1, "messages": messages,
    }  # fmt: skip
