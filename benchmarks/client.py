"""The client's process on our side: starts runs when told to and tells how they went.

Reads a `Command` per line on stdin. For each it writes the lines `{"event": "begin"}` and `{"event": "end"}`
around what counts, so that the harness can read the CPU clocks of all processes there, then an `Outcome`.
`peer.mjs` speaks the same protocol.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import aiohttp
import uvloop

from benchmarks import counting
from benchmarks.agents import INSTRUCTIONS, agent_name
from benchmarks.protocol import (
    INPUT,
    RESOURCE,
    SETTLE_SECONDS,
    SPREAD,
    START_SECONDS,
    WARM_SECONDS,
    Command,
    Outcome,
    Run,
)
from procession.client import Procession

_PATIENCE_SECONDS: Final = 120.0
_EXCERPT: Final = 200

Texts = Callable[[Command], AsyncIterator[str]]


@dataclass(frozen=True, slots=True)
class Client:
    """Both ways to a model's text: a run of an agent, and a bare request to the model server."""

    procession: Procession
    http: aiohttp.ClientSession
    api: str

    async def agent_texts(self, command: Command) -> AsyncIterator[str]:
        """The text chunks of one run; raises when the run does not finish well."""
        memory = command.thread and {"thread": command.thread, "resource": RESOURCE}
        handle = await self.procession.start(
            INPUT,
            agent=agent_name(
                command.outputs,
                inputs=command.inputs,
                tools=command.tools,
                stamped=command.stamped,
                memory=bool(memory),
            ),
            model=f"openai/{command.model}",
            memory=memory,
        )
        try:
            async for chunk in handle.chunks(idle_timeout=_PATIENCE_SECONDS):
                if chunk["type"] == "text-delta":
                    yield chunk["payload"]["text"]
            result = await handle.result(timeout=_PATIENCE_SECONDS, raise_on_error=True)
            if command.text is not None and result.text != command.text:
                raise ValueError(f"wrong text in the result: {result.text[:_EXCERPT]}")
        finally:
            await handle.close()

    async def raw_texts(self, command: Command) -> AsyncIterator[str]:
        """The text chunks of the same model call without anything between."""
        body = {
            "model": command.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [
                {"role": "system", "content": INSTRUCTIONS},
                {"role": "user", "content": INPUT},
            ],
        }
        async with self.http.post(f"{self.api}/chat/completions", json=body) as response:
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                choices = json.loads(line[6:])["choices"]
                text = choices[0]["delta"].get("content") if choices else None
                if text:
                    yield text


async def one_run(texts: Texts, command: Command, on_text: Callable[[str], None] | None = None) -> Run:
    """Reads one run to its end and checks its text; what went wrong is in `problem`."""
    began = time.perf_counter()
    first: float | None = None
    parts: list[str] = []
    problem: str | None = None
    try:
        async for text in texts(command):
            if first is None:
                first = (time.perf_counter() - began) * 1e3
            parts.append(text)
            if on_text is not None:
                on_text(text)
        got = "".join(parts)
        if len(parts) != command.chunks if command.text is None else got != command.text:
            problem = f"wrong text in {len(parts)} chunks: {got[:_EXCERPT]}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told with the outcome and ends the benchmark
        problem = f"{type(error).__name__}: {error}"
    wall = (time.perf_counter() - began) * 1e3
    return Run(wall_ms=wall, first_ms=first, chunks=len(parts), problem=problem)


async def pooled(texts: Texts, command: Command) -> Outcome:
    """Some runs to warm up, then those that count, `concurrency` at a time."""
    warm = await _pool(partial(one_run, texts, command), command.warm, command.concurrency)
    _say({"event": "begin"})
    began = time.perf_counter()
    runs = await _pool(partial(one_run, texts, command), command.runs, command.concurrency)
    seconds = time.perf_counter() - began
    await asyncio.sleep(SETTLE_SECONDS)  # what is done behind the last answer counts, too
    _say({"event": "end"})
    return Outcome(
        runs=runs, seconds=seconds, lags=[], problems=[r.problem for r in (*warm, *runs) if r.problem]
    )


async def paced(texts: Texts, command: Command) -> Outcome:
    """`concurrency` streams that started within one second; counts a window in the middle of them.

    They start so that their chunks are spread over the time between two chunks of one: evenly spaced over the second,
    50 streams of 50 chunks/s would all send at the same moment.
    """
    lags: list[float] = []
    inner: list[float] = []
    counting = False

    def on_text(text: str) -> None:
        if not counting:
            return
        sent = int(text[1 : text.index("@", 1)])
        lags.append((time.monotonic_ns() - sent) / 1e6)
        if command.stamped:
            inner.append((int(text[text.rindex("@") + 1 :]) - sent) / 1e6)

    async def stream(number: int) -> Run:
        await asyncio.sleep(number * SPREAD % 1 * START_SECONDS)
        return await one_run(texts, command, on_text)

    streams = [asyncio.create_task(stream(number)) for number in range(command.concurrency)]
    await asyncio.sleep(WARM_SECONDS)
    _say({"event": "begin"})
    counting = True
    began = time.perf_counter()
    await asyncio.sleep(command.seconds)
    counting = False
    seconds = time.perf_counter() - began
    _say({"event": "end"})
    runs = await asyncio.gather(*streams)
    problems = [r.problem for r in runs if r.problem]
    return Outcome(runs=runs, seconds=seconds, lags=lags, inner_lags=inner, problems=problems)


async def _pool(run: Callable[[], Any], count: int, concurrency: int) -> list[Run]:
    left = iter(range(count))
    runs: list[Run] = []

    async def worker() -> None:
        for _ in left:
            runs.append(await run())  # noqa: PERF401 - the workers share the list

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return runs


def _say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def main(nats_url: str, api: str) -> None:
    """Serves commands until stdin ends."""
    counting.listen()
    async with Procession(nats_url) as procession, aiohttp.ClientSession() as http:
        client = Client(procession, http, api)
        _say({"event": "ready", "versions": {"python": sys.version.split()[0]}})
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = Command.model_validate_json(line)
            texts = client.raw_texts if command.raw else client.agent_texts
            outcome = await (paced if command.seconds else pooled)(texts, command)
            _say(outcome.model_dump(mode="json", by_alias=True))


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
