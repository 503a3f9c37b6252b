"""Stop conditions: an author's code between the steps of a run, which ends with it or goes on."""

import asyncio

import pytest
import pytest_asyncio

from tests.support.hooked import stop, tool
from tests.support.system import SERVICES, running_system

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

CALL, DONE = {"tool_calls": [{"id": "c", "name": "t", "arguments": {}}]}, {"chunks": ["done"]}
TWICE = 2


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory, monkeypatch_module):
    """All services in this process, which soon deliver work again, once."""
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with (
        running_system(servers, tmp_path_factory.mktemp("logs")) as system,
        system.inside(*SERVICES, work_ack_wait=3, max_deliver=TWICE),
    ):
        yield system


async def result_of(system, *conditions):
    agent = {"tools": [tool("t", lambda _: "ok")], "stopWhen": list(conditions)}
    result, _ = await system.run(CALL, CALL, DONE, agent=agent)
    return result


async def test_the_run_ends_with_the_first_that_says_yes(system):
    """R-LP-3, R-LP-4."""
    asked = []

    async def after_two(steps):
        asked.append(len(steps))
        return len(steps) == TWICE

    result = await result_of(system, stop(after_two), {"id": "step-count-is", "options": {"count": 9}})
    assert (result.status, result.finish_reason, len(result.steps)) == ("finished", "tool-calls", TWICE)
    assert asked == [1, 2]


async def test_one_that_is_a_coroutine_and_says_no_lets_the_run_go_on(system):
    async def never(_steps):
        return False

    assert (await result_of(system, stop(never))).text == "done"


async def test_one_that_raises_ends_the_run_at_once_and_is_named(system):
    calls = []

    def raising(_steps):
        calls.append(1)
        raise RuntimeError("which step?")

    error = (await result_of(system, stop(raising))).error
    assert (error.code, error.message) == (
        "COMPONENT_FAILED",
        "stop condition hooked-stop: RuntimeError: which step?",
    )
    assert calls == [1]


async def test_one_that_leaves_in_the_steps_what_is_not_json_is_named(system):
    def spoils(steps):
        steps[0]["toolCalls"].append({1})

    error = (await result_of(system, {"id": "step-count-is", "options": {"count": 9}}, stop(spoils))).error
    assert error.code == "CONTEXT_NOT_JSON"
    assert error.message.startswith("one of the stop conditions 'step-count-is', 'hooked-stop' left what is")
    assert "run['steps'][0]['toolCalls'][1] is of type set" in error.message


async def test_whoever_it_takes_along_each_time_the_run_ends(system):
    """As often as any other work is tried, though this needs no message of its own that NATS would count."""
    calls = []

    def ends_its_task(_steps):
        calls.append(1)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # as if the process had died
        raise asyncio.CancelledError

    result = await result_of(system, stop(ends_its_task))
    assert (result.status, result.error.code) == ("failed", "WORK_FAILED")
    assert "could not do accept, stop in 2 attempts" in result.error.message
    assert len(calls) == TWICE
