"""Observational memory over the bus: notes made behind the runs, by whichever replica is alive (R-OM-2)."""

import asyncio
import json

import pytest
import pytest_asyncio

from procession_services.runtime.ledger import Ledger
from tests.support.system import SERVICES, System, running_system

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="session"),
]

WORDS = "I like dogs very, very much "
DONE = {"chunks": ["noted"]}
NOTE = {"chunks": ["- 2026-01-01 likes dogs"], "usage": {"prompt_tokens": 40, "completion_tokens": 2}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory):
    """Everything but memory, which is a process of its own here.

    At the end the gateway still has the question of one that was killed, for whose answer it would wait.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "unused")
        others = [each for each in SERVICES if each != "memory"]
        logs = tmp_path_factory.mktemp("logs")
        async with running_system(servers, logs) as system, system.inside(*others, drain_timeout=0.5):
            yield system


def memory(observer):
    observation = {"messageTokens": 16, "bufferTokens": 8, "blockAfter": 10_000}
    return {"observationalMemory": {"model": observer, "observation": observation}}


async def say(system: System, text, agent, resource):
    """One run; gives its result and the texts that the model was shown."""
    model = system.script(DONE)
    result, _ = await system.run(
        text=text, agent={**agent, "model": model}, memory={"thread": "t", "resource": resource}
    )
    assert result.status == "finished", result.error
    return result, [str(m["content"]) for m in system.requests(model)[0]["messages"]]


async def until(what):
    """Waits for what another process does."""
    async with asyncio.timeout(30):
        while not (found := await what()):  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.02)
    return found


async def noted(system: System, resource):
    key = f"procession:{system.client.tenant}:memory:{resource}:thread:t:observations"
    stored = await system.redis.get(key)
    return stored and json.loads(stored)["pieces"]


async def test_notes_are_made_behind_the_runs_and_their_cost_is_in_the_run_that_uses_them(system):
    observer = system.script(NOTE)
    agent = {"memory": memory(observer)}
    process = await system.process("memory").start()
    await process.ready()
    await say(system, WORDS, agent, "ann")
    result, shown = await say(system, WORDS, agent, "ann")
    assert shown == [WORDS, "noted", WORDS]
    assert all(row.model_calls == 0 for row in result.processors)
    (piece,) = await until(lambda: noted(system, "ann"))
    assert piece["notes"] == "- 2026-01-01 likes dogs"
    result, shown = await say(system, "what do I like", agent, "ann")
    assert "- 2026-01-01 likes dogs" in shown[0]
    assert shown[1:] == [WORDS, "noted", "what do I like"]
    (row,) = [row for row in result.processors if row.model_calls]
    assert (row.processor, row.hook, row.model_tokens) == ("observational-memory", "processInputStep", 42)
    booked = await Ledger(system.redis).read(system.client.tenant, "tenant", system.client.tenant, 3600)
    assert [each.calls for each in booked.breakdown if each.model == observer] == [1]
    await process.terminate()


async def test_what_a_replica_had_begun_when_it_died_is_done_by_another_one(system):
    observer = system.script({**NOTE, "delay_ms": 60_000}, NOTE)
    agent = {"memory": memory(observer)}
    first = await system.process("memory", work_ack_wait=1).start()
    await first.ready()
    for _ in range(2):
        await say(system, WORDS, agent, "bob")

    async def asked():
        return system.requests(observer)

    await until(asked)
    first.kill()
    second = await system.process("memory", work_ack_wait=1).start()
    await second.ready()
    assert len(await until(lambda: noted(system, "bob"))) == 1
    assert len(system.requests(observer)) == 2
    await second.terminate()


async def test_many_replicas_ask_one_observer_for_each_part_of_a_thread(system):
    observer = system.script({**NOTE, "delay_ms": 300})
    agent = {"memory": memory(observer)}
    replicas = [await system.process("memory").start() for _ in range(2)]
    for each in replicas:
        await each.ready()
    await say(system, WORDS, agent, "cid")
    await asyncio.gather(*(say(system, WORDS, agent, "cid") for _ in range(4)))

    async def idle():
        return not await system.redis.exists(f"procession:memory:observe:of:{system.client.tenant}")

    await until(idle)
    asked = [str(request["messages"][-1]["content"]) for request in system.requests(observer)]
    lines = [line for text in asked for line in text.split("Messages:")[1].splitlines() if line]
    assert len(lines) == len(set(lines)), "no message is noted twice"
    for each in replicas:
        await each.terminate()
