"""Tenants beside each other: turns while one floods, and a clear answer where a limit is reached."""

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import nats
import pytest
import pytest_asyncio
import yaml
from nats.js.errors import NotFoundError

from procession.client import LimitExceededError, Procession
from procession_schemas import subjects
from procession_schemas.agent import Agent
from procession_services.processor_host.driver import Driver
from procession_services.runtime.admission import CALLED, Places
from procession_services.runtime.embedded import embedded
from procession_services.runtime.ledger import Ledger
from procession_services.runtime.run_records import StateChange
from procession_services.runtime.store import RunStore
from tests.support.system import ROOT, SERVICES, all_but, finished, running_system
from tests.support.waiting import eventually, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="session"),
]

HELLO = {"chunks": ["hello"]}
REST = all_but("orchestrator")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own_servers(tmp_path_factory):
    """Servers where nobody else's runs hold places."""
    async with embedded(tmp_path_factory.mktemp("servers"), nats=True, redis=True) as endpoints:
        yield endpoints


@pytest.fixture
def tenants(tmp_path):
    """Writes the limits of tenants; gives the settings of a system with one place."""

    def written(**content):
        file = tmp_path / "tenants.yaml"
        file.write_text(yaml.safe_dump(content))
        return {"tenants": file, "worker_concurrency": 1}

    return written


@asynccontextmanager
async def running(servers, logs, *services, **settings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "unused")
        async with running_system(servers, logs) as system:
            await nothing_before(system)
            async with system.inside(*(services or SERVICES), **settings):
                yield system


async def nothing_before(system):
    """Empties the servers: a run that another test left at work would begin again, and hold the one place."""
    await system.redis.flushdb()
    async with await nats.connect(system.servers.nats_url) as connection:
        for stream in ("RUNS", "WORK"):
            with suppress(NotFoundError):
                await connection.jetstream().purge_stream(stream)


async def accepted(handle):
    """Waits until the services have said that they took the run on."""
    async with asyncio.timeout(20):
        while not handle.accepted:
            await handle._bell.heard(5)
    return handle


async def held(system, **options):
    """A run that holds the one place until its gate is opened."""
    gate = system.gate()
    agent = {"inputProcessors": [gate.processor("processInput")]}
    handle = await system.start(HELLO, agent=agent, **options)
    await gate.reached()
    return gate, handle


async def ends(system, *handles):
    """The runs in the order in which they ended."""
    connection = await nats.connect(system.servers.nats_url)
    subscription = await connection.jetstream().subscribe(
        f"{subjects.ROOT}.event.*.*.run.finished", ordered_consumer=True
    )
    missing, order = {handle.run_id for handle in handles}, []
    async with asyncio.timeout(20):
        while missing:
            _, _, run, *_ = subjects.parse((await subscription.next_msg(timeout=20)).subject)
            if run in missing:
                missing.remove(run)
                order.append(run)
    await connection.close()
    return order


async def test_a_tenant_that_sends_one_request_behind_a_flood_is_the_next(own_servers, tmp_path, tenants):
    async with (
        running(own_servers, tmp_path, **tenants()) as system,
        Procession(own_servers.nats_url, tenant="quiet") as quiet,
    ):
        gate, first = await held(system)
        flood = [await system.start(HELLO) for _ in range(12)]
        late = await quiet.start("Hi", agent=agent_of(system))
        for handle in (*flood, late):
            await accepted(handle)
        await gate.open()
        for handle in (first, *flood, late):
            result, _ = await finished(handle)
            assert result.status == "finished"
        order = await ends(system, first, *flood, late)
    assert order.index(late.run_id) <= 2


def agent_of(system):
    return Agent(name="test", model=system.script(HELLO))


