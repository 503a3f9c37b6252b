"""Redis is emptied, or comes back without its data, while runs are under way."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import nats
import pytest
import pytest_asyncio
from redis.asyncio import Redis

from procession.client.errors import RunConflictError, UnknownRunError
from procession_schemas import subjects
from procession_services.bus.stored import Stored
from procession_services.orchestrator.app import start as start_orchestrator
from procession_services.orchestrator.lost_runs import LostRuns
from procession_services.processor_host.service import hosted
from procession_services.runtime.redis_client import connect
from procession_services.runtime.store import run_key
from tests.support.handing import LONG
from tests.support.servers import own_servers
from tests.support.system import SERVICES, Gate, all_but, finished, running_system, text_of
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

LOOKED_AFTER = "procession:admission:looked-after"
LOOKING = "procession:admission:looking"
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
    async with connect(servers.redis_url) as redis:
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
    streaming = await system.start(ENDLESS, agent={"outputProcessors": ["upper"]}, text=LONG)
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
    await eventually(lambda: system.redis.get(LOOKED_AFTER))  # which may take longer than `soon`
    handle = await system.start(
        {"chunks": ["well"]}, agent={"inputProcessors": [gate.processor("processInput")]}
    )
    await gate.reached()
    await empty(system)
    await gate.open()
    result, _ = await finished(handle)
    assert await gate.passes() == 2
    assert (result.status, result.text) == ("finished", "well")


@asynccontextmanager
async def one_behind_the_other(directory, monkeypatch):
    """A system whose orchestrator has seen that Redis is full, the process with that one, and another one."""
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with (
        own_servers(directory / "servers") as servers,
        running_system(servers.endpoints, directory) as system,
        system.inside(*all_but("orchestrator"), work_ack_wait=6.0),
        AsyncExitStack() as stack,
    ):
        first, second = (system.process("orchestrator", work_ack_wait=6.0) for _ in range(2))
        for each in (first, second):
            stack.push_async_callback(each.stop)
        await (await first.start()).ready()
        await eventually(lambda: system.redis.get(LOOKED_AFTER))
        yield system, first, second


async def test_so_is_what_was_accepted_by_one_who_died_meanwhile(tmp_path, gate, monkeypatch):
    async with (
        one_behind_the_other(tmp_path, monkeypatch) as (system, first, second),
        await nats.connect(system.servers.nats_url) as connection,
    ):
        handle = await system.start(
            {"chunks": ["well"]}, agent={"inputProcessors": [gate.processor("processInput")]}
        )
        await gate.reached()
        told = await connection.subscribe(subjects.event(system.client.tenant, handle.run_id, "run.accepted"))
        await connection.flush()
        first.kill()
        await (await second.start()).ready()
        await told.next_msg(timeout=20)  # so it was given to the second one
        await empty(system)
        await gate.open()
        result, _ = await finished(handle)
        assert (result.status, result.text) == ("finished", "well")


async def test_a_run_that_has_ended_does_not_begin_again(tmp_path, monkeypatch):
    async with (
        one_behind_the_other(tmp_path, monkeypatch) as (system, first, second),
        await nats.connect(system.servers.nats_url) as connection,
    ):
        model = system.script({"chunks": ["well"]}, {"chunks": ["again"]})
        result, _ = await system.run(agent={"model": model})
        await eventually(lambda: system.redis.exists(f"{run_key(system.client.tenant, result.run_id)}:told"))
        first.kill()
        await first.ended()
        runs = connection.jetstream()

        async def acknowledged():
            return (await runs.stream_info("RUNS")).state.messages == 0

        assert not await acknowledged(), "the next one is not given the request"
        await system.redis.flushall()
        await (await second.start()).ready()
        await eventually(acknowledged)
        late, chunks = await finished(await system.client.attach(result.run_id))
        assert (late.text, text_of(chunks), len(system.requests(model))) == ("well", "well", 1)


async def test_who_waits_for_a_run_that_nats_and_redis_have_lost_is_told_so(system, gate, monkeypatch):
    monkeypatch.setattr("procession.client.handle._PROBE_SECONDS", 0.5)
    monkeypatch.setattr("procession.client.silence._ASKED_SECONDS", 1.0)
    agent = {"inputProcessors": [gate.processor("processInput")]}
    handle = await system.start({"chunks": ["well"]}, agent=agent, text=LONG)
    await gate.reached()
    await settled(system)
    waiting = asyncio.create_task(handle.result())
    await asyncio.wait([waiting], timeout=4)
    assert not waiting.done(), "a run that is known is waited for"
    await empty(system)
    async with await nats.connect(system.servers.nats_url) as connection:
        for stream in ("RUNS", "WORK", "EVENTS", "CHUNKS"):
            await connection.jetstream().purge_stream(stream)
    with pytest.raises(UnknownRunError):
        await asyncio.wait_for(waiting, 20)


async def test_what_cannot_be_read_and_a_second_loss_keep_no_run_from_its_end(system, monkeypatch):
    async with await nats.connect(system.servers.nats_url) as connection:
        poison = subjects.event(system.client.tenant, "poison", "run.accepted")
        await connection.jetstream().publish(poison, b"{}")
    first, second = [
        await system.start(ASKS, agent={"tools": ["echo"], "requireToolApproval": True}) for _ in range(2)
    ]
    assert [(await each.result()).status for each in (first, second)] == ["suspended"] * 2
    await settled(system)
    end_all, lost = LostRuns.end, 0

    async def once_more(self, life, *, until):
        nonlocal lost
        assert await end_all(self, life - 1, until=until) == 0, (
            "in this one Redis may have forgotten what was done in that"
        )
        found = await end_all(self, life, until=until)
        if not lost:
            await system.redis.flushall()  # when all have been looked at
            lost = 1
        return found

    monkeypatch.setattr(LostRuns, "end", once_more)
    await empty(system)
    await eventually(lambda: system.redis.get(LOOKED_AFTER))
    for each in (first, second):
        result, _ = await finished(await system.client.attach(each.run_id))
        assert result.error.code == "STATE_LOST"
    assert lost == 1


async def test_what_was_accepted_since_is_not_asked_for(system, monkeypatch):
    noted, asked = asyncio.Event(), list[str]()
    newest, look_at = Stored.newest, LostRuns._look_at

    async def noting(self, stream):
        number = await newest(self, stream)
        noted.set()
        return number

    async def looking(self, accepted, life):
        asked.extend(subject for subject, _ in accepted)
        return await look_at(self, accepted, life)

    before, _ = await system.run({"chunks": ["well"]})
    await settled(system)
    monkeypatch.setattr(Stored, "newest", noting)
    monkeypatch.setattr(LostRuns, "_look_at", looking)
    await empty(system)
    await asyncio.wait_for(noted.wait(), 20)
    since, _ = await system.run({"chunks": ["well"]})
    await eventually(lambda: system.redis.get(LOOKED_AFTER))
    runs = [subjects.parse(subject)[2] for subject in asked]
    assert before.run_id in runs
    assert since.run_id not in runs


async def test_ids_stay_taken(system):
    agent = {"name": "test", "model": system.script({"chunks": ["well"]})}
    handle = await system.client.start("Hello", run_id="taken", agent=agent)
    await finished(handle)
    await settled(system)
    await empty(system)
    await eventually(lambda: system.redis.get(LOOKED_AFTER))
    other = await system.client.start("Something else", run_id="taken", agent=agent)
    with pytest.raises(RunConflictError):
        await other.result()


async def test_they_end_although_the_orchestrators_are_replaced_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with (
        own_servers(tmp_path) as servers,
        running_system(servers.endpoints, tmp_path) as system,
        system.inside("llm_gateway", "tools", work_ack_wait=6.0),
        AsyncExitStack() as new,
    ):
        async with system.inside("orchestrator", work_ack_wait=6.0):
            waiting = await system.start(ASKS, agent={"tools": ["echo"], "requireToolApproval": True})
            assert (await waiting.result()).status == "suspended"
            await settled(system)
            await empty(system)
            await eventually(lambda: system.redis.get(LOOKING))
            await new.enter_async_context(system.inside("orchestrator", work_ack_wait=6.0))
            assert not await system.redis.exists(LOOKED_AFTER), "who was here before is replaced too late"
        await eventually(lambda: system.redis.get(LOOKED_AFTER))
        result, _ = await finished(await system.client.attach(waiting.run_id))
        assert result.error.code == "STATE_LOST"


async def test_orchestrators_with_another_redis_end_nobody(system, servers, tmp_path, caplog):
    waiting = await system.start(ASKS, agent={"tools": ["echo"], "requireToolApproval": True})
    assert (await waiting.result()).status == "suspended"

    async def have_decided():
        told = [record for record in caplog.records if "waiting for the orchestrators" in record.message]
        return len(told) == 2

    async with own_servers(tmp_path, nats=False) as other:
        settings = [
            system.settings(name).model_copy(
                update={"redis_url": other.endpoints.redis_url, "work_ack_wait": 1.0}
            )
            for name in ("one", "two")
        ]
        async with (
            hosted("orchestrator", settings[0], start_orchestrator),
            hosted("orchestrator", settings[1], start_orchestrator),
            Redis.from_url(other.endpoints.redis_url) as redis,
        ):
            await eventually(have_decided)
            assert not await redis.exists(LOOKED_AFTER), "a third one would not look any more"
    await waiting.cancel()
    result, _ = await finished(waiting)
    assert result.status == "cancelled"
