"""What runs leave in the process that worked on them: nothing that grows by the run, for a system runs for months."""

import asyncio
import gc
import math
import time
import tracemalloc

import pytest
import pytest_asyncio

from procession_services.bus import unconfirmed
from procession_services.output_processors import parts
from procession_services.tools import execute
from tests.support.system import SERVICES, finished, running_system

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]
RUNS = 40
"""Of each kind."""
BYTES = 1500
"""That a run of one kind may leave: its id is kept here and there, up to a limit, and buffers are not always full."""
STILL_SECONDS = 8
GUARDED = {"inputProcessors": ["unicode-normalizer"], "outputProcessors": ["upper"], "tools": ["echo"]}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory, monkeypatch_module):
    """All services in this process. What they keep of the last runs on purpose is less than else."""
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    monkeypatch_module.setattr(parts, "_HELD_SECONDS", 0.0)
    monkeypatch_module.setattr(execute._EXECUTIONS, "_keep", 2)
    monkeypatch_module.setattr(unconfirmed, "_ASK_MESSAGES", 1)
    logs = tmp_path_factory.mktemp("left")
    async with running_system(servers, logs) as system, system.inside(*SERVICES, together=True):
        yield system


async def with_a_tool(system, number):
    agent = {**GUARDED, "model": "openai/mock:chunks=20,tools=1,tool_name=echo"}
    result, _ = await system.run(agent=agent)
    assert (result.status, len(result.steps)) == ("finished", 2), result.error


async def with_memory(system, number):
    agent = {**GUARDED, "model": "openai/mock:chunks=20", "memory": {"lastMessages": 5}}
    result, _ = await system.run(agent=agent, memory={"thread": f"thread-{number}", "resource": "r"})
    assert result.status == "finished", result.error


async def cancelled(system, number):
    handle = await system.start(agent={**GUARDED, "model": "openai/mock:chunks=1000,delay=20"})
    async for chunk in handle:
        if chunk["type"] == "text-delta":
            break
    await handle.cancel()
    result, _ = await finished(handle)
    assert result.status == "cancelled"


async def failed(system, number):
    result, _ = await system.run(agent={**GUARDED, "model": "openai/mock:err=400"})
    assert result.status == "failed"


async def unheard(system, number):
    """Until it is over, by a client that has gone away."""
    handle = await system.start(agent={**GUARDED, "model": "openai/mock:chunks=20,delay=5"})
    await handle.close()
    result, _ = await finished(await system.client.attach(handle.run_id))
    assert result.status == "finished", result.error


KINDS = (with_a_tool, with_memory, cancelled, failed, unheard)


async def test_memory_does_not_grow_with_the_number_of_runs(system):
    async def runs():
        for number in range(0, RUNS, 2):
            await asyncio.gather(*(run(system, n) for run in KINDS for n in (number, number + 1)))

    await runs()
    tracemalloc.start()
    try:
        await runs()
        held = await lowest()
        before = tracemalloc.take_snapshot()
        await runs()
        grown = (await lowest(held + BYTES * RUNS) - held) / RUNS
        where = "\n".join(map(str, tracemalloc.take_snapshot().compare_to(before, "lineno")[:10]))
        assert grown <= BYTES, f"a run of each kind leaves {grown:.0f} bytes:\n{where}"
    finally:
        tracemalloc.stop()


async def lowest(enough: float = 0) -> int:
    """Bytes that are held when it gets no less any more: what is sure to be stored is forgotten after some seconds.

    `enough` ends the wait.
    """
    least, since = math.inf, time.monotonic()
    while time.monotonic() < since + STILL_SECONDS and least > enough:
        gc.collect()
        if (held := tracemalloc.get_traced_memory()[0]) < least * 0.99:
            least, since = held, time.monotonic()
        await asyncio.sleep(0.2)
    return int(least)
