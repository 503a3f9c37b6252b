"""What was handed over is not done twice because somebody stands still for less than a lease."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack

import nats as nats_client
import pytest
import pytest_asyncio

from procession_schemas import subjects
from tests.support.handing import CALL, LONG
from tests.support.servers import own_servers
from tests.support.system import SERVICES, all_but, finished, running_system
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
AWAY = 25.0
"""Seconds in which a request is given up that may be handled only once more."""
GATED = {"tool_calls": [{"id": "c1", "name": "gated", "arguments": {}}]}


@pytest_asyncio.fixture(loop_scope="session")
async def servers(tmp_path):
    async with own_servers(tmp_path / "servers") as servers:
        yield servers


@pytest_asyncio.fixture(loop_scope="session")
async def system(servers, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with running_system(servers.endpoints, tmp_path) as system:
        yield system


@pytest_asyncio.fixture(loop_scope="session")
async def start(system):
    """Starts processes with one service each; gives the last one."""
    async with AsyncExitStack() as stack:

        async def started(*services, **settings):
            settings = {"work_ack_wait": LEASE, "log_level": "INFO", **settings}
            processes = [system.process(each, **settings) for each in services]
            for process in processes:
                stack.push_async_callback(process.stop)
                await (await process.start()).ready()
            return processes[-1]

        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def sent(servers):
    """For which services commands went as messages."""
    connection = await nats_client.connect(servers.endpoints.nats_url)
    services = []

    async def hear(message):
        if not message.subject.startswith("$"):
            services.append(subjects.parse(message.subject)[1])

    await connection.subscribe(f"{subjects.ROOT}.work.>", cb=hear)
    await connection.flush()
    yield services
    await connection.close()


async def acquainted(system, sent, agent):
    """Has runs done until every service knows whom to hand commands to."""
    async with asyncio.timeout(30):
        while True:
            sent.clear()
            await system.run(CALL, {"chunks": ["do", "ne"]}, agent=agent)
            if not sent:
                return


def gated(gate):
    return {"tools": ["echo", {"id": "gated", "options": gate.options}]}


async def _has(sent, service):
    return service in sent


async def test_a_tool_is_not_called_twice_whose_host_stands_still_for_less_than_a_lease(system, start, sent):
    """The host got the command by hand from whoever had done the command of a message."""
    gate = system.gate()
    async with system.inside(*all_but("tools"), work_ack_wait=LEASE):
        await start("tools", "tools", worker_concurrency=1)
        await acquainted(system, sent, {"tools": ["echo"]})
        handle = await system.start(GATED, {"chunks": ["done"]}, agent=gated(gate), text=LONG)
        host = await gate.reached()
        assert sent == ["llm_gateway"]
        await asyncio.sleep(PULL)  # then the host, which is full, asks for no messages
        os.kill(host, signal.SIGSTOP)
        await asyncio.sleep(LEASE / 2)
        os.kill(host, signal.SIGCONT)
        await gate.open()
        result, _ = await finished(handle)
    assert result.status == "finished"
    assert await gate.passes() == 1


async def test_nor_is_it_where_somebody_was_told_long_ago_to_look_after_the_command(system, start, sent):
    """An orchestrator was replaced, so the command is a message, too, which is older than a lease."""
    gate, lease = system.gate(), 9.0
    others = [each for each in SERVICES if each not in ("tools", "orchestrator")]
    async with system.inside(*others, work_ack_wait=lease):
        speaking = await start("orchestrator", work_ack_wait=lease)
        await start("tools", "tools", work_ack_wait=lease)
        await acquainted(system, sent, {"tools": ["echo"]})
        handle = await system.start(GATED, {"chunks": ["done"]}, agent=gated(gate))
        host = await gate.reached()
        await start("orchestrator", work_ack_wait=lease)
        assert not sent
        assert await speaking.terminate() == 0
        await eventually(lambda: _has(sent, "tools"))
        await asyncio.sleep(lease + 1.5)
        os.kill(host, signal.SIGSTOP)
        await asyncio.sleep(lease * 2 / 3 - 0.5)
        os.kill(host, signal.SIGCONT)
        await gate.open()
        result, _ = await finished(handle)
    assert result.status == "finished"
    assert await gate.passes() == 1


async def test_a_run_that_was_accepted_is_not_rejected_while_redis_is_away(servers, system, start, sent):
    """Its orchestrator ends meanwhile, so its request, which was kept for the run, is handled again."""
    words = {"chunks": ["word "] * 150, "chunk_delay_ms": 200}
    async with system.inside(*all_but("orchestrator"), work_ack_wait=LEASE):
        speaking = await start("orchestrator", max_deliver=2)
        await acquainted(system, sent, {"tools": ["echo"]})
        handle = await system.start(words, agent={"tools": ["echo"]})
        async for chunk in handle:
            if chunk["type"] == "text-delta":
                break
        other = await start("orchestrator", max_deliver=2)
        servers.kill_redis()
        assert await speaking.terminate() == 0
        await asyncio.sleep(AWAY)
        await servers.restart_redis()
        result, _ = await finished(handle)
    assert result.status == "finished"
    assert "goes to DEAD" not in other.logged()