async def test_so_many_runs_of_a_tenant_are_at_work_as_it_may_have(own_servers, tmp_path, tenants):
    settings = tenants(default={"concurrentRuns": 1}) | {"worker_concurrency": 8}
    async with (
        running(own_servers, tmp_path, **settings) as system,
        Procession(own_servers.nats_url, tenant="quiet") as quiet,
    ):
        gate, first = await held(system)
        second = await accepted(await system.start(HELLO))
        other = await quiet.start("Hi", agent=agent_of(system))
        assert (await finished(other))[0].status == "finished"
        await gate.open()
        assert (await finished(first))[0].status == "finished"
        assert (await finished(second))[0].status == "finished"
        assert await ends(system, first, second, other) == [other.run_id, first.run_id, second.run_id]


async def test_a_full_queue_is_told_and_the_same_request_may_come_again(own_servers, tmp_path, tenants):
    async with running(own_servers, tmp_path, **tenants(default={"waitingRuns": 1})) as system:
        gate, first = await held(system)
        second = await accepted(await system.start(HELLO))
        agent = {"model": system.script(HELLO)}
        with pytest.raises(LimitExceededError, match="1 run waiting; at most 1 may wait") as raised:
            await finished(await system.start(agent=agent, run_id="patient"))
        failure = raised.value.failure
        assert failure.code == "TOO_MANY_RUNS"
        assert failure.detail == {"limit": "waitingRuns", "allowed": 1, "current": 1}
        assert raised.value.retry_after >= 1
        await gate.open()
        for handle in (first, second):
            assert (await finished(handle))[0].status == "finished"
        again = await system.start(agent=agent, run_id="patient")
        assert (await finished(again))[0].status == "finished"


async def test_the_queue_of_everybody_has_an_end_too(own_servers, tmp_path, tenants):
    async with running(own_servers, tmp_path, waiting_runs=0, **tenants()) as system:
        gate, first = await held(system)
        with pytest.raises(LimitExceededError) as raised:
            await finished(await system.start(HELLO))
        assert raised.value.failure.code == "OVERLOADED"
        await gate.open()
        await finished(first)


async def test_requests_above_the_rate_are_refused_with_the_time_to_come_back(own_servers, tmp_path, tenants):
    async with running(own_servers, tmp_path, **tenants(default={"requestsPerSecond": 0.01})) as system:
        await system.run(HELLO)
        with pytest.raises(LimitExceededError, match=r"0\.01 requests a second") as raised:
            await finished(await system.start(HELLO))
        assert raised.value.failure.code == "RATE_LIMITED"
        assert 50 < raised.value.retry_after <= 100


async def test_a_day_that_is_used_up_refuses_until_the_next_one(own_servers, tmp_path, tenants):
    limits = tenants(tenants={"rich": {"tokensPerDay": 1000}}, default={"tokensPerDay": 100})
    async with (
        running(own_servers, tmp_path, **limits) as system,
        Procession(own_servers.nats_url, tenant="rich") as rich,
    ):
        ledger = Ledger(system.redis)
        for tenant in (system.client.tenant, "rich"):
            ledger.add(tenant, {"run": "r"}, "m/m", {"inputTokens": 90, "outputTokens": 20}, 0.1)
        await ledger.drain()
        with pytest.raises(LimitExceededError, match="110 of the 100 tokens for today") as raised:
            await finished(await system.start(HELLO))
        assert raised.value.failure.code == "BUDGET_EXCEEDED"
        assert 0 < raised.value.retry_after <= 86_400
        assert (await finished(await rich.start("Hi", agent=agent_of(system))))[0].status == "finished"


async def test_whoever_comes_after_the_refusal_is_told_it_too(own_servers, tmp_path, tenants):
    async with running(own_servers, tmp_path, **tenants(default={"requestsPerSecond": 0.01})) as system:
        await system.run(HELLO)
        subscribed = await nats.connect(own_servers.nats_url)
        run, tenant = "unheard", system.client.tenant
        rejections = await subscribed.jetstream().subscribe(
            subjects.event(tenant, run, "request.rejected"), ordered_consumer=True
        )
        handle = await system.start(HELLO, run_id=run)
        await handle._link.unsubscribe(handle._subscriptions)  # it hears nothing of it
        event = json.loads((await rejections.next_msg(timeout=20)).data)
        assert event["error"]["code"] == "RATE_LIMITED"
        assert event["sequence"] == handle.request
        handle._doubt()  # as after a reconnect
        with pytest.raises(LimitExceededError):
            await handle.result(timeout=20)
        await subscribed.close()


