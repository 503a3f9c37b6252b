"""Turns in Redis: for each thread the run at work, and the runs that wait, in the order in which they came."""

from typing import Any, Final
from urllib.parse import quote

from redis.asyncio import Redis

from procession_services.memory.turns import TurnStore

__all__ = ["RedisTurns"]

_KEPT_SECONDS: Final = 86_400
# KEYS: turn, queue. ARGV: run, seconds.
_TAKE: Final = """
local turn = redis.call('GET', KEYS[1])
if turn == ARGV[1] then return false end
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then
  local last = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  redis.call('ZADD', KEYS[2], (last[2] or 0) + 1, ARGV[1])
  redis.call('EXPIRE', KEYS[2], ARGV[2])
end
if turn then return turn end
local first = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
if first ~= ARGV[1] then return first end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return false
"""
_LEAVE: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
redis.call('ZREM', KEYS[2], ARGV[1])
"""


class RedisTurns(TurnStore):
    """A `TurnStore` in Redis."""

    def __init__(self, redis: "Redis") -> None:
        self._take, self._leave = redis.register_script(_TAKE), redis.register_script(_LEAVE)

    async def take(self, tenant: str, resource: str, thread: str, run: str) -> str | None:
        """Implements `TurnStore.take`."""
        found: Any = await self._take(keys=_keys(tenant, resource, thread), args=[run, _KEPT_SECONDS])
        return None if found is None else str(found.decode())

    async def leave(self, tenant: str, resource: str, thread: str, run: str) -> None:
        """Implements `TurnStore.leave`."""
        await self._leave(keys=_keys(tenant, resource, thread), args=[run])


def _keys(tenant: str, resource: str, thread: str) -> list[str]:
    base = ":".join(quote(each, safe="") for each in (tenant, "turn", resource, thread))
    return [f"procession:{base}:at", f"procession:{base}:queue"]
