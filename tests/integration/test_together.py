"""All services in one process: it works, dies, comes back and stops as one."""

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
TEXT = [f"word{number} " for number in range(60)]
SLOW = {"chunks": TEXT, "chunk_delay_ms": 15}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory, monkeypatch_module):
    """Servers, a model and a client."""
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with running_system(servers, tmp_path_factory.mktemp("together")) as system:
        yield system


@pytest_asyncio.fixture(loop_scope="session")
async def start(system, tmp_path):
    """Starts processes with all services."""
    async with AsyncExitStack() as stack:

        async def started():
            health = str(tmp_path / "ready")
            process = system.process(*SERVICES, work_ack_wait=1.5, log_level="INFO", health_file=health)
            stack.push_async_callback(process.stop)
            await (await process.start()).ready()
            return process

        yield started


async def test_a_run_with_everything_crosses_one_process(system, start, tmp_path):
    process = await start()
    call = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "x"}}]}
    agent = {"inputProcessors": ["unicode-normalizer"], "outputProcessors": ["upper"], "tools": ["echo"]}
    result, chunks = await system.run(call, {"chunks": ["do", "ne"]}, agent={**agent, "memory": {}})
    assert result.text == text_of(chunks) == "DONE"
    assert (tmp_path / "ready").exists()
    assert await process.terminate() == 0
    assert not (tmp_path / "ready").exists()
    assert " procession " in process.logged()
    assert "Traceback" not in process.logged()


async def test_it_finishes_what_it_has_when_it_is_told_to_stop(system, start):
    process = await start()
    handle = await system.start(SLOW, agent={"outputProcessors": ["upper"]})
    async for chunk in handle:
        if chunk["type"] == "text-delta":
            break
    assert await process.terminate() == 0
    result, chunks = await finished(handle)
    assert result.text == "".join(TEXT).upper()
    assert "reset" not in [chunk["type"] for chunk in chunks]
    assert "Traceback" not in process.logged()


async def test_the_next_one_goes_on_when_it_dies_with_all_its_services(system, start):
    process = await start()
    model = system.script({"chunks": ["lost "] * 9000, "chunk_delay_ms": 15}, SLOW)
    handle = await system.start(agent={"model": model, "outputProcessors": ["upper"]})
    chunks = []
    async with asyncio.timeout(60):
        async for chunk in handle:
            chunks.append(chunk)
            if len(chunks) == 5:
                process.kill()
                await process.ended()
                process = await start()
    result = await handle.result()
    expected = "".join(TEXT).upper()
    assert (result.status, result.text, text_of(chunks)) == ("finished", expected, expected)
    assert [chunk["type"] for chunk in chunks].count("reset") == 1
    assert len(system.requests(model)) == 2


async def test_one_that_cannot_start_ends_all_and_says_why(system, tmp_path):
    agents = tmp_path / "agents.yaml"
    agents.write_text("agents: {a: {model: openai/x, outputProcessors: [nobody]}}")
    process = await system.process(*SERVICES, agents=agents).start()
    assert await process.ended() == 2
    assert "unknown processor 'nobody'" in process.logged()
    assert "Traceback" not in process.logged()