async def test_the_command_line_says_which_limit_it_is(own_servers, tmp_path, tenants):
    agents = tmp_path / "agents.yaml"
    agents.write_text(yaml.safe_dump({"agents": {"test": {"model": "openai/demo"}}}))
    settings = tenants(default={"requestsPerSecond": 0.01}) | {"agents": agents}
    async with running(own_servers, tmp_path, **settings) as system:
        await system.run(HELLO)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "procession_services", "run", "Hi", "--agent", "test",
            cwd=ROOT, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
            env={
                **os.environ,
                "PROCESSION_NATS_URL": own_servers.nats_url,
                "PROCESSION_TENANT": system.client.tenant,
                "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("schemas", "services")),
            },
        )  # fmt: skip
        _, said = await process.communicate()
    assert process.returncode == 1
    assert b"may send 0.01 requests a second; send the request again in" in said


async def test_a_run_that_waits_can_be_cancelled(own_servers, tmp_path, tenants):
    async with running(own_servers, tmp_path, **tenants()) as system:
        gate, first = await held(system)
        model = system.script(HELLO)
        second = await accepted(await system.start(agent={"model": model}))
        await second.cancel()
        result, chunks = await finished(second)
        assert (result.status, result.finish_reason) == ("cancelled", "aborted")
        assert [chunk["type"] for chunk in chunks] == ["start", "abort", "finish"]
        assert system.requests(model) == []
        await gate.open()
        assert (await finished(first))[0].status == "finished"
        assert (await finished(await system.start(HELLO)))[0].status == "finished"


async def test_a_run_that_never_got_its_turn_says_so_at_its_deadline(own_servers, tmp_path, tenants):
    async with running(own_servers, tmp_path, **tenants()) as system:
        gate, first = await held(system)
        second = await system.start(HELLO, timeout=0.5)
        result, _ = await finished(second)
        assert (result.status, result.error.code) == ("failed", "DEADLINE_EXCEEDED")
        assert "waited for its turn" in result.error.message
        await gate.open()
        assert (await finished(first))[0].status == "finished"


async def test_a_run_that_waits_for_a_person_lets_others_in(own_servers, tmp_path, tenants):
    call = {"tool_calls": [{"id": "c1", "name": "send-mail", "arguments": {"to": "ann"}}]}
    async with running(own_servers, tmp_path, **tenants()) as system:
        first = await system.start(call, HELLO, agent={"tools": ["send-mail"]})
        async with asyncio.timeout(20):
            assert [chunk async for chunk in first][-1]["type"] == "tool-call-approval"
        assert (await finished(await system.start(HELLO)))[0].status == "finished"
        await first.approve("c1")
        assert (await finished(first))[0].status == "finished"


async def test_who_got_a_place_from_somebody_who_died_begins(own_servers, tmp_path, tenants):
    async with running(own_servers, tmp_path, **tenants()) as system:
        gate, first = await held(system)
        second = await accepted(await system.start(HELLO))
        store, tenant = RunStore(system.redis, ttl=600, finished_ttl=600, told_ttl=600), system.client.tenant
        stored = await store.load_state(tenant, first.run_id)
        assert stored is not None
        # as whoever ends the first run and dies before anything else
        done = await store.save_state(
            tenant,
            first.run_id,
            StateChange(stored.version, b'{"status":"done"}', 4_000_000_000_000, finished=True),
        )
        assert [each.run for each in done.called] == [second.run_id]
        await system.redis.zadd(CALLED, {f"{tenant} {second.run_id}": 1})
        gate_opened = asyncio.create_task(gate.open())
        assert (await finished(second))[0].status == "finished"
        await gate_opened


