"""What a Redis must be so that nothing is lost in it, and in what a server falls short of that."""

import asyncio
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from procession_services.runtime.access import Access
from procession_services.runtime.problems import Problem

__all__ = ["knows", "once", "redis_at", "redis_problems", "redis_problems_at"]

WHERE: Final = "Redis"
_OLDEST: Final = (6, 2)
_FULL: Final = 0.9
_SECONDS: Final = 3.0
_WARNINGS: Final = ("redis_version", "used_memory")


async def redis_problems(redis: "Redis") -> list[Problem]:
    """Asks a server for its persistence, its policy when it is full, its version and its role."""
    server: Any = redis
    try:
        async with asyncio.timeout(_SECONDS):
            facts: dict[str, Any] = await server.info()
    except NoPermissionError:
        told = "the user may not use INFO: rewrite the users (`procession init`), and restart Redis"
        return [Problem(WHERE, "", told, warning=True)]
    except (AuthenticationError, ResponseError) as error:
        return [Problem(WHERE, "", f"rejects the login ({error}): check user and password")]
    except (RedisError, OSError) as error:
        return [Problem(WHERE, "", f"does not answer ({str(error) or 'in time'}): is it running?")]
    return [Problem(WHERE, name, told, warning=name in _WARNINGS) for name, told in _wrong(facts)]


async def redis_problems_at(url: str, access: Access) -> list[Problem]:
    """The same of a server that may not answer, over a connection of its own."""
    async with once(url, access) as redis:
        return await redis_problems(redis)


async def redis_at(url: str, access: Access) -> str:
    """Which server is there, and which of its databases; empty where it does not say."""
    async with once(url, access) as redis:
        server: Any = redis
        try:
            async with asyncio.timeout(_SECONDS):
                started = (await server.info("server"))["run_id"]
        except (RedisError, OSError, KeyError):
            return ""
        return f"{started[:10]}/{redis.connection_pool.connection_kwargs.get('db') or 0}"


async def knows(url: str, access: Access) -> bool | None:
    """Whether a server takes that user and password; None when it does not answer."""
    async with once(url, access) as redis:
        server: Any = redis
        try:
            await server.ping()
        except (AuthenticationError, ResponseError):
            return False
        except (RedisError, OSError):
            return None
        return True


def once(url: str, access: Access) -> "Redis":
    """A client that tries once, over a connection of its own; servers that let services in let it in."""
    return Redis.from_url(
        url,
        protocol=2,  # theirs; in another one Redis takes a password where it has none
        retry=Retry(NoBackoff(), 0),
        socket_connect_timeout=_SECONDS,
        socket_timeout=_SECONDS,
        **access.redis(url),
    )


def _wrong(facts: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    version = str(facts.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        found.append(
            ("redis_version", f"{version} is too old: {'.'.join(map(str, _OLDEST))} or newer is needed")
        )
    if not facts.get("aof_enabled"):
        found.append(("appendonly", "off: a restart loses runs and memory; set `appendonly yes`"))
    elif facts.get("aof_last_write_status", "ok") != "ok":
        found.append(("aof_last_write_status", "the append-only file cannot be written: is the disk full?"))
    if (policy := facts.get("maxmemory_policy", "noeviction")) != "noeviction":
        told = (
            f"{policy} evicts keys when memory is short, and runs get lost; set `maxmemory-policy noeviction`"
        )
        found.append(("maxmemory-policy", told))
    if facts.get("role", "master") != "master":
        found.append(("role", "this is a read-only replica; set PROCESSION_REDIS_URL to its master"))
    limit = int(facts.get("maxmemory", 0))
    if limit and int(facts.get("used_memory", 0)) > _FULL * limit:
        found.append(
            ("used_memory", f"more than {_FULL:.0%} of `maxmemory` is used; writes fail when it is full")
        )
    return found
