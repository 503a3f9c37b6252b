"""Guards beside the model whose service is not there, and one whose question is too long for a message."""

import nats
import pytest
import pytest_asyncio

from procession_schemas import subjects
from tests.integration.test_parallel_guards import ANSWER, beside, kinds
from tests.support.system import SERVICES, all_but, running_system

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

OTHERS = all_but("input_processors")


@pytest_asyncio.fixture(loop_scope="session")
async def lonely(servers, tmp_path, monkeypatch):
    """Servers, a model and a client; each test starts the services that it wants."""
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with running_system(servers, tmp_path) as system:
        yield system


@pytest.mark.parametrize("policy", ["fail", "skip"])
async def test_without_a_service_for_guards_the_run_fails(lonely, policy):
    async with lonely.inside(*OTHERS):
        agent = {"inputProcessors": [beside(timeout=0.1, onError=policy)]}
        result, chunks = await lonely.run(ANSWER, agent=agent)
    assert (result.status, result.error.code) == ("failed", "PROCESSOR_TIMEOUT")
    assert "is input_processors up?" in result.error.message
    assert kinds(chunks) == ["start", "error"]


async def test_a_guard_that_never_answers_fails_the_run_whatever_its_policy(lonely):
    connection = await nats.connect(lonely.servers.nats_url)
    asked = await connection.subscribe(subjects.api("input_processors", lonely.client.tenant, "guard"))
    await connection.flush()
    async with lonely.inside(*OTHERS):
        agent = {"inputProcessors": [beside(timeout=0.1, onError="skip")]}
        result, chunks = await lonely.run(ANSWER, agent=agent)
    assert asked.pending_msgs == 1
    assert (result.error.code, kinds(chunks)) == ("PROCESSOR_TIMEOUT", ["start", "error"])
    await connection.close()


async def test_a_long_conversation_reaches_the_guard(lonely):
    agent = {"inputProcessors": [beside()], "outputProcessors": ["beside"]}
    async with lonely.inside(*SERVICES, max_request_bytes=8_000_000):
        result, _ = await lonely.run(ANSWER, agent=agent, text="x" * 4_500_000)
    assert (result.status, result.text) == ("finished", "asked 1")
