"""A command that somebody else has taken over, who dies with it."""

import json

import pytest
import pytest_asyncio

from procession_services.runtime.store import RunStore
from tests.support.system import SERVICES, finished, running_system

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory, monkeypatch_module):
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with (
        running_system(servers, tmp_path_factory.mktemp("logs")) as system,
        system.inside(*SERVICES, work_ack_wait=2.0),
    ):
        yield system


@pytest.mark.parametrize("hook", ["processInput", "processOutputStep"])
async def test_who_was_late_leaves_the_command_to_its_next_delivery(system, hook):
    gate = system.gate()
    place = "inputProcessors" if hook == "processInput" else "outputProcessors"
    handle = await system.start(
        {"chunks": ["one"]}, {"chunks": ["one"]}, agent={place: [gate.processor(hook)]}
    )
    await gate.reached()
    store = RunStore(system.redis, ttl=600, finished_ttl=600, told_ttl=600)
    stored = await store.load_state(system.client.tenant, handle.run_id)
    assert stored is not None
    seq = json.loads(stored.state)["seq"]
    assert await store.take_context(
        system.client.tenant, handle.run_id, seq=seq, owner="who dies", anyway=True
    )
    await gate.open()
    result, _ = await finished(handle)
    assert (result.status, result.text) == ("finished", "one")
    assert await gate.passes() == 2
