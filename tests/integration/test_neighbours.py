"""Work that ends its process, each time, ends its own run; what the process had in hand beside it is done."""

import asyncio
import signal
from contextlib import suppress

import pytest

from tests.support.servers import own_servers
from tests.support.system import all_but, finished, running_system

pytestmark = [pytest.mark.integration, pytest.mark.slow]


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


async def test_what_a_process_had_in_hand_beside_work_that_ends_it_is_done(tmp_path, monkeypatch):
    """They come together, and would end together each time."""
    monkeypatch.setenv("OPENAI_API_KEY", "unused")

    async with own_servers(tmp_path) as servers, running_system(servers.endpoints, tmp_path) as system:
        process = system.process("input_processors", work_ack_wait=1.5)
        async with system.inside(*all_but("input_processors"), work_ack_wait=1.5):
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
