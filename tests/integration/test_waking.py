"""NATS and Redis restart while everything waits idle: each kind of listener hears again what comes afterwards.

A pull that is open on the server is forgotten by it, a subscription may be; whoever only waits does not notice.
"""

import pytest
import pytest_asyncio

from procession.client import Procession
from procession_services.runtime.embedded import EmbeddedServers
from tests.integration.test_guardrails import HATE, guard
from tests.integration.test_memory import RECALL, say
from tests.integration.test_restarts import SLOW, begun
from tests.support.system import SERVICES, finished, running_system, text_of
from tests.support.waiting import indexed, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

ANSWER = {"chunks": ["well", " done"]}
ECHO = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
MAIL = {"tool_calls": [{"id": "c1", "name": "send-mail", "arguments": {"to": "x"}}]}
REFUSED = {"error": {"status": 400, "message": "not now"}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def servers(tmp_path_factory):
    async with EmbeddedServers(tmp_path_factory.mktemp("servers")) as servers:
        yield servers


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory, monkeypatch_module):
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    chroma = tmp_path_factory.mktemp("chroma")
    async with (
        running_system(servers.endpoints, tmp_path_factory.mktemp("logs")) as system,
        system.inside(*SERVICES, work_ack_wait=2.0, chroma_path=chroma, embedder="lexical"),
    ):
        yield system


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["NATS", "Redis"])
async def woken(request, servers, system):
    """A system that was idle while a server restarted, and a run that waits for a person since before that."""
    waiting = await system.start(MAIL, ANSWER, agent={"tools": ["send-mail"], "outputProcessors": ["upper"]})
    assert [chunk["type"] async for chunk in waiting][-1] == "tool-call-approval"
    await (servers.restart_nats if request.param == "NATS" else servers.restart_redis)()
    yield system, waiting


async def test_every_service_takes_its_commands(woken):
    system, _ = woken
    agent = {
        "memory": {"lastMessages": 5},
        "inputProcessors": ["unicode-normalizer"],
        "errorProcessors": ["retry"],
        "tools": ["echo"],
        "outputProcessors": ["upper"],
    }
    result, chunks = await system.run(
        REFUSED, ECHO, ANSWER, agent=agent, memory={"thread": "w", "resource": "r"}
    )
    assert (result.status, result.retries, text_of(chunks)) == ("finished", 1, "WELL DONE")
    assert (await system.client.memory.messages("w", "r"))["total"] > 1  # the memory's requests


async def test_guards_and_models_answer(woken):
    system, _ = woken
    for parallel, asked in ((True, "input_processors"), (False, "llm_gateway")):
        judge = guard(system.script(HATE), parallel=parallel)
        result, _ = await system.run(ANSWER, agent={"inputProcessors": [judge]})
        assert result.status == "blocked", asked


async def test_a_run_is_cancelled(woken):
    system, _ = woken
    closed = system.models.stats.cancelled
    handle = await system.start({**SLOW, "chunks": ["word "] * 2000}, agent={"outputProcessors": ["upper"]})
    await begun(handle)
    await handle.cancel()
    result, _ = await finished(handle)
    assert result.status == "cancelled"
    await until(lambda: system.models.stats.cancelled == closed + 1)


async def test_a_client_that_waits_hears_what_another_one_decides(woken):
    system, waiting = woken
    async with Procession(system.servers.nats_url, tenant=system.client.tenant) as other:
        attached = await other.attach(waiting.run_id)
        await attached.approve("c1")
        result, late = await finished(attached)
    told = await waiting.result(timeout=20)
    assert (result.status, told.text) == ("finished", "WELL DONE")
    assert text_of(late) == "WELL DONE"  # what was stored, as the orchestrator tells it


async def test_the_deadline_of_a_run_is_kept(woken):
    system, _ = woken
    handle = await system.start({**SLOW, "chunks": ["word "] * 2000}, timeout=0.5)
    result, _ = await finished(handle)
    assert result.error.code == "DEADLINE_EXCEEDED"


async def test_the_index_takes_its_jobs(woken, request):
    system, _ = woken
    resource = f"index-{request.node.callspec.id}"
    await say(system, "my dog is called Rex", RECALL, f"{resource}-1", resource)
    await indexed(system.client.memory)
    _, shown = await say(system, "what is my dog called", RECALL, f"{resource}-2", resource)
    assert any("Rex" in text for text in shown)
