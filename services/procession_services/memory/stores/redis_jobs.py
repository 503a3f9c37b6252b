"""The queue of the index in Redis: one stream for all tenants, one consumer group for all replicas."""

from collections.abc import AsyncIterator
from typing import Any, Final

import orjson
from redis.asyncio import Redis
from redis.exceptions import ResponseError

__all__ = ["RedisJobs"]

_STREAM: Final = "procession:memory:index"
_GROUP: Final = "memory"
# KEYS: stream, jobs that wait by tenant. ARGV: tenant, job.
_PUT: Final = """
redis.call('XADD', KEYS[1], '*', 'tenant', ARGV[1], 'job', ARGV[2])
redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
"""
# KEYS: the same. ARGV: group, number.
_DONE: Final = """
local entry = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])[1]
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if redis.call('XDEL', KEYS[1], ARGV[2]) == 0 then return end
local tenant = entry[2][2]
if redis.call('HINCRBY', KEYS[2], tenant, -1) <= 0 then redis.call('HDEL', KEYS[2], tenant) end
"""
_INDEXES: Final = "procession:memory:indexes"
_BLOCK_MS: Final = 1000
_LOST_MS: Final = 60_000
"""After this a job that a replica has taken counts as lost, and another one takes it; doing it twice is harmless."""


class RedisJobs:
    """Jobs that outlive a crash; `replica` names who takes them."""

    def __init__(
        self, redis: "Redis", replica: str, *, stream: str = _STREAM, lost_ms: int = _LOST_MS
    ) -> None:
        self._redis: Any = redis
        self._replica, self._stream, self._lost_ms = replica, stream, lost_ms
        self._keys = [stream, f"{stream}:waiting"]
        self._put, self._done = redis.register_script(_PUT), redis.register_script(_DONE)

    async def put(self, job: dict[str, Any]) -> None:
        """Stores a job of `job["tenant"]`."""
        await self._put(keys=self._keys, args=[job["tenant"], orjson.dumps(job)])

    async def waiting(self, tenant: str) -> int:
        """How many jobs of a tenant are not done."""
        return int(await self._redis.hget(self._keys[1], tenant) or 0)

    async def remember(self, tenant: str, name: str, ref: dict[str, Any]) -> None:
        """Keeps which index an agent of the tenant uses."""
        await self._redis.hset(f"{_INDEXES}:{tenant}", name, orjson.dumps(ref))

    async def remembered(self, tenant: str) -> list[dict[str, Any]]:
        """The indexes that agents of the tenant use."""
        return [orjson.loads(ref) for ref in await self._redis.hvals(f"{_INDEXES}:{tenant}")]

    async def take(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Jobs with their numbers, those first that a lost replica has left; never ends."""
        await self._make_group()
        while True:
            _, left, *_ = await self._redis.xautoclaim(
                self._stream, _GROUP, self._replica, min_idle_time=self._lost_ms, count=16
            )
            for number, fields in left:
                if fields:
                    yield number.decode(), orjson.loads(fields[b"job"])
            found = await self._redis.xreadgroup(
                _GROUP, self._replica, {self._stream: ">"}, count=1, block=_BLOCK_MS
            )
            for _, entries in found or ():
                for number, fields in entries:
                    yield number.decode(), orjson.loads(fields[b"job"])

    async def done(self, number: str) -> None:
        """Removes a job."""
        await self._done(keys=self._keys, args=[_GROUP, number])

    async def _make_group(self) -> None:
        try:
            await self._redis.xgroup_create(self._stream, _GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):  # another replica was first
                raise
