"""Runs of several tenants, all the time; whatever happens to one of them that should not is noted."""

import asyncio
import contextlib
import itertools
import json
import secrets
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nats.aio.client import Client

from procession.client import Procession, RunHandle
from procession.errors import ProcessionError
from procession_schemas import subjects
from procession_schemas.agent import Agent

if TYPE_CHECKING:
    from tests.e2e.scenario import System

__all__ = ["TENANTS", "Figures", "answered_once", "load", "more_ended", "remembering", "say", "some_runs"]

TENANTS: Final = ("acme", "globex")
CLIENTS: Final = 2
"""Of each tenant."""
RUN_SECONDS: Final = 180.0
STORED_SECONDS: Final = 30.0


@dataclass
class Figures:
    """What happened."""

    runs: int = 0
    chunks: int = 0
    resets: int = 0
    slowest: float = 0.0
    stopping: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Notes how long something took."""
        started, before = time.monotonic(), self.runs
        yield
        self.seconds[name] = round(time.monotonic() - started, 1)
        say(f"{name}: {self.seconds[name]} s, {self.runs - before} runs")

    def expect(self, told: bool, wrong: str) -> None:
        """Notes what is wrong."""
        if not told:
            self.wrong.append(wrong)
            say(f"wrong: {wrong}")

    def told(self) -> int:
        """Tells the figures in one line; 1 when something was wrong."""
        figures = {
            "runs": self.runs, "wrong": len(self.wrong), "chunks": self.chunks, "resets": self.resets,
            "slowestRun": round(self.slowest, 1), "slowestStop": self.stopping, "seconds": self.seconds,
        }  # fmt: skip
        say(json.dumps(figures))
        return 1 if self.wrong or not self.runs else 0


@asynccontextmanager
async def load(system: "System", figures: Figures) -> AsyncIterator[dict[str, list[str]]]:
    """Runs for the length of the block; gives their ids by tenant. Every one that was begun is waited for."""
    stopping = asyncio.Event()
    ids: dict[str, list[str]] = {tenant: [] for tenant in TENANTS}

    async def client(procession: Procession, number: int) -> None:
        for kind in itertools.count(number):
            if stopping.is_set():
                return
            ids[procession.tenant].append(await _noted(system, procession, kind, figures))

    async with AsyncExitStack() as clients:
        working = [
            asyncio.create_task(client(procession, number))
            for tenant in TENANTS
            for procession in [await clients.enter_async_context(system.client(tenant))]
            for number in range(CLIENTS)
        ]
        try:
            yield ids
        finally:
            stopping.set()
            await asyncio.gather(*working)


async def more_ended(ids: dict[str, list[str]], many: int = 6) -> None:
    """Returns when so many more runs of a load have ended; as many are at work then as ever."""
    wanted = sum(map(len, ids.values())) + many
    async with asyncio.timeout(RUN_SECONDS):
        while sum(map(len, ids.values())) < wanted:  # noqa: ASYNC110 - clients note it, and set no event
            await asyncio.sleep(0.1)


async def some_runs(system: "System", figures: Figures, many: int = 6) -> dict[str, list[str]]:
    """A few runs of the first tenant, of every kind."""
    async with system.client(TENANTS[0]) as procession:
        ids = [await _noted(system, procession, kind, figures) for kind in range(many)]
    return {TENANTS[0]: ids}


async def _noted(system: "System", procession: Procession, kind: int, figures: Figures) -> str:
    run = f"e2e-{secrets.token_hex(8)}"
    try:
        async with asyncio.timeout(RUN_SECONDS):
            await _one(procession, run, _asked(system, run, kind), figures)
    except Exception as error:  # noqa: BLE001 - whatever it is, the run counts as lost
        figures.expect(False, f"{run}: {error!r}")
    figures.runs += 1
    return run


def remembering(system: "System", model: str = "openai/demo") -> Agent:
    """An agent with memory."""
    memory = {"lastMessages": 4, "semanticRecall": {"topK": 2}}
    told = {"name": "remembering", "model": model, "apiBase": system.api_base, "memory": memory}
    return Agent.model_validate(told)


def _asked(system: "System", run: str, kind: int) -> tuple[str, dict[str, Any]]:
    """A tool's run, one whose first model call fails, and one that remembers: every service has its part."""
    match kind % 3:
        case 0:
            text = "What is the weather in Paris, and whom can I write to about it?"
            return text, {"agent": "demo"}
        case 1:
            return f"What is flaky about {run}?", {"agent": "demo"}
        case _:
            memory = {"thread": f"thread-{run[-1]}", "resource": "load"}
            return f"What was {run} about?", {"agent": remembering(system), "memory": memory}


async def _one(procession: Procession, run: str, asked: tuple[str, dict[str, Any]], figures: Figures) -> None:
    """One run: its result must be good, and its chunks must say what its result says."""
    started, shown = time.monotonic(), ""
    handle = await _started(procession, run, *asked)
    async for chunk in handle:
        figures.chunks += 1
        if chunk["type"] == "reset":
            figures.resets += 1
        if chunk["type"] == "text-delta":
            shown += chunk["payload"]["text"]
    result = await handle.result()
    figures.slowest = max(figures.slowest, time.monotonic() - started)
    await handle.close()
    figures.expect(result.status == "finished", f"{run}: {result.status}, {result.error}")
    told = bool(result.text) and shown.endswith(result.text)
    figures.expect(told, f"{run}: showed {shown!r}, answered {result.text!r}")


async def _started(procession: Procession, run: str, text: str, options: dict[str, Any]) -> RunHandle:
    """NATS may be away: the same request under the same id is the same run."""
    while True:
        try:
            return await procession.start(text, run_id=run, **options)
        except ProcessionError:
            await asyncio.sleep(0.5)


async def answered_once(system: "System", runs: dict[str, list[str]], figures: Figures) -> None:
    """Every run has exactly one terminal event in the stream; clients may hear of one before it is stored."""
    connection = await system.operator()
    counts: dict[str, int] = {}
    wanted = {subjects.event(tenant, run, "run.finished"): run for tenant, ids in runs.items() for run in ids}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STORED_SECONDS):
            while not wanted.keys() <= (counts := await _stored(connection, list(runs))).keys():  # noqa: ASYNC110
                await asyncio.sleep(1)
    for subject, run in wanted.items():
        found = counts.get(subject, 0)
        figures.expect(found == 1, f"{run}: {found} terminal events")
    await connection.close()


async def _stored(connection: Client, tenants: list[str]) -> dict[str, int]:
    """How many terminal events the stream has on each subject."""
    counts: dict[str, int] = {}
    for tenant in tenants:
        pattern = subjects.event(tenant, "x", "run.finished").replace(".x.", ".*.")
        asked = json.dumps({"subjects_filter": pattern}).encode()
        answer = await connection.request("$JS.API.STREAM.INFO.EVENTS", asked, timeout=10)
        counts |= json.loads(answer.data)["state"].get("subjects") or {}
    return counts


def say(text: str) -> None:
    """Tells it at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
