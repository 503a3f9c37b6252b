"""Redis answers, and refuses: it takes no writes, since it is full, or a replica; or our user may not do it."""

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from procession.client import RequestRejectedError
from procession_services.processor_host.service import NotReachableError
from procession_services.runtime import redis_client
from procession_services.runtime.redis_client import connect
from tests.support.servers import own_servers
from tests.support.system import SERVICES, all_but, finished, running_system, text_of
from tests.support.waiting import until

pytestmark = [pytest.mark.integration]
FULL = ("CONFIG SET", "maxmemory", "1"), ("CONFIG SET", "maxmemory", "0")
A_REPLICA = ("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize("refusal", [FULL, A_REPLICA], ids=["full", "replica"])
@pytest.mark.parametrize("processors", [[], ["upper"]], ids=["plain", "processed"])
async def test_a_run_whose_answer_redis_refuses_ends_when_redis_takes_it_and_asks_no_model_again(
    tmp_path, monkeypatch, caplog, refusal, processors
):
    monkeypatch.setattr(redis_client, "_RETRIES", 2)
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    refuse, accept = refusal
    async with (
        own_servers(tmp_path) as servers,
        running_system(servers.endpoints, tmp_path) as system,
        system.inside(*SERVICES, max_deliver=2),
        connect(servers.endpoints.redis_url) as redis,
    ):
        model = system.script({"chunks": ["all ", *["well "] * 40], "chunk_delay_ms": 20})
        handle = await system.start(agent={"model": model, "outputProcessors": processors})
        reading = asyncio.create_task(finished(handle))
        await until(lambda: system.requests(model))
        await redis.execute_command(*refuse)
        with caplog.at_level(logging.WARNING):
            await until(lambda: caplog.text.count("waits for Redis") >= 3)
        await redis.execute_command(*accept)
        result, chunks = await reading
        expected = "all " + "well " * 40
        assert ("command not allowed" if refusal is FULL else "read only replica") in caplog.text
        assert (result.status, result.error) == ("finished", None)
        assert text_of(chunks) == (expected.upper() if processors else expected)
        assert len(system.requests(model)) == 1


@pytest.mark.parametrize("refusal", [FULL, A_REPLICA], ids=["full", "replica"])
async def test_a_cancel_that_redis_refuses_counts_when_redis_takes_it(tmp_path, monkeypatch, caplog, refusal):
    monkeypatch.setattr(redis_client, "_RETRIES", 2)
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    refuse, accept = refusal
    call = {"tool_calls": [{"id": "c1", "name": "send-mail", "arguments": {"to": "ann"}}]}
    async with (
        own_servers(tmp_path) as servers,
        running_system(servers.endpoints, tmp_path) as system,
        system.inside(*SERVICES, max_deliver=2),
        connect(servers.endpoints.redis_url) as redis,
    ):
        handle = await system.start(call, agent={"tools": ["send-mail"]})
        async with asyncio.timeout(20):
            async for chunk in handle:
                if chunk["type"] == "tool-call-approval":
                    break
            assert (await handle.result()).status == "suspended"
        await redis.execute_command(*refuse)
        await handle.cancel()
        with caplog.at_level(logging.WARNING):
            await until(lambda: caplog.text.count("waits for Redis") >= 3)
        await redis.execute_command(*accept)
        async with asyncio.timeout(20):
            while (result := await handle.result()).status == "suspended":
                handle = await system.client.attach(handle.run_id)
        assert result.status == "cancelled"


@pytest.fixture
async def running(tmp_path, monkeypatch):
    """All services with servers of their own, and a connection to their Redis."""
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with (
        own_servers(tmp_path) as servers,
        running_system(servers.endpoints, tmp_path) as system,
        system.inside(*SERVICES),
        Redis.from_url(servers.endpoints.redis_url, single_connection_client=True) as redis,
    ):
        yield system, redis


@asynccontextmanager
async def forbidden(redis, *rules, user="default"):
    """Takes rights from a user; gives them back."""
    await redis.execute_command("ACL", "SETUSER", "keeper", "on", ">x", "~*", "+@all")
    await redis.execute_command("AUTH", "keeper", "x")
    await redis.execute_command("ACL", "SETUSER", user, *rules)
    try:
        yield
    finally:
        await redis.execute_command("ACL", "SETUSER", user, "~*", "+@all")


async def test_a_request_that_redis_does_not_allow_is_told_so_at_once(running, caplog):
    system, redis = running
    async with forbidden(redis, "-hset"):
        with pytest.raises(RequestRejectedError, match="the orchestrator's Redis user lacks a permission"):
            await system.run({"chunks": ["x"]})
    assert "Redis denies permission" in caplog.text
    assert "delivery 2" not in caplog.text
    result, _ = await system.run({"chunks": ["x"]})
    assert result.text == "x"


@pytest.mark.parametrize("processors", [[], ["upper"]], ids=["plain", "processed"])
async def test_a_run_in_flight_that_redis_does_not_allow_ends_when_the_users_are_mended(
    running, caplog, processors
):
    system, redis = running
    model = system.script({"chunks": ["well "] * 40, "chunk_delay_ms": 20})
    handle = await system.start(agent={"model": model, "outputProcessors": processors})
    reading = asyncio.create_task(finished(handle))
    await until(lambda: system.requests(model))
    async with forbidden(redis, "-hset"):
        await until(lambda: "waits for Redis" in caplog.text)
    result, _ = await reading
    assert (result.status, result.error.code) == ("failed", "WORK_FAILED")
    assert "Redis denies permission" in result.error.message
    assert len(system.requests(model)) == 1


async def test_a_service_whose_user_may_too_little_says_so_when_it_starts_and_fails_its_runs(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with (
        own_servers(tmp_path) as servers,
        running_system(servers.endpoints, tmp_path) as system,
        Redis.from_url(servers.endpoints.redis_url) as redis,
    ):
        await redis.execute_command("ACL", "SETUSER", "gateway", "on", "nopass", "~*", "+@all", "-hset")
        async with (
            system.inside(*all_but("llm_gateway")),
            system.inside("llm_gateway", redis_user="gateway"),
        ):
            assert "the user lacks permissions that services need (HSET): rewrite the users" in caplog.text
            result, _ = await system.run({"chunks": ["x"]})
    assert (result.status, result.error.code) == ("failed", "WORK_FAILED")
    assert "Redis denies permission" in result.error.message


async def test_an_orchestrator_whose_user_may_too_little_to_start_says_why(tmp_path):
    async with (
        own_servers(tmp_path) as servers,
        running_system(servers.endpoints, tmp_path) as system,
        Redis.from_url(servers.endpoints.redis_url) as redis,
    ):
        await redis.execute_command("ACL", "SETUSER", "narrow", "on", "nopass", "~*", "+@all", "-mget")
        with pytest.raises(NotReachableError, match="orchestrator cannot start: Redis denies permission"):
            async with system.inside("orchestrator", redis_user="narrow"):
                pass
