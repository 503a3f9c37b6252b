"""`python -m benchmarks fairness`: what one tenant feels of another one's flood.

The quiet tenant sends one request after the other, alone and then beside a tenant that has sent thousands at once.
Every service is a process of its own. The model needs as long for an answer as the size says, so that places are what
is short, and not only CPU.
"""

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import nats
from nats.aio.msg import Msg

from benchmarks.machine import facts
from benchmarks.records import percentile, spread
from benchmarks.sides import model_server
from procession.client import Procession
from procession_schemas import subjects
from procession_schemas.agent import Agent
from procession_services.supervisor import system

__all__ = ["FULL", "QUICK", "Size", "measure"]

_FLOODING: Final = "flood"
_CHUNK: Final = "word "
_PATIENCE_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Attributes:
        flood: Requests of the other tenant.
        chunks: Texts of an answer, `pace_ms` milliseconds apart.
        alone: Runs of the quiet tenant while nobody else is there.
        beside: Most of its runs beside the flood; it stops earlier when the flood is over.
        places: Runs that one gateway works on at once (PROCESSION_WORKER_CONCURRENCY).
    """

    flood: int
    chunks: int
    pace_ms: int
    alone: int
    beside: int
    places: int


FULL: Final = Size(flood=2_000, chunks=50, pace_ms=20, alone=20, beside=200, places=128)
QUICK: Final = Size(flood=30, chunks=3, pace_ms=5, alone=2, beside=3, places=4)


async def measure(size: Size) -> dict[str, Any]:
    """Starts everything, measures, and stops it."""
    problems: list[str] = []
    async with model_server() as (api, _):
        environment = {
            "PROCESSION_API_BASE": api,
            "PROCESSION_WORKER_CONCURRENCY": str(size.places),
            "OPENAI_API_KEY": "none-needed",
            "PATH": os.environ["PATH"],
        }
        async with (
            system(environment=environment) as running,
            Procession(running.nats_url, tenant="quiet") as client,
        ):
            model = await _script(api, size)
            agent = Agent(name="plain", model=model)
            await _runs(client, agent, 5, lambda: False, [])  # warms up
            alone = await _runs(client, agent, size.alone, lambda: False, problems)
            flood = _Flood(size.flood)
            sending = asyncio.create_task(flood.send(running.nats_url, agent))
            await flood.stored.wait()
            beside = await _runs(client, agent, size.beside, flood.over, problems)
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await sending
    if flood.told["lost"]:
        problems.append(f"{flood.told['lost']} requests of the flood were not answered")
    return {
        "machine": facts(),
        "alone": _told(alone),
        "beside": _told(beside),
        "flood": dict(flood.told),
        "problems": problems,
    }


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the quiet tenant: milliseconds to its first text and to its end."""

    first: float
    whole: float


class _Flood:
    """Many requests at once, and what becomes of them."""

    def __init__(self, number: int) -> None:
        self.stored = asyncio.Event()
        self.told: Counter[str] = Counter()
        self._number = number
        self._open = number
        self._over = asyncio.Event()

    def over(self) -> bool:
        """Whether all have got their answer."""
        return self._over.is_set()

    async def send(self, url: str, agent: Agent) -> None:
        """Sends all, and returns when each has ended or was refused."""
        connection = await nats.connect(url, pending_size=64 * 1024 * 1024)
        await connection.subscribe(f"{subjects.ROOT}.event.{_FLOODING}.>", cb=self._on_event)
        body = json.dumps({"input": "Hello", "agent": agent.model_dump(by_alias=True, exclude_unset=True)})
        subject, jetstream = subjects.run(_FLOODING, agent.name), connection.jetstream()
        began = time.perf_counter()
        for at in range(0, self._number, 250):
            ids = range(at, min(at + 250, self._number))
            answers = await asyncio.gather(
                *(
                    jetstream.publish(
                        subject, body.encode(), headers={"Nats-Msg-Id": f"flood-{n}"}, timeout=30
                    )
                    for n in ids
                ),
                return_exceptions=True,
            )
            for refused in [answer for answer in answers if isinstance(answer, BaseException)]:
                self._answered(f"refused by the stream: {type(refused).__name__}")
        self.told["sent_ms"] = round((time.perf_counter() - began) * 1e3)
        self.stored.set()
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._over.wait()
        except TimeoutError:
            self.told["lost"] = self._open
        self.told["seconds"] = round(time.perf_counter() - began)
        await connection.close()

    async def _on_event(self, message: Msg) -> None:
        event = json.loads(message.data)
        if event["type"] == "run.finished":
            self._answered(event["result"]["status"])
        elif event["type"] == "request.rejected":
            self._answered(event["error"]["code"])

    def _answered(self, how: str) -> None:
        self.told[how] += 1
        self._open -= 1
        if self._open == 0:
            self._over.set()


async def _runs(
    client: Procession, agent: Agent, number: int, over: Callable[[], bool], problems: list[str]
) -> list[_Run]:
    """Runs one after another, until there are enough of them or the flood is over."""
    told: list[_Run] = []
    while len(told) < number and not over():
        told.append(await _one(client, agent, problems))
    return told


async def _one(client: Procession, agent: Agent, problems: list[str]) -> _Run:
    began = time.perf_counter()
    first: float | None = None
    handle = await client.start("Hello", agent=agent)
    async for chunk in handle.chunks(idle_timeout=_PATIENCE_SECONDS):
        if first is None and chunk["type"] == "text-delta":
            first = (time.perf_counter() - began) * 1e3
    result = await handle.result(timeout=_PATIENCE_SECONDS)
    await handle.close()
    if result.status != "finished":
        problems.append(f"{result.status}: {result.error}")
    return _Run(first or 0.0, (time.perf_counter() - began) * 1e3)


def _told(runs: list[_Run]) -> dict[str, Any]:
    return {
        "runs": len(runs),
        "first_text_ms": _times([run.first for run in runs]),
        "whole_ms": _times([run.whole for run in runs]),
    }


def _times(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {**spread(values, 1), "p99": round(percentile(values, 99), 1)}


async def _script(api: str, size: Size) -> str:
    """Has the model server know a model that answers at that pace; returns its name."""
    call = {"chunks": [_CHUNK] * size.chunks, "chunk_delay_ms": size.pace_ms}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{api.removesuffix('/v1')}/mock/script", json={"id": "paced", "calls": [call]}) as answer,
    ):
        answer.raise_for_status()
    return "openai/script:paced"
