"""The system under the credentials of `procession init`: every user can do its work, and tenants do not meet."""

import asyncio
import importlib
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import nats
import orjson
import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from examples.bare_client import ask
from procession.client import NotAcceptedError, NotConnectedError, Procession, UnknownRunError
from procession_schemas import subjects
from procession_schemas.agent import Agent
from procession_schemas.subjects import ROOT
from procession_services.bus import Bus
from procession_services.bus.operator import Operator
from procession_services.demo import agents as demo_agents
from procession_services.demo_model import serve
from procession_services.deploy.permissions import (
    tenant_user,
)
from procession_services.processor_host.service import hosted
from procession_services.runtime.access import Access
from procession_services.supervisor import SERVICES
from tests.support.guarded import guarded_servers
from tests.support.system import service_process
from tests.support.waiting import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]
MEMORY = {"semanticRecall": True, "workingMemory": True}
KEEPER = Agent.model_validate({"name": "keeper", "model": "openai/demo", "memory": MEMORY})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(tmp_path_factory):
    """Servers without services, so that what is tried here meets nobody."""
    async with guarded_servers(tmp_path_factory.mktemp("guarded")) as guarded:
        yield guarded


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(tmp_path_factory):
    """All services, each under its own users, with the demo's agent and its model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "unused")
        async with AsyncExitStack() as stack:
            guarded = await stack.enter_async_context(guarded_servers(tmp_path_factory.mktemp("system")))
            models = await stack.enter_async_context(await serve())
            more = {
                "api_base": f"http://127.0.0.1:{models.port}/v1",
                "plugins": ("procession_services.demo.processors",),
                "agents": Path(demo_agents.__file__),
                "chroma_path": tmp_path_factory.mktemp("chroma"),
            }
            for service in SERVICES:
                start = importlib.import_module(f"procession_services.{service}.app").start
                await stack.enter_async_context(hosted(service, guarded.settings(service, **more), start))
            yield guarded


@pytest.fixture
def violations(caplog):
    """What the connections of the services were refused while the test ran."""
    caplog.set_level(logging.WARNING)
    return lambda: [r.getMessage() for r in caplog.records if "ermission" in r.getMessage()]


async def test_every_service_can_do_its_work_under_its_own_user(system, violations):
    async with system.client("acme") as procession:
        handle = await procession.start(
            "What is the weather in Paris, and whom can I write to?", agent="demo"
        )
        chunks = [chunk async for chunk in handle]
        result = await handle.result(timeout=20)
    assert (result.status, violations()) == ("finished", [])
    assert result.tool_calls
    assert {chunk["type"] for chunk in chunks} >= {"start", "tool-result", "text-delta", "finish"}


async def test_memory_threads_and_working_memory_work_too(system, violations):
    async with system.client("acme") as procession:
        result = await procession.generate(
            "Remember me", agent=KEEPER, memory={"thread": "t", "resource": "r"}
        )
        assert result.status == "finished", result.error
        assert (await procession.memory.messages("t", "r"))["total"] == 2
    assert violations() == []


async def test_one_process_has_the_users_of_all_its_services(tmp_path):
    """As the container `together` of compose.yaml: each connection has the rights of its service, and no others."""
    async with AsyncExitStack() as stack:
        guarded = await stack.enter_async_context(guarded_servers(tmp_path))
        models = await stack.enter_async_context(await serve())
        secrets = guarded.deployment.directory
        settings = {
            "nats_url": guarded.nats_url, "nats_user": "{service}",
            "redis_url": guarded.redis_url, "redis_user": "{service}",
            "nats_password_file": secrets / "nats" / "{service}",
            "redis_password_file": secrets / "redis" / "{service}",
            "plugins": "procession_services.demo.processors", "agents": demo_agents.__file__,
            "chroma_path": tmp_path / "chroma", "api_base": f"http://127.0.0.1:{models.port}/v1",
        }  # fmt: skip
        process = service_process(SERVICES, tmp_path / "log", **settings)
        stack.push_async_callback(process.stop)
        await (await process.start()).ready()
        async with guarded.client("acme") as procession:
            result = await procession.generate("What is the weather in Paris?", agent="demo")
            assert (result.status, bool(result.tool_calls)) == ("finished", True), result.error
            thread = {"thread": "t", "resource": "r"}
            result = await procession.generate("Remember me", agent=KEEPER, memory=thread)
            assert result.status == "finished", result.error
            assert (await procession.memory.messages("t", "r"))["total"] == 2
        assert await process.terminate() == 0
        assert "ermission" not in process.logged()


async def test_a_client_comes_back_to_its_run(system, violations):
    async with system.client("acme") as procession:
        handle = await procession.start("Hello", agent="demo")
        first = [chunk async for chunk in handle]
        with pytest.raises(UnknownRunError):
            await procession.attach("nowhere")
        again = await procession.attach(handle.run_id)
        assert [chunk async for chunk in again] == first
        await procession.cancel(handle.run_id)
    assert violations() == []


async def test_so_does_one_without_our_library(system, violations):
    user = tenant_user("acme")
    connection = {
        "user": user,
        "password": system.deployment.password("clients", "acme"),
        "inbox_prefix": f"_INBOX.{user}",
    }
    asked = system.nats_url, "demo", {"runId": "bare", "input": "Hello"}
    texts: list[str] = []
    async with asyncio.timeout(30):
        for _ in range(2):
            result = await ask(
                *asked, tenant="acme", show=lambda answer: texts.append(answer.text), **connection
            )
            assert (result["status"], texts[-1]) == ("finished", result["text"])
    assert violations() == []


async def test_a_tenant_can_not_read_the_chunks_and_events_of_another(system):
    async with system.client("beta") as beta:
        handle = await beta.start("A secret question", agent="demo")
        assert (await handle.result(timeout=20)).status == "finished"
    run = handle.run_id
    acme = await system.nats("clients", "acme")
    requests = {
        subjects.api("orchestrator", "beta", "backlog"): {"run": run},
        f"$JS.API.DIRECT.GET.EVENTS.{subjects.event('beta', run, 'run.finished')}": None,
        "$JS.API.STREAM.MSG.GET.EVENTS": {"last_by_subj": subjects.event("beta", run, "run.finished")},
        "$JS.API.DIRECT.GET.CHUNKS": {"seq": 1, "next_by_subj": subjects.chunk("beta", run)},
        subjects.api("memory", "beta", "threads"): {"resource": "r"},
    }
    for subject, body in requests.items():
        with pytest.raises(nats.errors.Error):
            await acme.client.request(subject, orjson.dumps(body) if body else b"", timeout=0.3)
    wanted = {subject.lower() for subject in requests}
    await until(lambda: {subject for _, subject in acme.refused} == wanted)
    # Its own door with the other's run finds nothing.
    answer = await acme.client.request(
        subjects.api("orchestrator", "acme", "backlog"), orjson.dumps({"run": run}), timeout=20
    )
    assert orjson.loads(answer.data)["batches"] == []
    await acme.client.close()


async def test_an_answer_never_reaches_a_subject_of_another_tenant(system):
    """A tenant can not have services, nor the streams' acknowledgements, speak to somebody else."""
    operator = await system.nats("nats", "operator")
    acme = await system.nats("clients", "acme")
    heard = await operator.client.subscribe(f"{ROOT}.event.beta.>")
    await operator.client.flush()
    forged = subjects.event("beta", "victim", "run.finished")
    await acme.client.publish(subjects.api("memory", "acme", "threads"), b'{"resource": "r"}', reply=forged)
    await acme.client.publish(subjects.run("acme", "demo"), b"{}", reply=forged)
    await acme.client.flush()
    async with system.client("acme") as procession:  # stream and service have answered what came before this
        await procession.start("Hello", agent="demo")
        await procession.memory.threads("r")
    last = subjects.event("beta", "last", "run.finished")
    await operator.client.publish(last, b"")
    assert (await heard.next_msg(timeout=20)).subject == last
    for each in (operator, acme):
        await each.client.close()


