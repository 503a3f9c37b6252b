"""The id of a run that Redis has forgotten is not for reuse, as long as EVENTS holds the run's end."""

import asyncio
import json

import nats
import pytest
from nats.js.errors import NotFoundError

from procession.client import RunConflictError
from procession_schemas import subjects
from procession_schemas.agent import Agent
from procession_schemas.events import RunAccepted, RunFinished
from procession_schemas.fingerprint import fingerprint
from procession_schemas.run import RunRequest
from procession_services.runtime.store import run_key
from tests.support.system import finished
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

ANSWER = {"chunks": ["the ", "first"]}


async def forgotten(system, run):
    """What `finished_ttl` does to a run, at once, when its end has been told."""
    await eventually(lambda: system.redis.exists(f"{run_key(system.client.tenant, run)}:told"))
    assert await system.redis.delete(run_key(system.client.tenant, run))


async def ended(system, **options):
    """A run that has ended some time ago; its model, agent and result."""
    model = system.script(ANSWER, ANSWER)
    agent = Agent(name="test", model=model)
    result, _ = await finished(await system.client.start("Hello", agent=agent, **options))
    await forgotten(system, result.run_id)
    return model, agent, result


async def test_another_request_under_the_id_is_a_conflict(system):
    model, agent, result = await ended(system)
    handle = await system.client.start("Another", agent=agent, run_id=result.run_id)
    with pytest.raises(RunConflictError, match="use a new runId"):
        await handle.result(timeout=10)
    again = await system.client.attach(result.run_id)
    assert (await again.result(timeout=10)).text == result.text
    assert len(system.requests(model)) == 1


async def test_a_request_that_cannot_run_is_a_conflict_too(system):
    _, _, result = await ended(system)
    handle = await system.client.start("Another", agent="nobody", run_id=result.run_id)
    with pytest.raises(RunConflictError):
        await handle.result(timeout=10)


async def test_the_same_request_is_still_the_same_run(system):
    model, agent, result = await ended(system, run_id="mine")
    connection = await nats.connect(system.servers.nats_url)
    runs = connection.jetstream()
    subject = subjects.run(system.client.tenant, "test")
    events = await connection.subscribe(subjects.event(system.client.tenant, "mine", ">"))
    await connection.flush()
    body = RunRequest(input="Hello", run_id="mine", agent=agent).model_dump_json(
        by_alias=True, exclude_unset=True
    )
    await runs.publish(subject, body.encode())  # without the message id that the stream knows for two minutes
    told = await events.next_msg(timeout=10)
    assert told.subject.endswith("run.accepted")
    accepted = RunAccepted.model_validate_json(told.data)
    assert (accepted.fingerprint, accepted.stream) == (fingerprint(subject, body.encode()), True)
    end = await runs.get_last_msg("EVENTS", subjects.event(system.client.tenant, "mine", "run.finished"))
    assert RunFinished.model_validate_json(end.data or b"").fingerprint == fingerprint(subject, body.encode())
    await connection.close()
    handle = await system.client.attach("mine")
    assert (await handle.result(timeout=10)).text == result.text
    assert len(system.requests(model)) == 1


async def test_an_id_is_remembered_for_as_long_as_its_end_can_be_read(system):
    _, _, result = await ended(system)
    connection = await nats.connect(system.servers.nats_url)
    kept = (await connection.jetstream().stream_info("EVENTS")).config.max_age
    await connection.close()
    assert kept is not None
    seconds = await system.redis.ttl(f"{run_key(system.client.tenant, result.run_id)}:told")
    assert kept - 60 < seconds <= kept
    refused, _ = await finished(await system.client.start("Hello", agent="nobody"))
    assert kept - 60 < await system.redis.ttl(run_key(system.client.tenant, refused.run_id)) <= kept


async def test_who_attaches_to_a_run_without_chunks_need_not_wait_for_any(system, monkeypatch):
    monkeypatch.setattr("procession.client.handle._LOST_SECONDS", 60.0)
    _, _, result = await ended(system, stream=False)
    handle = await system.client.attach(result.run_id)
    async with asyncio.timeout(30):
        assert [chunk async for chunk in handle] == []


@pytest.mark.parametrize(("text", "agent"), [("Another", "nobody"), ("Hello", "nobody-else")])
async def test_a_second_request_under_the_id_of_one_that_could_not_run_does_not_get_its_failure(
    system, text, agent
):
    run = f"neither-{agent}"
    first = await system.client.start("Hello", agent="nobody", run_id=run)
    assert "'nobody'" in (await first.result(timeout=10)).error.message
    second = await system.client.start(text, agent=agent, run_id=run)
    with pytest.raises(RunConflictError):
        await second.result(timeout=10)


async def test_who_was_refused_is_told_nothing_else_when_the_reason_is_gone(system):
    memory = {"thread": "reused", "resource": "ids", "concurrency": "reject"}
    gate = system.gate()
    waits = {"memory": {}, "inputProcessors": [gate.processor("processInput")]}
    ahead = await system.start(ANSWER, agent=waits, memory=memory)
    await gate.reached()
    agent = {"name": "test", "model": system.script(ANSWER), "memory": {}}
    body = json.dumps({"input": "Hello", "runId": "refused", "agent": agent, "memory": memory}).encode()
    subject, tenant = subjects.run(system.client.tenant, "test"), system.client.tenant
    async with await nats.connect(system.servers.nats_url) as connection:
        runs = connection.jetstream()
        chunks = await connection.subscribe(subjects.chunk(tenant, "refused"))
        events = await connection.subscribe(subjects.event(tenant, "refused", ">"))

        async def told():
            """How many chunks and events were told in all when the request was handled once more."""
            sequence = (await runs.publish(subject, body)).seq

            async def acknowledged():
                try:
                    await runs.get_msg("RUNS", sequence)
                except NotFoundError:
                    return True
                return False

            await eventually(acknowledged)
            await connection.flush()
            return chunks.pending_msgs, events.pending_msgs

        assert await told() == (1, 1)
        await gate.open()
        await finished(ahead)
        assert await told() == (1, 1)
    end, _ = await finished(await system.client.attach("refused"))
    assert end.error.code == "THREAD_BUSY"
