"""Redis is emptied, or comes back without its data, while runs are under way."""

import nats
import pytest
import pytest_asyncio
from redis.asyncio import Redis

from tests.support.servers import own_servers
from tests.support.system import SERVICES, Gate, finished, running_system, text_of
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="session"),
]

LOOKED_AFTER = "procession:admission:looked-after"
ENDLESS = {"chunks": ["a "] * 1_000, "chunk_delay_ms": 100}
ASKS = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(tmp_path_factory, monkeypatch_module):
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with (
        own_servers(tmp_path_factory.mktemp("servers")) as servers,
        running_system(servers.endpoints, tmp_path_factory.mktemp("logs")) as system,
        system.inside(*SERVICES, work_ack_wait=1.0),
    ):
        yield system


@pytest_asyncio.fixture(loop_scope="session")
async def gate(servers):
    """A gate in another Redis."""
    async with Redis.from_url(servers.redis_url) as redis:
        yield Gate(redis, servers.redis_url)


async def settled(system):
    """Returns when every request that was handled has been acknowledged: Redis has surely written it."""
    async with await nats.connect(system.servers.nats_url) as connection:

        async def none_left():
            return (await connection.jetstream().stream_info("RUNS")).state.messages == 0

        await eventually(none_left)


async def empty(system):
    """Empties Redis, when the orchestrator has seen that it was full."""
    await eventually(lambda: system.redis.get(LOOKED_AFTER))
    await system.redis.flushall()


async def test_runs_that_redis_has_lost_end(system):
    over, _ = await system.run({"chunks": ["well"]})
    waiting = await system.start(ASKS, agent={"tools": ["echo"], "requireToolApproval": True})
    assert (await waiting.result()).status == "suspended"
    streaming = await system.start(ENDLESS, agent={"outputProcessors": ["upper"]})
    assert (await anext(streaming.chunks()))["type"] == "start"
    await settled(system)
    await empty(system)

    result, chunks = await finished(streaming)
    assert (result.status, result.error.code) == ("failed", "STATE_LOST")
    assert text_of(chunks).startswith("A A ")
    assert [chunk["type"] for chunk in chunks].count("error") == 1
    assert chunks[-1]["type"] == "error"
    await eventually(lambda: no_calls(system))
    assert (await finished(await system.client.attach(waiting.run_id)))[0].error.code == "STATE_LOST"
    assert (await finished(await system.client.attach(over.run_id)))[0].text == "well"


async def no_calls(system):
    return not system.models.stats.open


async def test_what_redis_has_lost_soon_after_it_was_accepted_is_done_again(system, gate):
    handle = await system.start(
        {"chunks": ["well"]}, agent={"inputProcessors": [gate.processor("processInput")]}
    )
    await gate.reached()
    await empty(system)
    await gate.open()
    result, _ = await finished(handle)
    assert await gate.passes() == 2
    assert (result.status, result.text) == ("finished", "well")
