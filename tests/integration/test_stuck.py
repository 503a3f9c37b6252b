"""Processors that never end: they cost their runs, and nobody else's."""

import asyncio

import pytest
import pytest_asyncio

from tests.support.system import all_but, finished, running_system

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

PLUGIN = "tests.support.stuck"
PLACES = {
    "processInput": ("input_processors", "inputProcessors", "unicode-normalizer"),
    "processOutputStep": ("output_processors", "outputProcessors", "batch-parts"),
    "processOutputResult": ("output_processors", "outputProcessors", "batch-parts"),
    "processAPIError": ("error_recovery", "errorProcessors", "stream-error-retry-processor"),
}
"""The service in which a hook takes a place, the list that its processor is in, and another one for that list."""
ANSWER = {"chunks": ["made"]}
FAILURE = {"error": {"status": 500, "retryable": True}}


@pytest_asyncio.fixture(loop_scope="session")
async def system(servers, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with running_system(servers, tmp_path) as system:
        yield system


def stuck(hook, way):
    return {PLACES[hook][1]: [{"id": "stuck", "options": {"hooks": [hook], "way": way}}]}


@pytest.mark.parametrize("hook", PLACES)
async def test_who_catches_his_cancellation_costs_no_place_and_keeps_no_process(system, hook):
    service, array, other = PLACES[hook]
    process = system.process(service, plugins=PLUGIN, worker_concurrency=1, drain_timeout=1)
    answers = [FAILURE, ANSWER] if hook == "processAPIError" else [ANSWER]
    async with system.inside(*all_but(service), plugins=[PLUGIN]):
        try:
            await (await process.start()).ready()
            handle = await system.start(*answers, agent=stuck(hook, "deaf"), timeout=1)
            result, _ = await finished(handle)
            assert result.error.code == "DEADLINE_EXCEEDED"
            result, _ = await finished(await system.start(*answers, agent={array: [other]}, timeout=30))
            assert (result.status, result.text) == ("finished", "made")
            async with asyncio.timeout(30):
                assert await process.terminate() == 0
        finally:
            await process.stop()
    assert (
        "code ignores its cancellation, and may keep running until its process ends: stuck.py"
        in process.logged()
    )


@pytest.mark.parametrize("way", ["sleeps", "computes"])
async def test_a_process_ends_in_which_nothing_else_can_run(system, way):
    """Its log tells where it stood."""
    process = system.process("input_processors", plugins=PLUGIN, work_ack_wait=0.5)
    async with system.inside(*all_but("input_processors"), plugins=[PLUGIN]):
        try:
            await (await process.start()).ready()
            handle = await system.start(ANSWER, agent=stuck("processInput", way), timeout=5)
            assert await process.ended() == 1
            result, _ = await finished(handle)
        finally:
            await process.stop()
    assert result.error.code == "DEADLINE_EXCEEDED"
    assert "stuck.py" in process.logged()


async def test_a_process_that_is_to_stop_ends_whatever_blocks_it(system):
    plugins = ["tests.support.plugin", PLUGIN]
    process = system.process(
        "input_processors", plugins=",".join(plugins), work_ack_wait=60, drain_timeout=1, log_level="INFO"
    )
    async with system.inside(*all_but("input_processors"), plugins=plugins):
        try:
            await (await process.start()).ready()
            gate, (blocking,) = system.gate(), stuck("processInput", "sleeps")["inputProcessors"]
            agent = {"inputProcessors": [gate.processor("processInput"), blocking]}
            handle = await system.start(ANSWER, agent=agent, timeout=5)
            await gate.reached()
            ending = asyncio.create_task(process.terminate())
            await process.says("stopping")
            await gate.open()
            assert await ending == 1
            await finished(handle)
        finally:
            await process.stop()
    assert "stuck.py" in process.logged()
