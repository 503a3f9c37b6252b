"""A message store in a real Redis, under a tenant that nobody else uses."""

import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from procession_services.memory.stores.redis import RedisMessageStore
from procession_services.runtime.embedded import Endpoints


class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@pytest_asyncio.fixture
async def redis(servers: Endpoints) -> AsyncIterator["Redis"]:
    async with Redis.from_url(servers.redis_url) as client:
        yield client


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(redis: "Redis", clock: Clock) -> RedisMessageStore:
    return RedisMessageStore(redis, now=clock)


@pytest.fixture
def tenant() -> str:
    return f"t-{secrets.token_hex(6)}"