@pytest.mark.parametrize("password", ["", "wrong"])
async def test_nobody_gets_in_without_the_password(guarded, password):
    with pytest.raises(NotConnectedError):
        async with Procession(guarded.nats_url, tenant="acme", user=tenant_user("acme"), password=password,
                              connect_timeout=1):  # fmt: skip
            pass


async def test_a_client_that_claims_another_tenant_is_not_accepted(system):
    password = system.deployment.password("clients", "acme")
    claims = Procession(system.nats_url, tenant="beta", user=tenant_user("acme"), password=password)
    async with claims as procession:
        with pytest.raises((NotAcceptedError, TimeoutError)):
            async with asyncio.timeout(3):
                await procession.start("Hello", agent="demo")


async def test_a_client_is_told_what_its_user_may_not_do(guarded):
    mine = guarded.client("beta", whose="acme", accept_timeout=1)
    mine._link._options |= {"user": tenant_user("acme"), "inbox_prefix": f"_INBOX.{tenant_user('acme')}"}
    async with mine as procession:
        with pytest.raises(NotAcceptedError, match=r'publish to "procession\.v1\.run\.beta\.demo"'):
            await procession.start("Hello", agent="demo")


async def test_a_client_whose_user_is_part_of_the_address_hears_answers(guarded):
    """Its user may listen for answers at one place only."""
    secret = f"{tenant_user('acme')}:{guarded.deployment.password('clients', 'acme')}"
    url = guarded.nats_url.replace("://", f"://{secret}@")
    async with Procession(url, tenant="acme", accept_timeout=0.3) as procession:
        with pytest.raises(NotAcceptedError, match="are the services running"):  # as somebody answers
            await procession.start("Hello", agent="demo")
        with pytest.raises(NotConnectedError) as caught:
            await procession.attach("run-1")
    assert secret not in str(caught.value)


