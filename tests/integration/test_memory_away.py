"""Redis is away just when memory reads or saves: that is no failure of a processor."""

import asyncio

import pytest

from procession_services.memory.stores.redis import RedisMessageStore
from procession_services.runtime import redis_client
from procession_services.runtime.embedded import EmbeddedServers
from procession_services.runtime.redis_client import UNANSWERED
from tests.support.system import SERVICES, finished, running_system

pytestmark = [pytest.mark.integration]


@pytest.mark.parametrize("operation", ["recent", "save"])
async def test_memory_that_redis_could_not_answer_is_asked_again(tmp_path, monkeypatch, operation):
    monkeypatch.setattr(redis_client, "_RETRIES", 1)
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    back: list[asyncio.Task[None]] = []
    is_told = asyncio.Event()
    ask = getattr(RedisMessageStore, operation)

    async def asked(store, *args, **options):
        if not back:
            servers.kill_redis()
            back.append(asyncio.create_task(restarted()))
        try:
            return await ask(store, *args, **options)
        except UNANSWERED:
            is_told.set()
            raise

    async def restarted():
        await is_told.wait()
        await servers.restart_redis()

    async with (
        EmbeddedServers(tmp_path) as servers,
        running_system(servers.endpoints, tmp_path) as system,
        system.inside(*SERVICES),
    ):
        monkeypatch.setattr(RedisMessageStore, operation, asked)
        memory = {"thread": "t", "resource": "ann"}
        handle = await system.start({"chunks": ["noted"]}, agent={"memory": {}}, memory=memory, text="one")
        result, _ = await finished(handle)
        assert (result.status, result.error) == ("finished", None)
        stored = (await system.client.memory.messages("t", "ann"))["messages"]
        assert [message["content"]["parts"][0]["text"] for message in stored] == ["one", "noted"]
