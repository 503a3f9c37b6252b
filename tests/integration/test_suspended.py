"""A run that waits for a person is kept until somebody decides, or ends with an event; nothing of it holds a place."""

import asyncio
import json
from contextlib import asynccontextmanager

import nats
import pytest

from procession_schemas import subjects
from procession_services.runtime.admission import Places
from procession_services.runtime.store import run_key
from tests.support.servers import own_servers
from tests.support.system import SERVICES, finished, running_system
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

CALL = {"tool_calls": [{"id": "c1", "name": "send-mail", "arguments": {"to": "ann"}}]}
DONE = {"chunks": ["done"]}
ASKS = {"tools": ["send-mail"]}


@asynccontextmanager
async def running(directory, monkeypatch, **settings):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with (
        own_servers(directory) as servers,
        running_system(servers.endpoints, directory) as system,
        system.inside(*SERVICES, **settings),
    ):
        yield system


async def test_it_is_kept_for_longer_than_a_run_that_nobody_changes(tmp_path, monkeypatch):
    async with running(tmp_path, monkeypatch, context_ttl=1) as system:
        handle = await system.start(CALL, DONE, agent=ASKS)
        assert (await handle.result(timeout=20)).status == "suspended"
        assert await system.redis.ttl(run_key(system.client.tenant, handle.run_id)) > 86_400
        await handle.approve("c1")
        assert (await finished(handle))[0].status == "finished"


async def test_it_ends_when_nobody_decides_in_time(tmp_path, monkeypatch):
    async with running(tmp_path, monkeypatch, context_ttl=1, suspended_timeout=1) as system:
        handle = await system.start(CALL, DONE, agent=ASKS)
        assert (await handle.result(timeout=20)).status == "suspended"
        async with asyncio.timeout(30):  # an orchestrator looks at the deadlines of others every 15 s
            while (result := await handle.result()).status == "suspended":
                await handle._bell.heard(5)
        assert (result.status, result.error.code) == ("failed", "DEADLINE_EXCEEDED")
        assert "nobody decided" in result.error.message


async def test_who_comes_when_its_events_have_expired_can_still_decide(tmp_path, monkeypatch):
    """EVENTS keeps a week, and a run waits for a month."""
    async with running(tmp_path, monkeypatch) as system:
        handle = await system.start(CALL, DONE, agent=ASKS, stream=False)
        assert (await handle.result(timeout=20)).status == "suspended"
        await handle.close()
        connection = await nats.connect(system.servers.nats_url)
        js = connection.jetstream()

        async def is_handled():
            return not (await js.stream_info("RUNS")).state.messages

        await eventually(is_handled)
        events = (await js.stream_info("EVENTS")).config
        events.max_age, events.duplicate_window = 0.1, 0.1
        await js.update_stream(events)
        await asyncio.sleep(1)
        events.max_age = 60
        await js.update_stream(events)
        await connection.close()
        later = await system.client.attach(handle.run_id)
        result = await later.result(timeout=20)
        assert [call["toolCallId"] for call in result.suspend_payload["calls"]] == ["c1"]
        await later.approve("c1")
        assert (await later.result(timeout=20)).text == "done"


async def test_a_decision_that_is_delivered_again_answers_no_later_question_about_the_same_call(
    tmp_path, monkeypatch
):
    """Who has handled it may die before NATS knows; and some models count their calls from one in each answer."""
    async with running(tmp_path, monkeypatch) as system:
        connection = await nats.connect(system.servers.nats_url)
        tenant, run = system.client.tenant, "r1"
        subject = subjects.control(tenant, run)
        controls = await connection.subscribe(subject)
        suspended = await connection.subscribe(subjects.event(tenant, run, "run.suspended"))
        await connection.flush()
        handle = await system.start(CALL, CALL, DONE, agent=ASKS, run_id=run)
        await suspended.next_msg(timeout=20)
        await handle.approve("c1")
        approval = await controls.next_msg(timeout=10)
        await suspended.next_msg(timeout=20)
        await connection.jetstream().publish(subject, approval.data)
        await handle.decline("c1")
        result, chunks = await finished(handle)
        assert result.status == "finished"
        outcomes = [c["type"] for c in chunks if c["type"] in ("tool-result", "tool-output-denied")]
        assert outcomes == ["tool-result", "tool-output-denied"]
        await connection.close()


async def test_a_request_of_which_redis_knows_nothing_any_more_is_worked_on_once_more(tmp_path, monkeypatch):
    """NATS knows the commands of before for two minutes, and would drop those of now."""
    async with running(tmp_path, monkeypatch, worker_concurrency=1) as system:
        tenant, run = system.client.tenant, "r1"
        agent = {"name": "test", "model": system.script(CALL, CALL, DONE), **ASKS}
        body = json.dumps({"runId": run, "input": "Hello", "agent": agent}).encode()
        connection = await nats.connect(system.servers.nats_url)
        heard = await connection.subscribe(subjects.event(tenant, run, "run.suspended"))
        for _ in range(2):
            await connection.jetstream().publish(subjects.run(tenant, "test"), body)
            await heard.next_msg(timeout=10)
            await system.redis.delete(run_key(tenant, run))
        assert (await Places(system.redis).queues()).running == {}
        assert (await finished(await system.start(DONE)))[0].status == "finished"
        await connection.close()
