"""NATS stands still for longer than work is left to whoever has it, and then gives it to somebody else, too."""

import asyncio
import re
from contextlib import contextmanager

import pytest
import pytest_asyncio

from tests.support.servers import own_servers
from tests.support.system import SERVICES, finished, numbered, running_system, text_of
from tests.support.waiting import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

LEASE = 1.0
WORDS = [f"word{number} " for number in range(120)]
SLOW = {"chunks": WORDS, "chunk_delay_ms": 25}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def servers(tmp_path_factory):
    async with own_servers(tmp_path_factory.mktemp("servers")) as servers:
        yield servers


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory, monkeypatch_module):
    """Two replicas of each service."""
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with (
        running_system(servers.endpoints, tmp_path_factory.mktemp("logs")) as system,
        system.inside(*SERVICES, work_ack_wait=LEASE),
        system.inside(*SERVICES, work_ack_wait=LEASE),
    ):
        yield system


@contextmanager
def silent(servers):
    """NATS stands still meanwhile."""
    servers.freeze_nats()
    try:
        yield
    finally:
        servers.thaw_nats()


async def given_to_another(caplog, run):
    """Waits until a replica has got the run's work once more, and left it to the one that has it."""
    said = re.compile(rf"(works on|left) .*{run}")
    await until(lambda: any(map(said.search, caplog.messages)))


@pytest.mark.parametrize("processors", [[], ["upper"]])
async def test_the_model_is_asked_once(servers, system, caplog, processors):
    caplog.set_level("INFO", "procession_services")
    model = system.script(SLOW)
    handle = await system.start(agent={"model": model, "outputProcessors": processors})
    chunks = []
    async for chunk in numbered(handle):
        chunks.append(chunk)
        if chunk["type"] == "text-delta":
            break
    with silent(servers):
        await asyncio.sleep(1.5 * LEASE)
    await given_to_another(caplog, handle.run_id)
    result, more = await finished(handle)
    expected = "".join(WORDS).upper() if processors else "".join(WORDS)
    assert (result.status, result.text, text_of(chunks + more)) == ("finished", expected, expected)
    assert len(system.requests(model)) == 1


async def test_a_hook_is_called_once(servers, system, caplog):
    caplog.set_level("INFO", "procession_services")
    gate = system.gate()
    processors = [gate.processor("processInput")]
    handle = await system.start({"chunks": ["made ", "it"]}, agent={"inputProcessors": processors})
    await gate.reached()
    with silent(servers):
        await asyncio.sleep(2 * LEASE)
    await given_to_another(caplog, handle.run_id)
    await gate.open()
    result, chunks = await finished(handle)
    assert result.text == text_of(chunks) == "made it"
    assert await gate.passes() == 1
