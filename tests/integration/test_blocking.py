"""Processors that let nothing else run: their replica looks dead, but the stream must not be handed on for ever."""

import asyncio
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.support.system import SERVICES, finished, running_system, text_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]
WORDS = [f"word{number} " for number in range(8)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory, monkeypatch_module):
    """A system with two processes of the output processors; everything else is in this one."""
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(running_system(servers, tmp_path_factory.mktemp("blocking")))
        await stack.enter_async_context(system.inside(*(set(SERVICES) - {"output_processors"})))
        replicas = [system.process("output_processors") for _ in range(2)]
        for replica in replicas:
            stack.push_async_callback(replica.stop)
            await replica.start()
        await asyncio.gather(*(replica.ready() for replica in replicas))
        yield system


async def test_a_stream_whose_processor_blocks_is_not_handed_on_for_ever(system):
    model = system.script({"chunks": WORDS})
    blocking = {"id": "blocking", "options": {"pauses": [0, 0, 5, *[0] * (len(WORDS) - 3)]}}
    handle = await system.start(agent={"model": model, "outputProcessors": [blocking]})
    async with asyncio.timeout(60):
        result, chunks = await finished(handle)
    assert (result.status, result.text, text_of(chunks)) == ("finished", "".join(WORDS), "".join(WORDS))
    assert len(system.requests(model)) == 1
