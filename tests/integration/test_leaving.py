"""Hooks and tools that raise what ends a process of Python: it is their failure, and the process goes on."""

import pytest
import pytest_asyncio

from tests.support.system import SERVICES, running_system

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

ANSWER = {"chunks": ["made"]}
RAISED = {"exit": "SystemExit", "interrupt": "KeyboardInterrupt"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory, monkeypatch_module):
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with running_system(servers, tmp_path_factory.mktemp("leaving")) as system:
        yield system


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def process(system):
    """All services; the tests share it, so it outlives what each does, and ends well when it is told to."""
    process = system.process(*SERVICES, plugins="tests.support.leaving", drain_timeout=1)
    try:
        await (await process.start()).ready()
        yield process
        assert await process.terminate() == 0
    finally:
        await process.stop()


@pytest.mark.parametrize("what", RAISED)
@pytest.mark.parametrize("way", ["itself", "in a task"])
async def test_it_fails_its_hook(process, system, what, way):
    result, _ = await system.run(
        ANSWER, agent={"inputProcessors": [{"id": "leave", "options": {"what": what, "way": way}}]}
    )
    told = (result.status, result.error.name, result.error.hook)
    assert told == ("failed", RAISED[what], "processInput")
    assert process.process.returncode is None


@pytest.mark.parametrize("what", RAISED)
async def test_in_a_callback_the_log_tells_of_it(process, system, what):
    way = {"what": what, "way": "in a callback"}
    result, _ = await system.run(ANSWER, agent={"inputProcessors": [{"id": "leave", "options": way}]})
    assert (result.status, result.text) == ("finished", "made")
    await process.says(f"a task or callback of a processor or tool raised {RAISED[what]} at ")


@pytest.mark.parametrize("what", RAISED)
@pytest.mark.parametrize(
    ("name", "more"), [("leave", {"way": "itself"}), ("leave", {"way": "in a task"}), ("leave-thread", {})]
)
async def test_it_is_the_outcome_of_its_tool(process, system, what, name, more):
    call = {"tool_calls": [{"id": "c1", "name": name, "arguments": {"what": what, **more}}]}
    result, chunks = await system.run(call, ANSWER, agent={"tools": [name]})
    [error] = [chunk["payload"]["error"] for chunk in chunks if chunk["type"] == "tool-error"]
    assert (result.status, error["name"]) == ("finished", RAISED[what])
    assert process.process.returncode is None
