"""The turn on a thread outlives whoever has it."""

import asyncio

import pytest

from procession_services.runtime.store import line_key
from tests.support.system import SERVICES, finished, running_system

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

THREAD = {"thread": "t", "resource": "r"}


@pytest.mark.parametrize(
    ("service", "place", "kind", "hook"),
    [
        ("input_processors", "inputProcessors", "gate", "processInput"),
        ("memory", "outputProcessors", "memory-gate", "processOutputResult"),
    ],
)
async def test_the_next_run_begins_when_the_service_that_had_the_first_one_was_killed(  # noqa: PLR0917
    servers, tmp_path, monkeypatch, service, place, kind, hook
):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    others = [each for each in SERVICES if each != service]
    async with running_system(servers, tmp_path) as system, system.inside(*others, work_ack_wait=2.0):
        process = await system.process(service, work_ack_wait=2.0).start()
        try:
            await process.ready()
            gate = system.gate()
            agent = {"memory": {}, place: [gate.processor(hook, kind=kind)]}
            one = await system.start({"chunks": ["a1"]}, text="one", agent=agent, memory=THREAD)
            await gate.reached()
            model = system.script({"chunks": ["a2"]})
            two = await system.start(text="two", agent={"memory": {}, "model": model}, memory=THREAD)
            await in_line(system, 2)
            process.kill()
            await process.ended()
            async with system.inside(service, work_ack_wait=2.0):
                ends = [(await finished(each))[0].status for each in (one, two)]
        finally:
            await process.stop()
    assert ends == ["finished", "finished"]
    assert [m["content"] for m in system.requests(model)[0]["messages"]] == ["one", "a1", "two"]


async def test_a_run_that_waits_needs_no_orchestrator_any_more(servers, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    others = [each for each in SERVICES if each != "orchestrator"]
    async with running_system(servers, tmp_path) as system, system.inside(*others):
        process = await system.process("orchestrator").start()
        try:
            await process.ready()
            gate = system.gate()
            agent = {"memory": {}, "inputProcessors": [gate.processor("processInput")]}
            one = await system.start({"chunks": ["a1"]}, text="one", agent=agent, memory=THREAD)
            await gate.reached()
            two = await system.start({"chunks": ["a2"]}, text="two", agent={"memory": {}}, memory=THREAD)
            await in_line(system, 2)
            process.kill()
            await process.ended()
            await gate.open()
            async with asyncio.timeout(30):
                assert [(await each.result()).text for each in (one, two)] == ["a1", "a2"]
            for each in (one, two):
                await each.close()
        finally:
            await process.stop()


async def in_line(system, number):
    """Waits until so many runs are in the line of the thread."""
    async with asyncio.timeout(20):
        while await system.redis.llen(line_key(system.client.tenant, "r", "t")) != number:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
