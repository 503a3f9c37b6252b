"""A run that waits for a person is kept until somebody decides, or ends with an event; nothing of it holds a place."""

import asyncio
import json
from contextlib import asynccontextmanager

import nats
import pytest

from procession_schemas import subjects
from procession_schemas.run import Failure
from procession_schemas.work import WorkCommand
from procession_services.processor_host.driver import failed_result
from procession_services.runtime import redis_client
from procession_services.runtime.admission import Places
from procession_services.runtime.embedded import EmbeddedServers
from procession_services.runtime.store import run_key
from tests.support.servers import own_servers
from tests.support.system import SERVICES, finished, running_system
from tests.support.waiting import eventually, until

_DELIVERIES = 2

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

        async def has_expired():
            return not (await js.stream_info("EVENTS")).state.messages

        await eventually(has_expired)
        events.max_age = 60
        await js.update_stream(events)
        await connection.close()
        later = await system.client.attach(handle.run_id)
        result = await later.result(timeout=20)
        assert [call["toolCallId"] for call in result.suspend_payload["calls"]] == ["c1"]
        await later.approve("c1")
        assert (await later.result(timeout=20)).text == "done"


@pytest.mark.parametrize("word", ["approve", "cancel"])
async def test_what_somebody_says_while_redis_is_away_counts_when_it_is_back(
    tmp_path, monkeypatch, caplog, word
):
    """Nobody could tell them that it was not heard: it was stored."""
    monkeypatch.setattr(redis_client, "_RETRIES", 1)
    async with EmbeddedServers(tmp_path) as servers, running_system(servers.endpoints, tmp_path) as system:
        monkeypatch.setenv("OPENAI_API_KEY", "unused")
        async with system.inside(*SERVICES, max_deliver=_DELIVERIES):
            handle = await system.start(CALL, DONE, agent=ASKS)
            assert (await handle.result(timeout=20)).status == "suspended"
            servers.kill_redis()
            await (handle.approve("c1") if word == "approve" else handle.cancel())
            await until(lambda: caplog.text.count("waits for Redis") > _DELIVERIES)
            await servers.restart_redis()
            result = await handle.result(timeout=30)
            assert result.status == ("finished" if word == "approve" else "cancelled")


async def test_what_a_service_gave_up_while_redis_is_away_ends_its_run_when_it_is_back(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(redis_client, "_RETRIES", 1)
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with (
        EmbeddedServers(tmp_path) as servers,
        running_system(servers.endpoints, tmp_path) as system,
        system.inside("orchestrator", max_deliver=_DELIVERIES),
    ):
        handle = await system.start(DONE, stream=False)
        connection = await nats.connect(servers.endpoints.nats_url)
        js, tenant = connection.jetstream(), system.client.tenant
        await until(lambda: handle.accepted)

        async def is_sent():
            return (await js.stream_info("WORK")).state.messages

        await eventually(is_sent)
        sent = await js.get_last_msg("WORK", subjects.work("llm_gateway", tenant, handle.run_id))
        given_up = failed_result(
            WorkCommand.from_json(sent.data or b""), Failure(code="WORK_FAILED", message="x")
        )
        servers.kill_redis()
        await js.publish(subjects.work("orchestrator", tenant, handle.run_id), given_up.to_json())
        await until(lambda: caplog.text.count("waits for Redis") > _DELIVERIES)
        await servers.restart_redis()
        error = (await handle.result(timeout=30)).error
        assert error is not None
        assert error.code == "WORK_FAILED"
        await connection.close()


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
