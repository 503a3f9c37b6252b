"""What was handed over is not done twice because somebody stands still for less than a lease."""

import asyncio
import os
import signal

import pytest

from tests.support.handing import LONG, acquainted
from tests.support.system import SERVICES, all_but, finished
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]
LEASE = 20.0
PULL = 6.0
"""More than the seconds for which a replica's request for messages stays open."""
TOOLED = {"tools": ["echo"]}
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
    others = [each for each in SERVICES if each not in ("tools", "orchestrator")]
    async with system.inside(*others, work_ack_wait=lease):
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
