"""Whether our user may do in Redis what services do: each command is tried, on keys that are gone a moment later."""

from typing import Any, Final
from uuid import uuid4

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from procession_services.runtime.access import Access
from procession_services.runtime.problems import Problem
from procession_services.runtime.redis_check import WHERE, once

__all__ = ["COMMANDS", "REMEDY", "rights_problems", "rights_problems_at"]

REMEDY: Final = "rewrite the users (`procession init`), and restart Redis"
_DIGEST: Final = "0" * 40
# Behind `SET` the key holds a text, so all that is for another kind of value is refused for that, and does nothing.
COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "PING": (), "TIME": (),
    "EVAL": ("return 1", "0"), "EVALSHA": (_DIGEST, "0"),
    "SCRIPT LOAD": ("return 1",), "SCRIPT EXISTS": (_DIGEST,),
    "SET": ("KEY", "", "PX", "1000"), "GET": ("KEY",), "MGET": ("KEY",), "EXISTS": ("KEY",), "TTL": ("KEY",),
    "EXPIRE": ("KEY", "1"), "PEXPIRE": ("KEY", "1000"), "INCR": ("KEY",),
    "HSET": ("KEY", "f", "v"), "HGET": ("KEY", "f"), "HMGET": ("KEY", "f"), "HGETALL": ("KEY",), "HKEYS": ("KEY",),
    "HDEL": ("KEY", "f"), "HEXISTS": ("KEY", "f"), "HINCRBY": ("KEY", "f", "1"),
    "LPUSH": ("KEY", "v"), "RPUSH": ("KEY", "v"), "LPOP": ("KEY",), "LINDEX": ("KEY", "0"), "LREM": ("KEY", "0", "v"),
    "LRANGE": ("KEY", "0", "0"),
    "SADD": ("KEY", "v"), "SREM": ("KEY", "v"), "SMEMBERS": ("KEY",),
    "ZADD": ("KEY", "1", "v"), "ZREM": ("KEY", "v"), "ZCARD": ("KEY",), "ZSCORE": ("KEY", "v"), "ZRANK": ("KEY", "v"),
    "ZPOPMIN": ("KEY",), "ZRANGE": ("KEY", "0", "0"), "ZREVRANGE": ("KEY", "0", "0"),
    "ZRANGEBYSCORE": ("KEY", "0", "0"), "ZREMRANGEBYSCORE": ("KEY", "0", "0"),
    "DEL": ("KEY",), "UNLINK": ("KEY",), "MULTI": (), "EXEC": (),
}  # fmt: skip
"""What every service uses, with arguments for a try."""
_MEMORYS: Final[dict[str, tuple[str, ...]]] = {
    "SCAN": ("0", "COUNT", "1"), "XADD": ("KEY", "*", "f", "v"), "XREAD": ("STREAMS", "KEY", "$"),
    "XGROUP CREATE": ("KEY", "g", "$"), "XREADGROUP": ("GROUP", "g", "c", "STREAMS", "KEY", ">"),
    "XPENDING": ("KEY", "g"), "XCLAIM": ("KEY", "g", "c", "1", "1-1"), "XACK": ("KEY", "g", "1-1"),
    "XDEL": ("KEY", "1-1"),
}  # fmt: skip
_KEYS: Final = ("run", "line", "kv", "usage", "once")


async def rights_problems(redis: "Redis", service: str) -> list[Problem]:
    """What the user of that connection may not do of what the service does; nothing where Redis does not answer."""
    set_first = {"SET": COMMANDS["SET"]}
    commands = {**set_first, **(_MEMORYS if service == "memory" else {}), **COMMANDS}
    probe = f"procession:admission:probe-{uuid4().hex}"
    tries = [
        (name, [*name.split(), *(probe if each == "KEY" else each for each in arguments)])
        for name, arguments in commands.items()
    ]
    kinds = [f"procession:*:{kind}:*" for kind in (*_KEYS, *(["memory"] if service == "memory" else []))]
    tries += [(f"keys {keys}", ["EXISTS", keys.replace("*", "probe")]) for keys in kinds]
    tries.append(("the key procession:deadlines", ["EXISTS", "procession:deadlines"]))
    if service == "memory":
        tries.append(("keys procession:memory:*", ["EXISTS", "procession:memory:probe"]))
    try:
        refused = [name for name, command in tries if await _is_refused(redis, command)]
    except (RedisError, OSError):
        return []
    told = f"the user lacks permissions that services need ({', '.join(refused)}): {REMEDY}"
    return [Problem(WHERE, "permissions", told)] if refused else []


async def rights_problems_at(url: str, access: Access, service: str) -> list[Problem]:
    """The same over a connection of its own."""
    async with once(url, access) as redis:
        return await rights_problems(redis, service)


async def _is_refused(redis: Any, command: list[str]) -> bool:
    try:
        await redis.execute_command(*command)
    except NoPermissionError:
        return True
    except ResponseError:  # not for what the key holds
        return False
    return False
