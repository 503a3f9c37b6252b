"""`procession check --deploy` against real servers: silence where all is well, everything at once where it is not."""

import asyncio
import importlib
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import nats
import pytest
import pytest_asyncio
import yaml
from redis.asyncio import Redis

from procession_services.bus import connection
from procession_services.cli import main
from procession_services.demo_model import serve
from procession_services.deploy.check import _MEND_USERS, check_deployment
from procession_services.deploy.permissions import SERVICE_PERMISSIONS, tenant_user
from procession_services.processor_host.service import hosted
from procession_services.runtime.settings import Settings
from procession_services.supervisor import SERVICES
from tests.support.guarded import guarded_servers
from tests.support.servers import own_servers
from tests.support.system import all_but, running_system
from tests.support.waiting import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]


class Deployed:
    """Servers with the users of `procession init`, and a service under each of them."""

    def __init__(self, guarded, agents, stacks):
        self.guarded, self.agents, self._stacks = guarded, agents, stacks
        self.secrets = guarded.deployment.directory

    def settings(self, **more):
        return Settings(nats_url=self.guarded.nats_url, **more)

    async def check(self, *, secrets=True, redis=True, **more):
        """What is wrong, warnings left out, and what is fine."""
        url = {"redis_url": self.guarded.redis_url} if redis else {}
        found = await check_deployment(
            self.settings(**url), secrets=self.secrets if secrets else None, **more
        )
        return [str(problem) for problem in found.problems if not problem.warning], found.fine

    async def stop(self, service):
        await self._stacks[service].aclose()

    @asynccontextmanager
    async def nats(self):
        password = self.guarded.deployment.password("nats", "operator")
        client = await nats.connect(
            self.guarded.nats_url, user="operator", password=password, inbox_prefix="_INBOX.operator"
        )
        yield client.jetstream()
        await client.close()


@asynccontextmanager
async def deployment(directory):
    agents = directory / "agents.yaml"
    async with AsyncExitStack() as stack:
        guarded = await stack.enter_async_context(guarded_servers(directory))
        models = await stack.enter_async_context(await serve())
        base = f"http://127.0.0.1:{models.port}/v1"
        agents.write_text(yaml.safe_dump({"agents": {"demo": {"model": "openai/demo", "apiBase": base}}}))
        stacks = {}
        for service in SERVICES:
            stacks[service] = await stack.enter_async_context(AsyncExitStack())
            own = guarded.settings(
                service, agents=agents, secrets_dir=guarded.deployment.directory / "processors",
                chroma_path=directory / "chroma",
            )  # fmt: skip
            start = importlib.import_module(f"procession_services.{service}.app").start
            await stacks[service].enter_async_context(hosted(service, own, start))
        yield Deployed(guarded, agents, stacks)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def deployed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "unused")
        async with deployment(tmp_path_factory.mktemp("deployed")) as deployed:
            yield deployed


async def test_a_deployment_that_is_well_has_nothing_wrong(deployed):
    wrong, fine = await deployed.check(call_models=True)
    assert wrong == []
    assert [line.split()[0] for line in fine] == ["secrets", "NATS", "users", "7", "1", "Redis"]
    assert "1 model, called" in fine


async def test_where_redis_cannot_be_reached_the_services_speak_for_it(deployed):
    """As from the host of containers: Redis is on a network of the services alone."""
    wrong, fine = await deployed.check(redis=False)
    assert wrong == []
    assert not any(line.startswith("Redis") for line in fine)
    async with redis_of(deployed) as redis:
        await redis.config_set("appendonly", "no")
        try:
            wrong, _ = await deployed.check(redis=False)
        finally:
            await redis.config_set("appendonly", "yes")
    told = "Redis: appendonly: off: a restart loses runs and memory; set `appendonly yes` (reported by every service)"
    assert wrong == [told]


@asynccontextmanager
async def redis_of(deployed):
    password = deployed.guarded.deployment.password("redis", "operator")
    async with Redis.from_url(deployed.guarded.redis_url, username="operator", password=password) as redis:
        yield redis


