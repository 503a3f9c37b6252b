"""Which replicas a service has: each says again and again in Redis that it lives."""

from functools import partial
from typing import Any

from procession_services.runtime import scripts
from procession_services.runtime.redis_client import RedisClient, Script

__all__ = ["Living", "Replicas", "is_listed"]


class Replicas:
    """The replicas of a service, by the clock of Redis.

    Args:
        replica: This one.
        silence: Seconds after which another one is silent.
    """

    def __init__(self, redis: RedisClient, service: str, replica: str, silence: float) -> None:
        self._redis: Any = redis  # redis-py's annotations cover every protocol and decoding at once
        self.service, self._replica = service, replica
        self._silent_ms = round(silence * 1000)
        self._key = _key(service)
        self._alive = partial(redis.run, Script(scripts.ALIVE))

    async def silent(self) -> list[str]:
        """Those that have not said for long that they live; says that this one does."""
        silent = await self._alive(keys=[self._key], args=[self._replica, self._silent_ms])
        return [each.decode() for each in silent]

    async def listed(self) -> set[str]:
        """All of them."""
        return {each.decode() for each in await self._redis.zrange(self._key, 0, -1)}

    async def remove(self, replica: str) -> bool:
        """Takes a replica off the list; False where somebody else has."""
        return bool(await self._redis.zrem(self._key, replica))

    async def leave(self) -> None:
        """Takes this one off the list."""
        await self.remove(self._replica)


class Living:
    """Which replicas the services have that said of late, within `silence` seconds, that they live."""

    def __init__(self, redis: RedisClient, silence: float) -> None:
        self._silent_ms = round(silence * 1000)
        self._living = partial(redis.run, Script(scripts.LIVING))

    async def of(self, service: str) -> list[str]:
        """Those of a service, by the clock of Redis."""
        return [each.decode() for each in await self._living(keys=[_key(service)], args=[self._silent_ms])]


async def is_listed(redis: RedisClient, service: str, replica: str) -> bool:
    """Whether a replica of any service is on the list: it has begun to say that it lives, and nobody found it gone."""
    return await redis.zscore(_key(service), replica) is not None


def _key(service: str) -> str:
    return f"procession:admission:replicas:{service}"
