"""What was handed over is not done twice because somebody stands still for less than a lease, or cannot be asked."""

import asyncio
import json
import os
import signal

import nats as nats_client
import pytest
from redis.asyncio import Redis

from procession_schemas import subjects
from tests.support.handing import LONG, PULL, TOOLED, acquainted
from tests.support.servers import own_servers
from tests.support.system import SERVICES, Gate, all_but, finished
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]
LEASE = 20.0
AWAY = 12.0
"""More than the seconds for which services wait for Redis."""
OTHERS = [each for each in SERVICES if each not in ("tools", "orchestrator")]
LATE = 1.3
"""Seconds for which an answer takes that nobody waits for any more."""
GATED = {"tool_calls": [{"id": "c1", "name": "gated", "arguments": {}}]}


def gated(gate):
    return {"tools": ["echo", {"id": "gated", "options": gate.options}]}


async def test_a_tool_is_not_called_twice_whose_host_stands_still_for_less_than_a_lease(system, start, heard):
    """The host got the command by hand from whoever had done the command of a message."""
    gate = system.gate()
    async with system.inside(*all_but("tools"), work_ack_wait=LEASE):
        await start("tools", "tools", work_ack_wait=LEASE, worker_concurrency=1)
        await acquainted(system, heard, TOOLED)
        handle = await system.start(GATED, {"chunks": ["done"]}, agent=gated(gate), text=LONG)
        host = await gate.reached()
        assert await heard.sent() == ["llm_gateway"]
        await asyncio.sleep(PULL)  # then the host, which is full, asks for no messages
        os.kill(host, signal.SIGSTOP)
        await asyncio.sleep(LEASE / 2)
        os.kill(host, signal.SIGCONT)
        await gate.open()
        result, _ = await finished(handle)
    assert result.status == "finished"
    assert await gate.passes() == 1


async def test_nor_is_it_where_somebody_was_told_long_ago_to_look_after_the_command(system, start, heard):
    """An orchestrator was replaced, so the command is a message, too, which is older than a lease."""
    gate, lease = system.gate(), 9.0
    async with system.inside(*OTHERS, work_ack_wait=lease):
        speaking = await start("orchestrator", work_ack_wait=lease)
        await start("tools", "tools", work_ack_wait=lease)
        await acquainted(system, heard, TOOLED)
        handle = await system.start(GATED, {"chunks": ["done"]}, agent=gated(gate))
        host = await gate.reached()
        await start("orchestrator", work_ack_wait=lease)
        assert not await heard.sent()
        assert await speaking.terminate() == 0
        await eventually(lambda: heard.has("work", "tools"))
        await asyncio.sleep(lease + 1.5)
        os.kill(host, signal.SIGSTOP)
        await asyncio.sleep(lease * 2 / 3 - 0.5)
        os.kill(host, signal.SIGCONT)
        await gate.open()
        result, _ = await finished(handle)
    assert result.status == "finished"
    assert await gate.passes() == 1


async def test_nor_where_its_host_answers_late_that_it_is_at_work(servers, system, start, heard):
    """Each answer takes longer than anybody waits for one; the host never stands still for longer than that."""
    gate, lease = system.gate(), 9.0
    questions = asyncio.Queue[str]()

    async def hear(message):
        if "." in json.loads(message.data)["owner"]:  # else it asks only whether the replica is there
            questions.put_nowait(message.subject)

    async def answer_late(host):
        while True:
            os.kill(host, signal.SIGSTOP)
            while not questions.empty():
                questions.get_nowait()
            await questions.get()
            await asyncio.sleep(LATE)
            os.kill(host, signal.SIGCONT)
            await asyncio.sleep(0.4)

    async with (
        await nats_client.connect(servers.endpoints.nats_url) as connection,
        system.inside(*OTHERS, work_ack_wait=lease),
    ):
        speaking = await start("orchestrator", work_ack_wait=lease)
        await start("tools", "tools", work_ack_wait=lease, worker_concurrency=1)
        await acquainted(system, heard, TOOLED)
        handle = await system.start(GATED, {"chunks": ["done"]}, agent=gated(gate))
        host = await gate.reached()
        await asyncio.sleep(PULL)  # then the host, which is full, asks for no messages
        await start("orchestrator", work_ack_wait=lease)
        assert await speaking.terminate() == 0
        await eventually(lambda: heard.has("work", "tools"))
        await connection.subscribe(f"{subjects.ROOT}.holder.tools.>", cb=hear)
        await connection.flush()
        late = asyncio.create_task(answer_late(host))
        try:
            await asyncio.sleep(lease * 2.5)
        finally:
            late.cancel()
            os.kill(host, signal.SIGCONT)
        await gate.open()
        result, _ = await finished(handle)
    assert result.status == "finished"
    assert await gate.passes() == 1


async def test_nor_where_redis_was_away_when_its_host_was_to_be_asked(
    servers, system, start, heard, tmp_path
):
    """Redis says who the host is."""
    async with (
        own_servers(tmp_path / "gates", nats=False) as gates,
        Redis.from_url(gates.endpoints.redis_url) as redis,
        system.inside(*OTHERS, work_ack_wait=60),
    ):
        gate = Gate(redis, gates.endpoints.redis_url)
        speaking = await start("orchestrator", work_ack_wait=60)
        await start("tools", "tools", work_ack_wait=60)
        await acquainted(system, heard, TOOLED)
        handle = await system.start(GATED, {"chunks": ["done"]}, agent=gated(gate))
        await gate.reached()
        await start("orchestrator", work_ack_wait=60)
        assert await speaking.terminate() == 0
        await eventually(lambda: heard.has("work", "tools"))
        servers.kill_redis()
        await asyncio.sleep(AWAY)
        await heard.listen("holder")
        await servers.restart_redis()
        await eventually(lambda: heard.has("holder", "tools"))
        await gate.open()
        result, _ = await finished(handle)
        assert await gate.passes() == 1
    assert result.status == "finished"


async def test_a_run_that_was_accepted_is_not_rejected_while_redis_is_away(servers, system, start, heard):
    """Its orchestrator ends meanwhile, so its request, which was kept for the run, is handled again."""
    words = {"chunks": ["word "] * 150, "chunk_delay_ms": 200}
    async with system.inside(*all_but("orchestrator"), work_ack_wait=LEASE):
        speaking = await start("orchestrator", max_deliver=2)
        await acquainted(system, heard, TOOLED)
        handle = await system.start(words, agent=TOOLED)
        async for chunk in handle:
            if chunk["type"] == "text-delta":
                break
        other = await start("orchestrator", max_deliver=2)
        servers.kill_redis()
        assert await speaking.terminate() == 0
        await other.says("waits for Redis")
        await servers.restart_redis()
        result, _ = await finished(handle)
    assert result.status == "finished"
    assert "goes to DEAD" not in other.logged()
