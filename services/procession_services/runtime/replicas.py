"""Which replicas a service has: each says again and again in Redis that it lives."""

from functools import partial
from typing import Any

from procession_services.runtime import scripts
from procession_services.runtime.redis_client import RedisClient, Script

__all__ = ["Replicas"]


class Replicas:
    """The replicas of one service, by the clock of Redis."""

    def __init__(self, redis: RedisClient, service: str) -> None:
        self._redis: Any = redis  # redis-py's annotations cover every protocol and decoding at once
        self._key = f"procession:admission:replicas:{service}"
        self._alive = partial(redis.run, Script(scripts.ALIVE))

    async def lives(self, replica: str, *, silent_ms: int) -> list[str]:
        """Says that a replica lives; gives those that have not said so for that long."""
        silent = await self._alive(keys=[self._key], args=[replica, silent_ms])
        return [each.decode() for each in silent]

    async def remove(self, replica: str) -> bool:
        """Takes a replica off the list; False where somebody else has."""
        return bool(await self._redis.zrem(self._key, replica))
