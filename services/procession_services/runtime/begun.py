"""How often messages were begun that were delivered again, for those of which NATS knows deliveries only."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Final

from procession_services.runtime import scripts
from procession_services.runtime.redis_client import RedisClient, Script

__all__ = ["Begun"]

_SECONDS: Final = 3_600
"""How long that is known; a message is delivered again long before."""


class Begun:
    """Counts in Redis, by a message's name."""

    def __init__(self, redis: RedisClient) -> None:
        self._redis: Any = redis  # redis-py's annotations cover every protocol and decoding at once
        self._begin = partial(redis.run, Script(scripts.BEGIN))
        self._part = partial(redis.run, Script(scripts.PART))

    async def times(self, message: str) -> int:
        """How often it was begun after its first delivery, and not done."""
        return int(await self._redis.get(_key(message)) or 0)

    def counted(self, message: str, attempt: int) -> AbstractAsyncContextManager[None]:
        """Notes that a message is begun, where that is not its first delivery, until the block has ended well.

        Somebody may have it in hand after that, but it ends no process any more.
        """
        return nullcontext() if attempt == 1 else self._counted(message)

    @asynccontextmanager
    async def _counted(self, message: str) -> AsyncIterator[None]:
        await self._begin(keys=[_key(message)], args=[_SECONDS])
        yield
        await self._redis.delete(_key(message))

    async def parted(self, message: str, begun: int, pause: float) -> float:
        """Seconds that it has to wait for a moment of its own, since it was begun so often: at first `pause`."""
        key = f"procession:admission:parted:{message}"
        return int(await self._part(keys=[key], args=[begun, round(pause * 1000), _SECONDS])) / 1000


def _key(message: str) -> str:
    return f"procession:admission:begun:{message}"