async def test_a_password_in_an_address_may_be_percent_encoded(guarded):
    password = "".join(f"%{byte:02x}" for byte in guarded.deployment.password("nats", "operator").encode())
    url = guarded.nats_url.replace("://", f"://operator:{password}@")
    for connecting in (Bus.connect(url, "test"), Operator.connect(url, Access())):
        await (await connecting).close()


async def test_a_service_hears_of_what_it_may_not_publish(guarded):
    settings = guarded.settings("orchestrator")
    bus = await Bus.connect(guarded.nats_url, "test", access=Access.of(settings, "orchestrator"))
    refused: list[str] = []
    bus.on_refusal.append(refused.append)
    await bus.publish(subjects.desk("orchestrator", "nobody"), b"")
    await until(lambda: refused)
    assert refused == [subjects.desk("orchestrator", "nobody")]
    await bus.close()


@pytest.mark.parametrize("service", SERVICES)
async def test_redis_shows_a_service_its_own_keys_only(guarded, service):
    password = guarded.deployment.password("redis", service)
    redis: Any = Redis.from_url(guarded.redis_url, username=service, password=password)
    async with redis:
        await redis.hset("procession:acme:run:r", "f", "v")
        await redis.delete("procession:acme:run:r")
        for key in (
            "other",
            "procession:other",
            *(["procession:acme:memory:r:note"] * (service != "memory")),
        ):
            with pytest.raises(NoPermissionError):
                await redis.get(key)
            with pytest.raises((NoPermissionError, ResponseError)):
                await redis.eval("return redis.call('GET', KEYS[1])", 1, key)
        for command in (("KEYS", "*"), ("FLUSHALL",), ("CONFIG", "GET", "*"), ("ACL", "LIST"), ("SHUTDOWN",),
                        ("SCRIPT", "FLUSH"), ("MONITOR",), ("CLIENT", "LIST")):  # fmt: skip
            with pytest.raises(NoPermissionError):
                await redis.execute_command(*command)
        with pytest.raises(ResponseError, match=r"no permissions|not allowed"):  # to nobody, since Redis 7
            await redis.execute_command("DEBUG", "SLEEP", "0")


async def test_what_services_wrote_outlives_a_restart_of_redis(guarded):
    password = guarded.deployment.password("redis", "tools")
    redis: Any = Redis.from_url(guarded.redis_url, username="tools", password=password)
    async with redis, redis.pipeline(transaction=True) as pipe:
        await pipe.hset("procession:acme:run:kept", "f", "v").expire("procession:acme:run:kept", 60).execute()
        while (await redis.info("persistence"))["aof_buffer_length"]:  # noqa: ASYNC110 - a busy disk delays Redis
            await asyncio.sleep(0.01)
    guarded.redis.kill()
    await guarded.redis.start()
    again: Any = Redis.from_url(guarded.redis_url, username="tools", password=password)
    async with again:
        assert await again.hget("procession:acme:run:kept", "f") == b"v"


async def test_redis_lets_nobody_in_without_a_password(guarded):
    async with Redis.from_url(guarded.redis_url) as redis:
        with pytest.raises(Exception, match="authenticated"):
            await redis.get("procession:acme:run:r")
