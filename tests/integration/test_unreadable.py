"""What is stored of a run cannot be read, as after a rollback."""

import json

import nats
import pytest
import pytest_asyncio

from procession_schemas import subjects
from procession_services.runtime.store import line_key, run_key
from tests.support.system import SERVICES, finished, running_system
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory, monkeypatch_module):
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with (
        running_system(servers, tmp_path_factory.mktemp("logs")) as system,
        system.inside(*SERVICES, max_deliver=1),
    ):
        yield system


async def start(system, seconds, gate=None):
    agent = {"model": system.script({"chunks": ["well"]}), "memory": {}, "timeout": seconds}
    if gate:
        agent["inputProcessors"] = [gate.processor("processInput")]
    return await system.start(agent=agent, memory={"thread": "t", "resource": "unreadable"})


async def spoil(system, run):
    key = run_key(system.client.tenant, run)
    state = json.loads(await system.redis.hget(key, "state"))
    await system.redis.hset(key, "state", json.dumps({**state, "then": "of a later version"}))
    return key


async def test_a_run_that_cannot_be_read_ends_at_its_deadline_and_the_next_one_gets_its_turn(system):
    gate = system.gate()
    one = await start(system, 6, gate)
    await gate.reached()
    two = await start(system, 60)
    line = line_key(system.client.tenant, "unreadable", "t")

    async def both():
        return await system.redis.llen(line) == 2

    await eventually(both)
    key = await spoil(system, one.run_id)
    result, chunks = await finished(one)
    assert (result.status, result.error.code) == ("failed", "STATE_LOST")
    assert [chunk["type"] for chunk in chunks].count("error") == 1
    assert (await finished(two))[0].text == "well"
    assert not await system.redis.exists(key)
    await gate.open()


async def test_a_request_that_comes_again_is_rejected_and_the_run_may_go_on(system):
    gate = system.gate()
    one = await start(system, 60, gate)
    await gate.reached()
    key = run_key(system.client.tenant, one.run_id)
    before = await system.redis.hget(key, "state")
    await spoil(system, one.run_id)
    body = json.dumps({"runId": one.run_id, "input": "Hello"}).encode()
    rejected = subjects.event(system.client.tenant, one.run_id, "request.rejected")
    async with await nats.connect(system.servers.nats_url) as connection:
        answers = await connection.subscribe(rejected)
        await connection.jetstream().publish(subjects.run(system.client.tenant, "test"), body)
        answer = json.loads((await answers.next_msg(timeout=20)).data)
    assert answer["error"]["code"] == "INTERNAL"
    await system.redis.hset(key, "state", before)  # as the version does that can read it
    await gate.open()
    assert (await finished(one))[0].text == "well"


async def test_a_command_that_a_service_cannot_read_ends_its_run(system):
    """As one of a version after the next, in the middle of an upgrade."""
    gate = system.gate()
    handle = await start(system, 60, gate)
    await gate.reached()
    subject = subjects.work("input_processors", system.client.tenant, handle.run_id)
    async with await nats.connect(system.servers.nats_url) as connection:
        js = connection.jetstream()
        seq = int(await system.redis.hget(run_key(system.client.tenant, handle.run_id), "out"))
        command = {
            "run": handle.run_id, "tenant": system.client.tenant, "agent": "test", "seq": seq, "version": 0,
            "service": "input_processors", "outSeq": 0, "messageId": "m", "ops": [{"op": "of a later version"}],
        }  # fmt: skip
        await js.publish(subject, json.dumps(command).encode())
        result = await handle.result(timeout=20)
        assert (result.status, result.error.code) == ("failed", "WORK_FAILED")
        await js.publish(subject, b"no command")
        assert (await finished(await start(system, 60)))[0].text == "well"
    await gate.open()
