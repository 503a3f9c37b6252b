"""What runs may hold in memory."""

import asyncio
import gc

import pytest

from benchmarks.machine import resident_mb
from procession_services.output_processors.parts import RunParts
from tests.support.system import running_system

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="session"),
]

CHUNK = 50_000
CHUNKS = 2000


async def test_a_processor_that_waits_keeps_the_provider_waiting(servers, tmp_path):
    async with running_system(servers, tmp_path) as system:
        gateway = await system.process("llm_gateway").start()
        try:
            await gateway.ready()
            async with system.inside("orchestrator", "input_processors", "output_processors"):
                gate, chunks = system.gate(), system.models.stats.chunks
                answer = {"chunks": ["x" * CHUNK] * CHUNKS}
                handle = await system.start(
                    answer, agent={"outputProcessors": [gate.processor("processOutputStream")]}
                )
                await gate.reached()
                before = resident_mb(gateway.process.pid)
                sent = await _all_that_is_sent(system, chunks)
                grown = resident_mb(gateway.process.pid) - before
                await handle.cancel()
                await gate.open()
                assert (await handle.result(timeout=30)).status == "cancelled"
        finally:
            await gateway.stop()
    assert CHUNK < sent < 30_000_000
    assert grown < 60


async def test_a_run_that_is_over_leaves_no_stream_parts(system):
    call = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
    for agent in ({"outputProcessors": ["upper"]}, {"outputProcessors": ["upper"], "tools": ["echo"]}):
        calls = [call, {"chunks": ["done"]}] if "tools" in agent else [{"chunks": ["done"]}]
        result, _ = await system.run(*calls, agent=agent)
        assert result.text == "DONE"
    async with asyncio.timeout(10):
        while any(isinstance(each, RunParts) for each in gc.get_objects()):  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.05)


async def _all_that_is_sent(system, before):
    """The bytes that the model server has sent when it can send no more."""
    sent, still = -1, 0
    async with asyncio.timeout(60):
        while still < 4:
            now = (system.models.stats.chunks - before) * CHUNK
            still = still + 1 if now == sent else 0
            sent = now
            await asyncio.sleep(0.5)
    return sent
