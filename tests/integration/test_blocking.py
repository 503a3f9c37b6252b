"""Processors that let nothing else run: their replica looks dead, but the stream must not be handed on for ever."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.support.system import SERVICES, finished, running_system, text_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="session"),
]
WORDS = [f"word{number} " for number in range(8)]


@pytest.mark.parametrize("delay_ms", [0, 20])
async def test_a_stream_whose_processor_blocks_for_long_ends_though_there_are_two_replicas(
    servers, tmp_path, monkeypatch, delay_ms
):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(running_system(servers, tmp_path))
        others = [service for service in SERVICES if service != "output_processors"]
        await stack.enter_async_context(system.inside(*others))
        replicas = [system.process("output_processors", log_level="INFO") for _ in range(2)]
        for replica in replicas:
            stack.push_async_callback(replica.stop)
            await replica.start()
        await asyncio.gather(*(replica.ready() for replica in replicas))
        model = system.script({"chunks": WORDS, "chunk_delay_ms": delay_ms})
        blocking = {"id": "blocking", "options": {"seconds": 1.2}}
        handle = await system.start(agent={"model": model, "outputProcessors": [blocking]})
        async with asyncio.timeout(60):
            result, chunks = await finished(handle)
        assert (result.status, result.text, text_of(chunks)) == ("finished", "".join(WORDS), "".join(WORDS))
        assert len(system.requests(model)) == 1
