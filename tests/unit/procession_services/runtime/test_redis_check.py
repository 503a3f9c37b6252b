"""What a Redis must be."""

import pytest
from redis.asyncio import Redis

from procession_services.runtime.access import Access
from procession_services.runtime.redis_check import _wrong, knows, redis_problems_at

GOOD = {"redis_version": "7.2.4", "aof_enabled": 1, "maxmemory_policy": "noeviction", "role": "master"}


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({}, None),
        ({"redis_version": "6.0.1"}, "redis_version"),
        ({"aof_enabled": 0}, "appendonly"),
        ({"aof_last_write_status": "err"}, "aof_last_write_status"),
        ({"maxmemory_policy": "allkeys-lru"}, "maxmemory-policy"),
        ({"role": "slave"}, "role"),
        ({"maxmemory": 100, "used_memory": 95}, "used_memory"),
        ({"maxmemory": 100, "used_memory": 50}, None),
    ],
)
def test_what_could_lose_runs_is_told(facts, name):
    assert [found for found, _ in _wrong(GOOD | facts)] == ([name] if name else [])


async def test_the_embedded_server_is_as_it_must_be(servers):
    assert await redis_problems_at(servers.redis_url, Access()) == []


async def test_a_server_that_is_away_and_one_that_does_not_know_us_are_told_apart(servers):
    [away] = await redis_problems_at("redis://127.0.0.1:9/0", Access())
    assert "is it running?" in away.message
    assert await knows("redis://127.0.0.1:9/0", Access()) is None
    stranger = Access(redis_user="nobody", redis_password="x")
    [refused] = await redis_problems_at(servers.redis_url, stranger)
    assert "rejects the login" in refused.message
    assert await knows(servers.redis_url, stranger) is False


async def test_a_user_without_info_is_a_warning(servers):
    async with Redis.from_url(servers.redis_url) as redis:
        await redis.execute_command("ACL", "SETUSER", "shy", "on", ">x", "~*", "+@all", "-info")
        try:
            access = Access(redis_user="shy", redis_password="x")
            [problem] = await redis_problems_at(servers.redis_url, access)
        finally:
            await redis.execute_command("ACL", "DELUSER", "shy")
    assert problem.warning
    assert "INFO" in problem.message
