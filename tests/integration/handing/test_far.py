"""Services in processes of their own hand commands to each other, and a run survives whatever happens to that."""

import asyncio
from time import time

import nats as nats_client
import pytest

from procession_schemas import subjects
from procession_services.processor_host.executor import Executor
from procession_services.processor_host.far import Far
from procession_services.runtime.clock import new_token
from tests.support.handing import AGENT, CALL, ENDLESS, SLOW, SOONER, TEXT, acquainted, begun
from tests.support.system import SERVICES, all_but, finished, text_of
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]
WORKERS = ("input_processors", "llm_gateway", "tools")
"""Who gets commands of such an agent."""


def types_of(chunks):
    return [chunk["type"] for chunk in chunks]


async def test_who_knows_whom_hands_commands_over_without_messages(system, heard):
    await heard.listen("desk")
    async with system.inside(*SERVICES):
        await acquainted(system, heard)
        handed = await heard.told()
    services = ["input_processors", "llm_gateway", "tools", "llm_gateway"]
    assert handed == [("desk", service) for service in services]


async def test_a_request_is_let_go_when_its_run_is_over(servers, system, heard):
    connection = await nats_client.connect(servers.endpoints.nats_url)

    async def requests():
        return (await connection.jetstream().stream_info("RUNS")).state.messages

    async with system.inside(*SERVICES):
        await acquainted(system, heard)
        handle = await system.start({**SLOW, "chunk_delay_ms": 100}, agent=AGENT)
        await begun(handle)
        assert await requests()
        await finished(handle)
        await eventually(lambda: _is_zero(requests))
    await connection.close()


async def test_a_run_that_waits_for_a_person_keeps_no_request_and_tells_nothing_twice(servers, system, heard):
    connection = await nats_client.connect(servers.endpoints.nats_url)
    js = connection.jetstream()

    async def requests():
        return (await js.stream_info("RUNS")).state.messages

    async with system.inside(*SERVICES):
        await acquainted(system, heard)
        handle = await system.start(CALL, {"chunks": ["done"]}, agent={**AGENT, "requireToolApproval": True})
        assert (await handle.result()).status == "suspended"
        await eventually(lambda: _is_zero(requests))
    mine = f"{subjects.ROOT}.event.*.{handle.run_id}.>"
    told = (await js.stream_info("EVENTS", mine)).state.subjects or {}
    assert sorted(told.values()) == [1, 1]
    await connection.close()


async def _is_zero(count):
    return await count() == 0


async def test_a_replica_that_is_not_there_costs_nothing_that_anybody_sees(system, heard):
    """One of an earlier version does not listen there, and one that has just died neither."""
    async with system.inside(*SERVICES):
        await acquainted(system, heard)
        seconds, _ = await system.redis.time()
        for service in WORKERS:
            key = f"procession:admission:replicas:{service}"
            await system.redis.zadd(key, {f"ghost-{new_token(6)}": (seconds + 3600) * 1000})
        async with asyncio.timeout(SOONER):
            while {service for kind, service in await heard.told() if kind == "work"} != {*WORKERS}:
                model = system.script(CALL, {"chunks": ["do", "ne"]})
                result, chunks = await system.run(agent={**AGENT, "model": model})
                assert (result.status, text_of(chunks)) == ("finished", "DONE")
                assert "reset" not in types_of(chunks)
                assert len(system.requests(model)) == 2


async def test_a_replica_without_room_leaves_it_to_others(system, heard):
    gate = system.gate()
    waiting = {"inputProcessors": [gate.processor("processInput")]}
    async with (
        system.inside(*all_but("input_processors")),
        system.inside("input_processors", worker_concurrency=1),
    ):
        await acquainted(system, heard)
        handles = [await system.start({"chunks": ["waited"]}, agent=waiting)]
        await gate.reached()
        handles.append(await system.start({"chunks": ["came"]}, agent=AGENT))
        await eventually(lambda: heard.has("undone", "orchestrator"))
        await gate.open()
        results = [await finished(handle) for handle in handles]
    assert [text_of(chunks) for _, chunks in results] == ["waited", "CAME"]
    assert not any("reset" in types_of(chunks) for _, chunks in results)


@pytest.mark.parametrize("service", ["input_processors", "llm_gateway", "orchestrator"])
async def test_others_go_on_long_before_a_lease_is_over(system, heard, start, service):
    gate = system.gate()
    hook = {"inputProcessors": [gate.processor("processInput")]} if service == "input_processors" else {}
    model = system.script(*([ENDLESS] if service == "llm_gateway" else []), SLOW)
    async with system.inside(*all_but(service)):
        dying = await start(service)
        await acquainted(system, heard)
        handle = await system.start(agent={**AGENT, **hook, "model": model})
        await (gate.reached() if hook else begun(handle))
        await start(service)
        dying.kill()
        async with asyncio.timeout(SOONER):
            result, _ = await finished(handle)
    assert (result.status, result.text) == ("finished", "".join(TEXT).upper())
    assert len(system.requests(model)) == (2 if service == "llm_gateway" else 1)


