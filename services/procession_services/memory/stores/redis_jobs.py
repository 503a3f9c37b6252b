"""A queue in Redis: a stream of jobs for each tenant, one consumer group for all replicas."""

from collections.abc import AsyncIterator
from typing import Any, Final

import orjson
from redis.asyncio import Redis

__all__ = ["RedisJobs"]

_INDEX: Final = "procession:memory:index"
_GROUP: Final = "memory"
# KEYS: jobs of the tenant, number of jobs by tenant, the bell. ARGV: tenant, job.
_PUT: Final = """
redis.call('XADD', KEYS[1], '*', 'job', ARGV[2])
redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
redis.call('XADD', KEYS[3], 'MAXLEN', 1, '*', 'tenant', ARGV[1])
"""
# KEYS: jobs of the tenant. ARGV: group, replica, milliseconds after which what a replica has taken counts as lost.
_TAKE: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then return end
redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0')
local lost = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', ARGV[3], '-', '+', 1)[1]
if lost then return redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], lost[1])[1] end
local found = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', 1, 'STREAMS', KEYS[1], '>')
return found and found[1][2][1]
"""
# KEYS: jobs of the tenant, number of jobs by tenant. ARGV: group, tenant, number.
_DONE: Final = """
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
if redis.call('XDEL', KEYS[1], ARGV[3]) == 0 then return end
if redis.call('HINCRBY', KEYS[2], ARGV[2], -1) > 0 then return end
redis.call('HDEL', KEYS[2], ARGV[2])
redis.call('DEL', KEYS[1])
"""
_INDEXES: Final = "procession:memory:indexes"
_BLOCK_MS: Final = 1000


class RedisJobs:
    """Jobs that outlive a crash.

    Args:
        redis: Where they are.
        replica: Who takes them.
        name: The queue.
        lost_ms: When a job that a replica has taken counts as lost, so that another one takes it; doing it twice is
            harmless. 0: at once, for a queue on which only one replica works at a time.
    """

    def __init__(self, redis: "Redis", replica: str, *, name: str = _INDEX, lost_ms: int) -> None:
        self._redis: Any = redis
        self._replica, self._name, self._lost_ms = replica, name, lost_ms
        self._waiting, self._bell = f"{name}:waiting", f"{name}:bell"
        self._put, self._take, self._done = map(redis.register_script, (_PUT, _TAKE, _DONE))

    def _of(self, tenant: str) -> str:
        return f"{self._name}:of:{tenant}"

    async def put(self, job: dict[str, Any]) -> None:
        """Stores a job of `job["tenant"]`."""
        tenant = job["tenant"]
        keys = [self._of(tenant), self._waiting, self._bell]
        await self._put(keys=keys, args=[tenant, orjson.dumps(job)])

    async def waiting(self, tenant: str) -> int:
        """How many jobs of a tenant are not done."""
        return int(await self._redis.hget(self._waiting, tenant) or 0)

    async def remember(self, tenant: str, name: str, ref: dict[str, Any]) -> None:
        """Keeps which index an agent of the tenant uses."""
        await self._redis.hset(f"{_INDEXES}:{tenant}", name, orjson.dumps(ref))

    async def remembered(self, tenant: str) -> list[dict[str, Any]]:
        """The indexes that agents of the tenant use."""
        return [orjson.loads(ref) for ref in await self._redis.hvals(f"{_INDEXES}:{tenant}")]

    async def tenants(self) -> AsyncIterator[str]:
        """Tenants that have jobs, at every job and every second; never ends."""
        heard = "$"
        while True:
            for tenant in await self._redis.hkeys(self._waiting):
                yield tenant.decode()
            for _, rung in await self._redis.xread({self._bell: heard}, block=_BLOCK_MS) or ():
                heard = rung[-1][0]

    async def take(self, tenant: str) -> tuple[str, dict[str, Any]] | None:
        """The next job of a tenant with its number, one first that a lost replica has left; None if there is none."""
        taken = await self._take(keys=[self._of(tenant)], args=[_GROUP, self._replica, self._lost_ms])
        if taken is None:
            return None
        number, (_, job) = taken
        return number.decode(), orjson.loads(job)

    async def done(self, tenant: str, number: str) -> None:
        """Removes a job."""
        await self._done(keys=[self._of(tenant), self._waiting], args=[_GROUP, tenant, number])
