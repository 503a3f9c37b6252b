"""Redis answers, and takes no writes: it is full, or has become a replica. Runs wait for it as for one that is away."""

import asyncio
import logging

import pytest

from procession_services.runtime import redis_client
from procession_services.runtime.redis_client import connect
from tests.support.servers import own_servers
from tests.support.system import SERVICES, finished, running_system, text_of
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
