"""Locks in Redis: one replica at a time, and none for long when it dies."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

from redis.asyncio import Redis
from redis.asyncio.lock import Lock
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError
from redis.exceptions import TimeoutError as RedisTimeoutError

__all__ = ["RedisLocks"]

_LOOK_SECONDS: Final = 0.1


class RedisLocks:
    """Locks that last `seconds` and are renewed while their holder lives."""

    def __init__(self, redis: "Redis", *, seconds: float) -> None:
        self._redis: Any = redis
        self._seconds = seconds

    @asynccontextmanager
    async def hold(self, *place: str | None, wait: float = 0) -> AsyncIterator[bool]:
        """Holds the lock of a place within the block; False where another one has it after `wait` seconds."""
        name = ":".join(quote(each, safe="") for each in place if each is not None)
        key = f"procession:memory:lock:{len(place) - place.count(None)}:{name}"
        lock = Lock(self._redis, key, timeout=self._seconds, sleep=_LOOK_SECONDS, thread_local=False)
        if not await lock.acquire(blocking=wait > 0, blocking_timeout=wait):
            yield False
            return
        renewing = asyncio.create_task(self._renew(lock))
        try:
            yield True
        finally:
            renewing.cancel()
            with contextlib.suppress(LockError):  # it ran out; whoever has it now keeps it
                await lock.release()

    async def _renew(self, lock: Lock) -> None:
        with contextlib.suppress(LockError):
            while True:
                await asyncio.sleep(self._seconds / 3)
                # The next time may be early enough.
                with contextlib.suppress(RedisConnectionError, RedisTimeoutError):
                    await lock.reacquire()
