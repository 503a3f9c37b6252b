"""The store that processors and tools share across runs: JSON values in Redis, `procession:<tenant>:kv:<key>`."""

from typing import Any, Literal

import orjson

from procession_services.runtime.redis_client import ONCE, RedisClient, Script, once_key

_ADD = Script(
    ONCE
    + """
local old = redis.call('GET', KEYS[1])
if not first_time(KEYS[2]) then return old or '0' end
local sum = string.format('%.17g', tonumber(old or '0') + tonumber(ARGV[1]))
if old then redis.call('SET', KEYS[1], sum, 'KEEPTTL')
elseif ARGV[2] ~= '' then redis.call('SET', KEYS[1], sum, 'PX', ARGV[2])
else redis.call('SET', KEYS[1], sum) end
return sum
"""
)
# INCRBYFLOAT in a script kills Redis 6.2.14 when it writes an append-only file.

_INSERT = Script("""
for member = 2, #ARGV do redis.call('SADD', KEYS[1], ARGV[member]) end
if ARGV[1] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
""")


class RedisValues:
    """The `KeyValueStore` of one tenant."""

    def __init__(self, redis: RedisClient, tenant: str) -> None:
        self._redis: Any = redis  # redis-py's annotations cover every protocol and decoding at once
        self._tenant, self._prefix = tenant, f"procession:{tenant}:kv:"

    async def get(self, key: str) -> Any:
        """The value, or None."""
        value = await self._redis.get(self._prefix + key)
        return None if value is None else orjson.loads(value)

    async def put(self, key: str, value: Any, *, ttl: float | None = None, only_new: bool = False) -> bool:
        """Stores a value for `ttl` seconds; False when `only_new` and there is one already."""
        lasts = _milliseconds(ttl) or None
        return bool(await self._redis.set(self._prefix + key, orjson.dumps(value), px=lasts, nx=only_new))

    async def delete(self, *keys: str) -> None:
        """Removes values and sets."""
        if keys:
            await self._redis.delete(*(self._prefix + key for key in keys))

    async def add(self, key: str, amount: float, *, ttl: float | None = None) -> float:
        """Adds to a number, atomically and once, and returns the sum; `ttl` counts from its creation."""
        keys = [self._prefix + key, once_key(self._tenant)]
        return float(await self._redis.run(_ADD, keys=keys, args=[amount, _milliseconds(ttl)]))

    async def insert(self, key: str, *members: str, ttl: float | None = None) -> None:
        """Puts strings into a set and renews its `ttl`."""
        if members:
            args = [_milliseconds(ttl), *members]
            await self._redis.run(_INSERT, keys=[self._prefix + key], args=args)

    async def members(self, key: str) -> set[str]:
        """The strings of a set."""
        return {member.decode() for member in await self._redis.smembers(self._prefix + key)}


def _milliseconds(ttl: float | None) -> int | Literal[""]:
    """As a script is told it: empty for a value that stays."""
    return "" if ttl is None else max(1, int(ttl * 1000))
