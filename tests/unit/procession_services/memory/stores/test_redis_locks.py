"""Locks in a real Redis."""

import secrets
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from procession_services.memory.stores.redis_locks import RedisLocks
from procession_services.runtime.embedded import Endpoints
from tests.chaos.proxy import Proxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

SECONDS = 3


async def test_one_has_it_at_a_time(redis: "Redis"):
    place = secrets.token_hex(6)
    locks = RedisLocks(redis, seconds=SECONDS)
    async with (
        locks.hold("t", place) as first,
        locks.hold("t", place) as second,
        locks.hold("u", place) as other,
    ):
        assert (first, second, other) == (True, False, True)
    async with locks.hold("t", place) as held:
        assert held


async def test_who_could_not_renew_once_still_has_it(redis: "Redis", servers: Endpoints):
    place = secrets.token_hex(6)
    key = f"procession:memory:lock:1:{place}"
    port = urlsplit(servers.redis_url).port
    assert port is not None
    async with (
        Proxy(port) as proxy,
        Redis(port=proxy.port, socket_timeout=0.2, retry=Retry(NoBackoff(), 0)) as away,
        RedisLocks(away, seconds=SECONDS).hold(place) as held,
    ):
        assert held
        holder = await redis.get(key)

        async def missed() -> bool:
            return bool(await redis.pttl(key) < SECONDS * 500)

        async def renewed() -> bool:
            return bool(await redis.pttl(key) > SECONDS * 700)

        proxy.freeze()
        await eventually(missed)
        proxy.thaw()
        await eventually(renewed)
        assert await redis.get(key) == holder
    assert not await redis.exists(key)
