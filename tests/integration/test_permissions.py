"""The system under the credentials of `procession init`: every user can do its work, and nothing else."""

import asyncio
import contextlib
import importlib
import logging
import re
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import orjson
import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from procession.client import NotAcceptedError, NotConnectedError, Procession
from procession_schemas import subjects
from procession_schemas.agent import Agent
from procession_schemas.subjects import ROOT, STREAMS
from procession_services.demo import agents as demo_agents
from procession_services.demo_model import serve
from procession_services.deploy.files import Deployment
from procession_services.deploy.permissions import (
    SERVICE_PERMISSIONS,
    Permissions,
    tenant_permissions,
    tenant_user,
)
from procession_services.processor_host.service import hosted
from procession_services.runtime import embedded
from procession_services.runtime.settings import Settings
from procession_services.supervisor import SERVICES

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="session"),
]

INFRA = Path(__file__).resolve().parents[2] / "infra"
VIOLATION = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"')
"""As nats-py tells it: in lower case, the subject too."""
LAST = "nobody.may.publish.this"


class Nats(embedded._Nats):
    """The server with the project's own configuration; ports, name and directory are the test's."""

    _accounts: Path

    def __init__(self, accounts: Path) -> None:
        super().__init__()
        object.__setattr__(self, "_accounts", accounts)

    def config(self, data, ports):
        text = (INFRA / "nats.conf").read_text()
        for theirs, ours in (
            ("$NATS_NAME", self.server_name), ("0.0.0.0:4222", f"127.0.0.1:{ports[0]}"),
            ("0.0.0.0:8222", f"127.0.0.1:{ports[1]}"), ("/data", str(data)),
            ('include "accounts.conf"', self._accounts.read_text()),
        ):  # fmt: skip
            assert theirs in text
            text = text.replace(theirs, ours)
        return text


class RedisServer(embedded._Redis):
    """The same for Redis."""

    _users: Path

    def __init__(self, users: Path) -> None:
        super().__init__()
        object.__setattr__(self, "_users", users)

    def config(self, data, ports):
        text = (INFRA / "redis.conf").read_text()
        for theirs, ours in (
            ("/etc/redis/users.acl", str(self._users)),
            ("dir /data", f"dir {data}"),
        ):
            assert theirs in text
            text = text.replace(theirs, ours)
        return f"{text}\nbind 127.0.0.1\nport {ports[0]}\n"

    async def answers(self, reader, writer, pid):
        writer.write(b"PING\r\n")
        return (await reader.readline()).startswith(b"-NOAUTH")


@dataclass
class Guarded:
    """Servers that let nobody in without a password."""

    deployment: Deployment
    nats_url: str
    redis_url: str
    redis: Any

    def settings(self, service: str, **more: Any) -> Settings:
        secrets = self.deployment.directory
        return Settings(
            nats_url=self.nats_url, redis_url=self.redis_url, replica=f"{service}-1",
            nats_user=service, nats_password_file=secrets / "nats" / service,
            redis_user=service, redis_password_file=secrets / "redis" / service,
            create_streams=service == "orchestrator", **more,
        )  # fmt: skip

    def client(self, tenant: str, **more: Any) -> Procession:
        password = self.deployment.password("clients", more.pop("whose", tenant))
        return Procession(self.nats_url, tenant=tenant, user=tenant_user(tenant), password=password, **more)

    async def nats(self, kind: str, name: str) -> "Tried":
        user = tenant_user(name) if kind == "clients" else name
        tried = Tried(self.deployment.password(kind, name), user)
        await tried.connect(self.nats_url)
        return tried


