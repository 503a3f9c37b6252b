"""A message that is kept for a run which others work on now stands in nobody's way, and is not taken for unhandled."""

import asyncio

import nats as nats_client
import pytest

from procession_schemas import subjects
from procession_services.orchestrator.answers import Answers
from procession_services.orchestrator.requests import Requests
from procession_services.runs.stored import UnreadableError
from tests.support.handing import AGENT, ENDLESS, LONG, PULL, SOONER, TOOLED, acquainted, begun
from tests.support.system import SERVICES, all_but, finished

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
async def test_long_commands_whose_runs_go_on_elsewhere_keep_nobody_waiting(
    system, heard, monkeypatch, together
):
    """A worker takes nothing more while all that it has in hand is too long."""
    monkeypatch.setattr("procession_services.bus.worker._HELD_BYTES", 5 * len(LONG))
    async with system.inside(*SERVICES, together=together):
        if not together:
            await acquainted(system, heard)
        handles = [await system.start(ENDLESS, agent=AGENT, text=LONG) for _ in range(8)]
        try:
            async with asyncio.timeout(SOONER):
                for handle in handles:
                    await begun(handle)
                await asyncio.sleep(PULL)
                result, _ = await system.run({"chunks": ["do", "ne"]}, agent=AGENT, text=LONG)
        finally:
            for handle in handles:
                await handle.cancel()
    assert (result.status, result.text) == ("finished", "DONE")


async def test_a_run_that_was_accepted_is_not_rejected_where_redis_refuses_the_next_orchestrator(
    system, start, heard
):
    """As after an upgrade without new users; the run goes on meanwhile."""
    async with system.inside(*all_but("orchestrator")):
        speaking = await start("orchestrator")
        await acquainted(system, heard, TOOLED)
        handle = await system.start({"chunks": ["word "] * 60, "chunk_delay_ms": 200}, agent=TOOLED)
        await begun(handle)
        allow = ("ACL", "SETUSER", "other", "on", ">secret", "~*", "&*", "+@all")
        await system.redis.execute_command(*allow)
        url = system.servers.redis_url.replace("redis://", "redis://other:secret@")
        other = await start("orchestrator", redis_url=url)
        await system.redis.execute_command("ACL", "SETUSER", "other", "-hmget")
        assert await speaking.terminate() == 0
        await other.says("which was accepted, waits for Redis")
        await system.redis.execute_command(*allow)
        result, _ = await finished(handle)
    assert result.status == "finished"


async def test_nor_is_it_where_the_next_orchestrator_cannot_read_its_state(
    servers, system, start, heard, monkeypatch
):
    """As after a downgrade."""

    async def fails(*_):
        raise UnreadableError("state of a later version")

    async with (
        await nats_client.connect(servers.endpoints.nats_url) as connection,
        system.inside(*all_but("orchestrator")),
    ):
        speaking = await start("orchestrator")
        await acquainted(system, heard, TOOLED)
        gate = system.gate()
        agent = {**TOOLED, "outputProcessors": [gate.processor("processOutputResult")]}
        handle = await system.start({"chunks": ["done"]}, agent=agent)
        await gate.reached()
        monkeypatch.setattr(Requests, "_request", fails)
        monkeypatch.setattr(Answers, "refuse", fails)
        dead = await connection.subscribe(f"{subjects.ROOT}.dead.>")
        await connection.flush()
        async with system.inside("orchestrator", max_deliver=2):
            assert await speaking.terminate() == 0
            await dead.next_msg(timeout=SOONER)
        await gate.open()
        result, _ = await finished(handle)
    assert result.status == "finished"


async def test_a_request_whose_run_goes_on_is_not_dead_where_nothing_is_done_twice(
    servers, system, start, heard
):
    """It was handled when it was first delivered, and only kept since."""
    async with (
        await nats_client.connect(servers.endpoints.nats_url) as connection,
        system.inside(*all_but("orchestrator")),
    ):
        speaking = await start("orchestrator", max_deliver=1)
        await acquainted(system, heard, TOOLED)
        handle = await system.start({"chunks": ["word "] * 40, "chunk_delay_ms": 200}, agent=TOOLED)
        await begun(handle)
        await start("orchestrator", max_deliver=1)
        assert await speaking.terminate() == 0
        result, _ = await finished(handle)
        dead = (await connection.jetstream().stream_info("DEAD")).state.messages
    assert result.status == "finished"
    assert not dead