async def test_a_server_that_does_not_fit_the_settings_is_told(deployed):
    settings = deployed.settings(max_request_bytes=9_000_000, stream_replicas=3)
    found = await check_deployment(settings, secrets=deployed.secrets)
    wrong = [str(each) for each in found.problems if not each.warning]
    assert wrong[0].startswith("NATS: max_payload: 8,388,608 bytes are too few for the longest request")
    assert len(wrong) == 7
    assert all("the number of copies is 1, not 3: restart the orchestrator" in each for each in wrong[1:])


async def test_permissions_of_another_version_are_told(deployed, monkeypatch):
    """As after an upgrade without `procession init`: the server has other ones than this version needs."""
    mine = SERVICE_PERMISSIONS["tools"]
    more = replace(mine, publish=(*mine.publish, "procession.v2.>"))
    monkeypatch.setitem(SERVICE_PERMISSIONS, "tools", more)
    wrong, _ = await deployed.check(redis=False)
    accounts = deployed.secrets / "nats" / "accounts.conf"
    assert wrong == [
        f"{accounts}: does not match these passwords and this version: `procession init` rewrites it",
        f"NATS: the permissions of tools do not match this version: {_MEND_USERS}",
    ]


async def test_a_client_of_a_tenant_is_told_to_be_the_operator(deployed):
    user = tenant_user("acme")
    settings = deployed.settings(nats_user=user, nats_password_file=deployed.secrets / "clients" / "acme")
    [problem, *_] = (await check_deployment(settings)).problems
    assert str(problem).startswith(f"PROCESSION_NATS_USER: {user} may not run these checks")


async def test_a_model_that_cannot_be_called_is_told(deployed, monkeypatch):
    good = deployed.agents.read_text()
    agents = {
        "demo": yaml.safe_load(good)["agents"]["demo"],
        "away": {"model": "openai/demo", "apiBase": "http://127.0.0.1:9/v1"},
        "keyless": {"model": "anthropic/claude-sonnet-4-5"},
        "unknown": {"model": "nobody/nothing"},
    }
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    deployed.agents.write_text(yaml.safe_dump({"agents": agents}))
    await reloaded(deployed, monkeypatch)
    wrong, _ = await deployed.check(redis=False)
    who = "(reported by llm_gateway)"
    key = "needs ANTHROPIC_API_KEY in the environment of the gateway (in compose: secrets/providers.env)"
    nobody = "unknown: write provider/name, with a provider that LiteLLM knows"
    told = [f"models: anthropic/claude-sonnet-4-5: {key} {who}", f"models: nobody/nothing: {nobody} {who}"]
    assert wrong == told
    wrong, _ = await deployed.check(redis=False, call_models=True)
    [called] = [line for line in wrong if line not in told]
    assert called.startswith("models: openai/demo: cannot be called: ")
    deployed.agents.write_text(good)
    await reloaded(deployed, monkeypatch)


async def reloaded(deployed, monkeypatch):
    monkeypatch.setenv("PROCESSION_NATS_URL", deployed.guarded.nats_url)
    assert await asyncio.to_thread(main, ["reload", "--secrets", str(deployed.secrets)]) == 0