class Tried:
    """A connection that notes what it was refused."""

    def __init__(self, password: str, user: str) -> None:
        self.user, self._password = user, password
        self.refused: set[tuple[str, str]] = set()
        self._seen = asyncio.Event()

    async def connect(self, url: str) -> None:
        self.client = await nats.connect(
            url, user=self.user, password=self._password, error_cb=self._refused, allow_reconnect=False,
            inbox_prefix=f"_INBOX.{self.user}",
        )  # fmt: skip

    async def _refused(self, error: Exception) -> None:
        if found := VIOLATION.search(str(error)):
            self.refused.add((found[1], found[2]))
            if found[2] == LAST:
                self._seen.set()

    async def _settled(self) -> None:
        """Returns when the server has said what it thinks of all before: it says it in order."""
        self._seen.clear()
        await self.client.publish(LAST, b"")
        await asyncio.wait_for(self._seen.wait(), 5)
        self.refused.discard(("publish", LAST))

    async def publishes(self, wanted: list[str]) -> set[str]:
        """Publishes to all these subjects; gives those that were let through."""
        for subject in wanted:
            await self.client.publish(subject, b"")
        await self._settled()
        return {subject for subject in wanted if ("publish", subject.lower()) not in self.refused}

    async def subscribes(self, wanted: list[str]) -> set[str]:
        """The same for subscriptions."""
        for subject in wanted:
            await self.client.subscribe(subject)
        await self._settled()
        return {subject for subject in wanted if ("subscription", subject.lower()) not in self.refused}


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject, or every subject of a narrower pattern, is one of the pattern's."""
    wanted, have = pattern.split("."), subject.split(".")
    for number, token in enumerate(wanted):
        if token == ">":
            return number < len(have)
        if (
            number >= len(have)
            or have[number] == ">"
            or (token != have[number] and not _fits(token, have[number]))
        ):
            return False
    return len(wanted) == len(have)


def _fits(token: str, have: str) -> bool:
    return token == "*"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(tmp_path_factory):
    """Servers without services, so that what is tried here meets nobody."""
    async with guarded_servers(tmp_path_factory.mktemp("guarded")) as guarded:
        yield guarded


@contextlib.asynccontextmanager
async def guarded_servers(directory):
    deployment = Deployment(directory / "secrets")
    deployment.write(["acme", "beta"])
    servers = (
        embedded._Server(Nats(deployment.directory / "nats" / "accounts.conf"), directory),
        embedded._Server(RedisServer(deployment.directory / "redis" / "users.acl"), directory),
    )
    async with AsyncExitStack() as stack:
        for server in servers:
            stack.push_async_callback(server.stop)
            await server.start()
        yield Guarded(
            deployment,
            f"nats://127.0.0.1:{servers[0].ports[0]}",
            f"redis://127.0.0.1:{servers[1].ports[0]}/0",
            servers[1],
        )


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
    memory = {"semanticRecall": True, "workingMemory": True}
    agent = Agent.model_validate({"name": "keeper", "model": "openai/demo", "memory": memory})
    async with system.client("acme") as procession:
        result = await procession.generate(
            "Remember me", agent=agent, memory={"thread": "t", "resource": "r"}
        )
        assert result.status == "finished", result.error
        assert (await procession.memory.messages("t", "r"))["total"] == 2
    assert violations() == []


async def test_a_client_comes_back_to_its_run(system, violations):
    async with system.client("acme") as procession:
        handle = await procession.start("Hello", agent="demo")
        first = [chunk async for chunk in handle]
        again = await procession.attach(handle.run_id)
        assert [chunk async for chunk in again] == first
        await procession.cancel(handle.run_id)
    assert violations() == []


def universe() -> list[str]:
    """A subject for every permission that anybody has, and some that nobody has."""
    patterns = {each for p in SERVICE_PERMISSIONS.values() for each in (*p.publish, *p.subscribe)}
    patterns |= {
        f"$JS.API.STREAM.{verb}.{stream}"
        for verb in ("DELETE", "PURGE", "UPDATE", "MSG.GET", "MSG.DELETE", "SNAPSHOT", "RESTORE")
        for stream in STREAMS
    }
    patterns |= {
        f"$JS.API.CONSUMER.{verb}.{stream}.x"
        for verb in ("CREATE", "DELETE", "INFO", "MSG.NEXT", "DURABLE.CREATE")
        for stream in STREAMS
    }
    patterns |= {f"$JS.API.DIRECT.GET.{stream}" for stream in STREAMS}
    patterns |= {f"{ROOT}.run.acme.x", f"{ROOT}.control.acme.x", f"{ROOT}.event.acme.x.other", "other", "$SYS.REQ.x",
                 f"{ROOT}.dead.WORK.other.acme.x", "$JS.API.INFO", "$JS.ACK.WORK.other.1"}  # fmt: skip
    return sorted({each.replace("*", "x").replace(">", "x.y") for each in patterns})


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_publishes_where_it_must_and_nowhere_else(guarded, service):
    everything = universe()
    user = await guarded.nats("nats", service)
    allowed = await user.publishes(everything)
    expected = {s for s in everything if any(matches(p, s) for p in SERVICE_PERMISSIONS[service].publish)}
    assert allowed == expected
    assert len(everything) - len(allowed) > 60
    await user.client.close()


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_listens_where_it_must_and_nowhere_else(guarded, service):
    everything = sorted({each for p in SERVICE_PERMISSIONS.values() for each in p.subscribe})
    everything += [
        f"{ROOT}.>",
        ">",
        f"{ROOT}.run.>",
        f"{ROOT}.chunk.*.*",
        f"{ROOT}.event.>",
        f"{ROOT}.work.>",
        "$JS.>",
    ]
    everything += [f"_INBOX.{tenant_user('acme')}.>", "_INBOX.>", "_R_.>"]
    user = await guarded.nats("nats", service)
    allowed = await user.subscribes(everything)
    assert allowed == set(SERVICE_PERMISSIONS[service].subscribe)
    await user.client.close()


