"""Runs of all kinds, one after another, from several clients, each read and judged."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from procession.client import NotAcceptedError, NotConnectedError, Procession, UnknownRunError
from procession_schemas.agent import Agent
from tests.support.system import System, text_of

__all__ = ["Load", "Run", "one_run"]

_CALL: Final = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "x"}}]}
_AGENTS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "chain": {"outputProcessors": ["upper"]},
    "tools": {"tools": ["echo"], "outputProcessors": ["upper"]},
    "guarded": {"inputProcessors": ["unicode-normalizer", {"id": "beside", "options": {}}]},
    "remembers": {"memory": {"lastMessages": 5}},
    "recovers": {"errorProcessors": ["retry"], "outputProcessors": ["upper"]},
}
_FIRST: Final[dict[str, dict[str, Any]]] = {
    "tools": _CALL,
    "recovers": {"error": {"status": 400, "message": "try again"}},
}
"""What the model says before its answer."""
_RUN_SECONDS: Final = 60.0
"""Longer than an election of NATS (4 to 9 s) and a lease of these tests."""
_AGAIN_SECONDS: Final = 0.2
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Run:
    """How a run went.

    Attributes:
        wrong: What was wrong with it; empty when all was well.
        resets: How often the client had to take something back.
        extra: How many calls of the model there were beyond those that the run needs.
    """

    id: str
    wrong: str
    resets: int
    extra: int


async def one_run(
    system: System, client: Procession, late: Procession, *, words: int = 20, pace: float = 15
) -> Run:
    """A run, read to its end by one client, and again by another one that comes late."""
    number = next(_numbers)
    run, kind = f"run-{number}", list(_AGENTS)[number % len(_AGENTS)]
    texts = [f"{number}-{word} " for word in range(words)]
    calls = [*([_FIRST[kind]] if kind in _FIRST else []), {"chunks": texts, "chunk_delay_ms": pace}]
    model = system.script(*calls)
    agent = Agent.model_validate({"name": kind, "model": model, **_AGENTS[kind]})
    options = {"memory": {"thread": run, "resource": "r"}} if kind == "remembers" else {}
    expected = "".join(texts).upper() if "outputProcessors" in _AGENTS[kind] else "".join(texts)
    handle = await _started(client, agent, run, **options)
    try:
        async with asyncio.timeout(_RUN_SECONDS + words * pace / 1000):
            chunks = [chunk async for chunk in handle]
            result = await handle.result()
            again = await _attached(late, run)
            later = [chunk async for chunk in again]
            await again.close()
    except Exception as error:  # noqa: BLE001 - the other runs go on
        return Run(run, f"{run} ({kind}): {error!r} at {handle.position}", 0, 0)
    finally:
        await handle.close()
    told = (result.status, result.text, text_of(chunks), text_of(later))
    wrong = told != ("finished", expected, expected, expected)
    resets = sum(chunk["type"] == "reset" for chunk in chunks)
    extra = len(system.requests(model)) - len(calls)
    return Run(run, f"{run} ({kind}): {told} {result.error}" * wrong, resets, extra)


async def _started(client: Procession, agent: Agent, run: str, **options: Any) -> Any:
    """Starts a run; one that is not accepted in time is sent again under its id."""
    while True:
        try:
            return await client.start("Hello", agent=agent, run_id=run, **options)
        except NotAcceptedError:
            await asyncio.sleep(_AGAIN_SECONDS)


async def _attached(client: Procession, run: str) -> Any:
    """A handle on a run; the streams may have no leader at the moment."""
    while True:
        try:
            return await client.attach(run)
        except (NotConnectedError, UnknownRunError):
            await asyncio.sleep(_AGAIN_SECONDS)


class Load:
    """Clients that start one run after another, `each` of them so many at once."""

    def __init__(self, system: System, clients: Sequence[Procession], *, each: int, **options: Any) -> None:
        self._system, self._clients, self._options = system, clients, options
        self._enough, self._ended = asyncio.Event(), asyncio.Condition()
        self.runs: list[Run] = []
        self._tasks = [asyncio.create_task(self._keep(client)) for client in [*clients] * each]

    async def _keep(self, client: Procession) -> None:
        while not self._enough.is_set():
            late = self._clients[len(self.runs) % len(self._clients)]
            run = await one_run(self._system, client, late, **self._options)
            async with self._ended:
                self.runs.append(run)
                self._ended.notify_all()

    async def more(self, number: int) -> None:
        """Waits until so many more runs have ended."""
        until = len(self.runs) + number
        async with self._ended:
            await self._ended.wait_for(lambda: len(self.runs) >= until)

    async def end(self) -> list[Run]:
        """Lets what runs come to its end; all runs of the load."""
        self._enough.set()
        await asyncio.gather(*self._tasks)
        return self.runs