async def test_nothing_that_waits_is_lost_when_the_orchestrator_is_killed(own_servers, tmp_path, tenants):
    settings = tenants(default={"concurrentRuns": 1})
    async with running(own_servers, tmp_path, *REST, **settings) as system, AsyncExitStack() as stack:
        orchestrators = [system.process("orchestrator", work_ack_wait=1.5, **settings) for _ in range(2)]
        for each in orchestrators:
            stack.push_async_callback(each.stop)
        await (await orchestrators[0].start()).ready()
        handles = [await system.start(HELLO) for _ in range(30)]
        await accepted(handles[3])
        orchestrators[0].kill()
        await orchestrators[0].ended()
        assert (await finished(handles[3]))[0].status == "finished", (
            "it needs no orchestrator to get its turn"
        )
        await (await orchestrators[1].start()).ready()
        for handle in handles:
            result, _ = await finished(handle)
            assert result.status == "finished", result.error


async def test_places_grow_and_shrink_with_the_gateways(own_servers, tmp_path, tenants):
    async with running(own_servers, tmp_path, **tenants()) as system:
        places = Places(system.redis)
        assert await places.offered() == 1
        async with system.inside("llm_gateway", worker_concurrency=5):
            assert await places.offered() == 6
        assert await places.offered() == 1


async def test_every_request_of_a_flood_is_answered_though_not_every_one_is_read(
    own_servers, tmp_path, tenants
):
    settings = tenants(default={"waitingRuns": 0})
    async with running(own_servers, tmp_path, *REST, **settings) as system:
        connection, tenant = await nats.connect(own_servers.nats_url), system.client.tenant
        answers = await connection.subscribe(f"{subjects.ROOT}.event.{tenant}.>")
        for number in range(1_000):
            await connection.publish(
                subjects.run(tenant, "test"), b"{}", headers={"Nats-Msg-Id": f"n{number}"}
            )
        await connection.flush()
        codes: dict[str, str] = {}
        async with asyncio.timeout(60), system.inside("orchestrator", **settings):
            while len(codes) < 1_000:
                event = json.loads((await answers.next_msg(timeout=60)).data)
                failure = event["error"] if "error" in event else event["result"]["error"]
                codes[event["runId"]] = failure["code"]
        await connection.close()
    assert set(codes.values()) == {"INVALID_REQUEST", "TOO_MANY_RUNS"}


async def test_a_word_behind_a_flood_of_another_tenants_is_the_next(own_servers, tmp_path, monkeypatch):
    taken, may_go_on = [], asyncio.Event()

    async def take(_driver, tenant, _run, _control):
        taken.append(tenant)
        await may_go_on.wait()

    monkeypatch.setattr(Driver, "event", take)
    async with running(own_servers, tmp_path, "orchestrator") as system:
        connection = await nats.connect(own_servers.nats_url)

        async def say(tenant, run):
            await connection.jetstream().publish(subjects.control(tenant, run), b'{"type": "cancel"}')

        await asyncio.gather(*(say("many", f"r{number}") for number in range(100)))
        await until(lambda: len(taken) >= 16)
        await say("one", "r")

        async def has_come():
            consumer = await connection.jetstream().consumer_info("WORK", "orchestrator-control")
            return (consumer.num_pending, consumer.num_ack_pending) == (0, 101)

        await eventually(has_come)
        may_go_on.set()
        await until(lambda: len(taken) == 101)
        assert taken.index("one") <= 17
        await connection.close()
        await system.redis.flushdb()


async def test_a_stream_of_requests_that_is_full_says_so_at_once(own_servers, tmp_path):
    async with running(own_servers, tmp_path, "llm_gateway") as system:
        connection = await nats.connect(own_servers.nats_url)
        subject = subjects.run(system.client.tenant, "test")
        jetstream = connection.jetstream()
        for _ in range(16):
            await asyncio.gather(*(jetstream.publish(subject, b"{}", timeout=30) for _ in range(256)))
        with pytest.raises(LimitExceededError, match="still waiting to be taken up") as raised:
            await system.start(HELLO)
        assert raised.value.failure.code == "OVERLOADED"
        async with Procession(own_servers.nats_url, tenant="quiet") as quiet:
            assert (await quiet.start("Hi", agent="test")).run_id
        await connection.close()