async def test_everything_that_is_wrong_is_told_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(connection, "_LOOK_SECONDS", 3600)  # else the orchestrator mends the streams
    async with deployment(tmp_path) as deployed:
        secrets = deployed.secrets
        async with redis_of(deployed) as redis:
            await redis.config_set("appendonly", "no")
            await redis.config_set("maxmemory-policy", "allkeys-lru")
        async with deployed.nats() as streams:
            await streams.delete_stream("VIOLATIONS")
            await streams.update_stream(name="CHUNKS", subjects=["procession.v1.chunk.>"], max_age=60)
        await deployed.stop("error_recovery")
        deployed.agents.write_text("agents: {demo: {modl: x}}")
        (secrets / "processors" / "masking-key").unlink()
        (secrets / "nats" / "tools").write_text("a-password-that-the-server-has-not")
        (secrets / "redis" / "memory").write_text("a-password-that-the-server-has-not")
        secrets.chmod(0o755)
        monkeypatch.setenv("PROCESSION_NATS_URL", deployed.guarded.nats_url)
        monkeypatch.setenv("PROCESSION_REDIS_URL", deployed.guarded.redis_url)
        await asyncio.to_thread(main, ["reload", "--secrets", str(secrets)])
        capsys.readouterr()
        assert await asyncio.to_thread(main, ["check", "--deploy", "--secrets", str(secrets)]) == 1
    told = capsys.readouterr()
    for wanted in (
        f"{secrets}: is accessible to others: run `chmod 700` on it",
        f"{secrets}/processors/masking-key: is missing: `procession init` writes it",
        "NATS: stream VIOLATIONS: is missing: a running orchestrator creates it within seconds",
        "NATS: stream CHUNKS: max_age is 60",
        "nats/tools: NATS rejects this password for tools",
        "services: error_recovery: no replica answers: start the service, or see its log",
        f"{deployed.agents}:1: agents.demo.modl: unknown key; did you mean 'model'? (reported by orchestrator)",
        "models: openai/demo: needs OPENAI_API_KEY in the environment of the gateway",
        "Redis: appendonly: off: a restart loses runs and memory; set `appendonly yes`",
        "Redis: maxmemory-policy: allkeys-lru evicts keys when memory is short",
        "redis/memory: Redis rejects this password for memory",
    ):
        assert wanted in told.out
    assert told.err.strip().splitlines()[-1].startswith("problems: ")


async def test_servers_that_are_away_are_both_told_without_their_passwords(monkeypatch, capsys):
    monkeypatch.setenv("PROCESSION_NATS_URL", "nats://me:hidden@127.0.0.1:9")
    monkeypatch.setenv("PROCESSION_REDIS_URL", "redis://me:hidden@127.0.0.1:9/0")
    assert await asyncio.to_thread(main, ["check", "--deploy"]) == 1
    told = capsys.readouterr().out
    assert "PROCESSION_NATS_URL: cannot reach NATS at nats://127.0.0.1:9" in told
    assert "Redis: does not answer" in told
    assert "hidden" not in told


async def test_servers_for_everybody_are_told_where_users_are_configured(servers, tmp_path):
    (tmp_path / "password").write_text("")
    settings = Settings(
        nats_url=servers.nats_url, nats_user="operator", nats_password_file=tmp_path / "password",
        redis_url=servers.redis_url, redis_user="default", redis_password_file=tmp_path / "password",
    )  # fmt: skip
    problems = [str(each) for each in (await check_deployment(settings)).problems]
    assert "NATS: accepts connections without a password: include accounts.conf in nats.conf" in problems
    assert "Redis: accepts connections without a password: set `aclfile` in redis.conf" in problems


async def test_what_procession_up_runs_has_nothing_wrong(servers, tmp_path, monkeypatch):
    """Open servers of one machine, and no secrets."""
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with running_system(servers, tmp_path) as system, system.inside(*SERVICES):
        found = await check_deployment(Settings(nats_url=servers.nats_url))
    assert [str(each) for each in found.problems if not each.warning] == []
    assert len(found.fine) == 2


async def test_a_service_with_another_redis_is_told_and_says_what_it_drops(
    servers, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with (
        own_servers(tmp_path, nats=False) as other,
        running_system(servers, tmp_path) as system,
        system.inside(*all_but("llm_gateway")),
        system.inside("llm_gateway", redis_url=other.endpoints.redis_url),
    ):
        found = await check_deployment(Settings(nats_url=servers.nats_url))
        handle = await system.start({"chunks": ["unheard"]}, agent={"timeout": 0.5})
        await until(lambda: "Redis does not know its run" in caplog.text)
        assert (await handle.result(timeout=20)).status == "failed"
    [told] = [str(each) for each in found.problems if not each.warning]
    assert told.startswith("PROCESSION_REDIS_URL: differs between replicas")
    assert ": llm_gateway " in told
