"""Work that ends its process, each time, ends its own run; what the process had in hand beside it is done."""

import asyncio
import signal
from contextlib import suppress
from typing import Any

import nats
import pytest

from tests.support.servers import own_servers
from tests.support.system import SERVICES, all_but, finished, running_system

pytestmark = [pytest.mark.integration, pytest.mark.slow]
CALL = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
ASKS = {"tools": [{"id": "echo", "requireApproval": True}]}


async def kept_running(process):
    """Starts it again whenever it has ended, as whoever looks after a service does."""
    while True:
        await process.start()
        await process.ended()


async def ends_of(process, handles):
    """How runs end while that process is kept running."""
    keeping = asyncio.create_task(kept_running(process))
    try:
        return await asyncio.gather(*map(finished, handles))
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping
        await process.stop()


def runs(**options):
    return {"inputProcessors": [{"id": "ending", "options": options}]}


@pytest.mark.parametrize("services", [("input_processors",), SERVICES])
async def test_what_a_process_had_in_hand_beside_work_that_ends_it_is_done(tmp_path, monkeypatch, services):
    """They come together, and would end together each time."""
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    others = [service for service in SERVICES if service not in services]
    async with own_servers(tmp_path) as servers, running_system(servers.endpoints, tmp_path) as system:
        async with system.inside("orchestrator"):
            pass  # the streams are there
        process = system.process(*services, work_ack_wait=1.5)
        async with system.inside(*others, work_ack_wait=1.5):
            deadly = await system.start({"chunks": ["never"]}, agent=runs(ends="exit"))
            harmless = [await system.start({"chunks": ["done"]}, agent=runs(seconds=0.1)) for _ in range(3)]
            (failed, _), *others = await ends_of(process, [deadly, *harmless])
        assert (failed.status, failed.error.code) == ("failed", "WORK_FAILED")
        assert [result.text for result, _ in others] == ["done"] * 3


async def test_requests_beside_one_that_ends_the_orchestrator_are_accepted(tmp_path, monkeypatch):
    """As a processor does whose library crashes while it loads: orchestrators make them to check their options."""
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with own_servers(tmp_path) as servers, running_system(servers.endpoints, tmp_path) as system:
        async with system.inside("orchestrator"):
            pass  # the streams are there
        process = system.process("orchestrator", work_ack_wait=1.5)
        async with system.inside(*all_but("orchestrator"), work_ack_wait=1.5):
            deadly = await system.start({"chunks": ["never"]}, agent={"inputProcessors": ["unmade"]})
            harmless = [await system.start({"chunks": ["done"]}) for _ in range(3)]
            (failed, _), *others = await ends_of(process, [deadly, *harmless])
        assert (failed.status, failed.error.code) == ("failed", "INTERNAL")
        assert [result.text for result, _ in others] == ["done"] * 3


async def test_what_people_say_is_taken_though_orchestrators_have_ended_with_it_in_hand(
    tmp_path, monkeypatch
):
    """It ends none of them; they have it in hand for some seconds, until Redis has surely written what came of it."""
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    options: dict[str, Any] = {"work_ack_wait": 1.5, "max_deliver": 2}
    async with (
        own_servers(tmp_path) as servers,
        running_system(servers.endpoints, tmp_path) as system,
        system.inside(*all_but("orchestrator")),
        await nats.connect(servers.endpoints.nats_url) as connection,
    ):
        js = connection.jetstream()
        async with system.inside("orchestrator", **options):
            handle = await system.start(CALL, {"chunks": ["done"]}, agent=ASKS)
            assert (await handle.result()).status == "suspended"
        await handle.approve("c1")
        words = await js.pull_subscribe_bind(durable="orchestrator-control", stream="WORK")
        for _ in range(2):
            await words.fetch(1, timeout=30)
        async with system.inside("orchestrator", **options):
            result = await handle.result(timeout=30)
        assert (result.status, result.text) == ("finished", "done")
        assert (await js.stream_info("DEAD")).state.messages == 0


async def test_the_log_of_a_process_that_crashed_says_in_whose_code_that_was(tmp_path):
    """As a library may that is not written in Python: nothing is raised then."""
    async with own_servers(tmp_path) as servers, running_system(servers.endpoints, tmp_path) as system:
        process = system.process("input_processors")
        async with system.inside("orchestrator"):
            await system.start({"chunks": ["never"]}, agent=runs(ends="crash"))
            try:
                await process.start()
                assert await process.ended() == -signal.SIGSEGV
            finally:
                await process.stop()
        assert "Segmentation fault" in process.logged()
        assert "plugin.py" in process.logged()
        assert "in process_input" in process.logged()
