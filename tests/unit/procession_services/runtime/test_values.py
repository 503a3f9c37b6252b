"""The store that processors and tools share, on a real Redis."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from procession_services.runtime.embedded import Endpoints
from procession_services.runtime.redis_client import RedisClient, connect
from procession_services.runtime.values import RedisValues
from tests.support.late_redis import late_redis
from tests.support.waiting import until

pytestmark = pytest.mark.integration


@pytest_asyncio.fixture
async def redis(servers: Endpoints) -> AsyncIterator[RedisClient]:
    async with connect(servers.redis_url) as client:
        yield client


@pytest.fixture
def values(redis) -> RedisValues:
    return RedisValues(redis, f"t-{secrets.token_hex(6)}")


async def test_values_are_json(values):
    assert await values.get("k") is None
    assert await values.put("k", {"a": [1, None, "ü"]})
    assert await values.get("k") == {"a": [1, None, "ü"]}
    await values.delete("k")
    assert await values.get("k") is None


async def test_only_new_values(values):
    assert await values.put("k", 1, only_new=True)
    assert not await values.put("k", 2, only_new=True)
    assert await values.get("k") == 1


async def test_tenants_do_not_see_each_other(redis, values):
    await values.put("k", 1)
    await values.insert("s", "a")
    other = RedisValues(redis, f"u-{secrets.token_hex(6)}")
    assert (await other.get("k"), await other.members("s")) == (None, set())


async def test_a_number_keeps_the_end_of_its_life(redis, values):
    assert await values.add("n", 1.5, ttl=100) == 1.5
    before = await redis.pttl(values._prefix + "n")
    assert await values.add("n", 2, ttl=10_000) == 3.5
    assert 0 < await redis.pttl(values._prefix + "n") <= before


async def test_a_set_lives_on_with_every_member(redis, values):
    await values.insert("s", "a", ttl=10)
    await values.insert("s", "b", ttl=1000)
    await values.insert("s")
    assert await values.members("s") == {"a", "b"}
    assert await redis.pttl(values._prefix + "s") > 10_000


async def test_a_value_expires(redis, values):
    await values.put("k", 1, ttl=50)
    assert 0 < await redis.pttl(values._prefix + "k") <= 50_000


async def test_a_sum_that_redis_is_told_of_again_is_added_once(tmp_path):
    async with late_redis(tmp_path) as redis:
        values = RedisValues(redis.client, "t")
        assert await values.add("n", 1) == 1
        with redis.frozen():
            added = asyncio.create_task(values.add("n", 2))
            await asyncio.sleep(0)
            await redis.given_up()
        assert await added == 3
        assert await values.get("n") == 3


async def test_a_set_gets_its_members_when_a_server_that_is_full_has_room_again(redis, values):
    await redis.config_set("maxmemory", 1)
    try:
        inserting = asyncio.create_task(values.insert("set", "a", "b"))
        await until(lambda: redis._refused)
    finally:
        await redis.config_set("maxmemory", 0)
    await inserting
    assert await values.members("set") == {"a", "b"}