@pytest.mark.parametrize("how", ["kill", "terminate"])
async def test_a_run_survives_who_has_its_message_and_then_who_works_on_it(system, heard, start, how):
    """Who ends does not wait for the run to be over, which may take long."""
    model = system.script(ENDLESS, SLOW)
    others = [each for each in SERVICES if each not in ("orchestrator", "llm_gateway")]
    async with system.inside(*others):
        speaking, working = await start("orchestrator"), await start("llm_gateway")
        await acquainted(system, heard)
        handle = await system.start(agent={**AGENT, "model": model})
        await begun(handle)
        await start("orchestrator", "llm_gateway")
        async with asyncio.timeout(SOONER):
            if how == "kill":
                speaking.kill()
                await eventually(lambda: heard.has("work", "llm_gateway"))
            else:
                assert await speaking.terminate() == 0
                assert " ERROR " not in speaking.logged()
            working.kill()
            result, _ = await finished(handle)
    assert ("work", "llm_gateway") in await heard.told()
    assert (result.status, result.text) == ("finished", "".join(TEXT).upper())
    assert len(system.requests(model)) == 2


@pytest.mark.parametrize("restarted", ["restart_nats", "restart_redis"])
async def test_what_was_handed_over_goes_on_when_a_server_was_restarted(servers, system, heard, restarted):
    model = system.script({"chunks": TEXT * 5, "chunk_delay_ms": 20})
    async with system.inside(*SERVICES):
        await acquainted(system, heard)
        handle = await system.start(agent={**AGENT, "model": model})
        await begun(handle)
        await getattr(servers, restarted)()
        result, _ = await finished(handle)
    assert (result.status, result.text) == ("finished", "".join(TEXT * 5).upper())
    assert len(system.requests(model)) == 1


async def test_a_command_that_is_lost_on_the_way_is_sent(system, heard, monkeypatch):
    """Nobody hears that it is: NATS was restarted at that moment, say."""
    lost = []

    async def lose(self, claimed, traceparent):
        lost.append(claimed)

    async with system.inside(*SERVICES):
        await acquainted(system, heard)
        monkeypatch.setattr(Far, "hand", lose)
        async with asyncio.timeout(SOONER):
            result, chunks = await system.run({"chunks": ["do", "ne"]}, agent=AGENT)
    assert (result.status, text_of(chunks)) == ("finished", "DONE")
    assert lost


async def test_a_command_that_comes_late_is_not_begun_before_it_is_sent(system, heard, monkeypatch, caplog):
    """Who has sent it stood still, and others may have done it meanwhile."""
    model = system.script(CALL, {"chunks": ["do", "ne"]})
    async with system.inside(*SERVICES):
        await acquainted(system, heard)
        monkeypatch.setattr("procession_services.processor_host.handover.seconds", lambda: time() + 5)
        result, chunks = await system.run(agent={**AGENT, "model": model})
    assert (result.status, text_of(chunks)) == ("finished", "DONE")
    assert "reset" not in types_of(chunks)
    assert len(system.requests(model)) == 2
    assert ("undone", "orchestrator") in await heard.told()
    late = [record for record in caplog.records if "the clocks of the hosts differ" in record.getMessage()]
    assert len(late) == 3  # the gateway's second one is not told


@pytest.mark.parametrize("max_deliver", [1, 5])
async def test_a_command_that_fails_is_sent_and_buried_like_any_other(
    system, heard, monkeypatch, max_deliver
):
    follow, failing = Executor.follow, list[RuntimeError]()

    async def fails(self, claimed, delivery):
        if failing:
            raise failing.pop()
        return await follow(self, claimed, delivery)

    async with system.inside(*SERVICES, max_deliver=max_deliver):
        await acquainted(system, heard)
        monkeypatch.setattr(Executor, "follow", fails)
        failing.append(RuntimeError("lost my mind"))
        async with asyncio.timeout(SOONER):
            result, _ = await system.run({"chunks": ["do", "ne"]}, agent=AGENT)
    if max_deliver == 1:
        assert (result.status, result.error.code) == ("failed", "WORK_FAILED")
        assert "lost my mind" in result.error.message
    else:
        assert (result.status, result.text) == ("finished", "DONE")


async def test_a_run_is_cancelled_wherever_its_command_is(system, heard):
    gate = system.gate()
    async with system.inside(*SERVICES):
        await acquainted(system, heard)
        agent = {"inputProcessors": [gate.processor("processInput")]}
        handle = await system.start({"chunks": ["never"]}, agent=agent)
        await gate.reached()
        await handle.cancel()
        async with asyncio.timeout(SOONER):
            result, _ = await finished(handle)
    assert result.status == "cancelled"