async def test_a_tenant_publishes_only_its_own_requests(guarded):
    user = await guarded.nats("clients", "acme")
    theirs = tenant_permissions("beta")
    everything = [*universe(), *concrete(theirs), *concrete(tenant_permissions("acme"))]
    allowed = await user.publishes(everything)
    assert allowed == {
        s for s in everything if any(matches(p, s) for p in tenant_permissions("acme").publish)
    }
    assert not any("beta" in each for each in allowed)
    await user.client.close()


def concrete(permissions: Permissions) -> list[str]:
    return [each.replace("*", "x").replace(">", "x.y") for each in permissions.publish]


async def test_a_tenant_listens_only_to_its_own_runs(guarded):
    user = await guarded.nats("clients", "acme")
    mine, theirs = tenant_permissions("acme").subscribe, tenant_permissions("beta").subscribe
    more = [f"{ROOT}.>", ">", f"{ROOT}.chunk.*.*", f"{ROOT}.event.>", "_INBOX.>", f"{ROOT}.event.*.run-1.>"]
    assert await user.subscribes([*mine, *theirs, *more]) == set(mine)
    await user.client.close()


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
    assert {subject for _, subject in acme.refused} == {subject.lower() for subject in requests}
    # Its own door with the other's run finds nothing.
    answer = await acme.client.request(
        subjects.api("orchestrator", "acme", "backlog"), orjson.dumps({"run": run}), timeout=5
    )
    assert orjson.loads(answer.data)["batches"] == []
    await acme.client.close()


async def test_an_answer_never_reaches_a_subject_of_another_tenant(system):
    """A tenant can not have services, nor the streams' acknowledgements, speak to somebody else."""
    operator = await system.nats("nats", "operator")
    acme = await system.nats("clients", "acme")
    heard: list[str] = []

    async def hear(message: Any) -> None:
        heard.append(message.subject)

    await operator.client.subscribe(f"{ROOT}.event.beta.>", cb=hear)
    await operator.client.flush()
    forged = subjects.event("beta", "victim", "run.finished")
    await acme.client.publish(subjects.api("memory", "acme", "threads"), b'{"resource": "r"}', reply=forged)
    await acme.client.publish(subjects.run("acme", "demo"), b"{}", reply=forged)
    await acme.client.flush()
    with contextlib.suppress(nats.errors.Error):  # services have answered what came before this
        await acme.client.request(subjects.api("memory", "acme", "threads"), b'{"resource": "r"}', timeout=5)
    await asyncio.sleep(0.2)  # for what must not come
    await operator.client.flush()
    assert heard == []
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
                        ("SCRIPT", "FLUSH"), ("MONITOR",), ("DEBUG", "SLEEP", "0"), ("CLIENT", "LIST")):  # fmt: skip
            with pytest.raises(NoPermissionError):
                await redis.execute_command(*command)


async def test_what_services_wrote_outlives_a_restart_of_redis(guarded):
    password = guarded.deployment.password("redis", "tools")
    redis: Any = Redis.from_url(guarded.redis_url, username="tools", password=password)
    async with redis, redis.pipeline(transaction=True) as pipe:
        await pipe.hset("procession:acme:run:kept", "f", "v").expire("procession:acme:run:kept", 60).execute()
    guarded.redis.kill()
    await guarded.redis.start()
    again: Any = Redis.from_url(guarded.redis_url, username="tools", password=password)
    async with again:
        assert await again.hget("procession:acme:run:kept", "f") == b"v"


async def test_redis_lets_nobody_in_without_a_password(guarded):
    async with Redis.from_url(guarded.redis_url) as redis:
        with pytest.raises(Exception, match="authenticated"):
            await redis.get("procession:acme:run:r")
