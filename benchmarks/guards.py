"""`python -m benchmarks guards`: the time to the first text with a guardrail before the model, and beside it.

The guardrail is `moderation`, whose model takes as long as the row says; so does the model of the agent. Every service
is a process of its own. The three ways take turns, run by run, so that all see the same machine.
"""

import os
import time
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from benchmarks.machine import facts
from benchmarks.records import spread
from benchmarks.sides import model_server
from procession.client import Procession
from procession_schemas.agent import Agent
from procession_services.supervisor import system

__all__ = ["FULL", "QUICK", "Size", "measure"]

_VERDICT: Final = '{"category_scores": [], "reason": null}'
_TEXT: Final = ["Well ", "well."]
_WAYS: Final = {"without": None, "before": False, "beside": True}


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: pairs of milliseconds that the guardrail's model and the agent's model take, and runs."""

    pairs: tuple[tuple[int, int], ...]
    runs: int
    warm: int


FULL: Final = Size(pairs=((0, 0), (300, 0), (0, 300), (150, 300), (300, 300), (300, 150)), runs=20, warm=5)
QUICK: Final = Size(pairs=((30, 30),), runs=2, warm=1)


async def measure(size: Size) -> dict[str, Any]:
    """Starts everything, measures, and stops it."""
    problems: list[str] = []
    async with model_server() as (api, _):
        environment = {
            "PROCESSION_API_BASE": api,
            "OPENAI_API_KEY": "none-needed",
            "PATH": os.environ["PATH"],
        }
        async with system(environment=environment) as running, Procession(running.nats_url) as client:
            rows = [await _row(client, api, pair, size, problems) for pair in size.pairs]
    return {"machine": facts(), "guards": rows, "problems": problems}


async def _row(
    client: Procession, api: str, pair: tuple[int, int], size: Size, problems: list[str]
) -> dict[str, Any]:
    """The milliseconds to the first text in each way."""
    judge = await _script(api, f"judge-{pair[0]}", pair[0], [_VERDICT])
    model = await _script(api, f"model-{pair[1]}", pair[1], _TEXT)
    times: dict[str, list[float]] = {way: [] for way in _WAYS}
    for number in range(size.warm + size.runs):
        for way, parallel in _WAYS.items():
            taken = await _first_text(client, _agent(model, judge, parallel), problems)
            if number >= size.warm:
                times[way].append(taken)
    return {
        "guard_ms": pair[0],
        "model_ms": pair[1],
        **{f"{way}_first_text_ms": spread(taken, 1) for way, taken in times.items()},
    }


async def _script(api: str, name: str, delay: int, chunks: list[str]) -> str:
    """Has the model server know a model that begins to answer after `delay` milliseconds; returns its name."""
    body = {"id": name, "calls": [{"chunks": chunks, "delay_ms": delay}]}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{api.removesuffix('/v1')}/mock/script", json=body) as response,
    ):
        response.raise_for_status()
    return f"openai/script:{name}"


def _agent(model: str, judge: str, parallel: bool | None) -> Agent:  # noqa: FBT001 - None: no guardrail
    options = {"model": judge, "parallel": parallel}
    guards = [] if parallel is None else [{"id": "moderation", "options": options}]
    return Agent.model_validate({"name": "guarded", "model": model, "inputProcessors": guards})


async def _first_text(client: Procession, agent: Agent, problems: list[str]) -> float:
    """Milliseconds from the call to the first text of one run."""
    began = time.perf_counter()
    first: float | None = None
    handle = await client.start("Hello", agent=agent)
    async for chunk in handle:
        if first is None and chunk["type"] == "text-delta":
            first = (time.perf_counter() - began) * 1e3
    result = await handle.result()
    await handle.close()
    if result.text != "".join(_TEXT) or first is None:
        problems.append(f"{result.status}: {result.text!r} {result.error or result.tripwire or ''}")
    return first or 0.0
