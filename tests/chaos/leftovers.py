"""What is left in NATS and Redis when all runs have ended: no work, no place, no turn, nothing of a stream."""

import asyncio
from collections.abc import Collection
from typing import Any, Final

import nats
from redis.asyncio import Redis

from procession_services.runtime.admission import CALLED, PLACED
from procession_services.runtime.embedded import Endpoints
from procession_services.runtime.store import DEADLINES, run_key

__all__ = ["leftovers"]

_SECONDS: Final = 60.0
"""More than a request lies in RUNS after it was handled, and than a lease."""
_LOOK_SECONDS: Final = 0.5


async def leftovers(servers: Endpoints, buried: Collection[str] = ()) -> dict[str, int]:
    """Counts them, by what they are; waits until there are none, or for a while.

    What the runs or agents of these names have left in DEAD belongs there.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + _SECONDS
    async with (
        await nats.connect(servers.nats_url.split(",")) as connection,
        Redis.from_url(servers.redis_url) as redis,
    ):
        while (left := await _counted(connection.jetstream(), redis, buried)) and clock() < until:  # noqa: ASYNC110 - servers have no event for it
            await asyncio.sleep(_LOOK_SECONDS)
    return left


async def _at_work(redis: Any) -> int:
    """Runs that have a deadline, without those whose end is told again then: Redis has forgotten that it was."""
    count = 0
    for member in await redis.zrange(DEADLINES, 0, -1):
        tenant, run = member.decode().split()
        out, context = await redis.hmget(run_key(tenant, run), "out", "ctx")
        count += out != b"0" or context is not None
    return count


async def _messages(js: Any, stream: str, buried: Collection[str] = ()) -> int:
    """How many are in a stream, beside those of these names; one while nobody leads it."""
    try:
        told = (await js.stream_info(stream, subjects_filter=">")).state.subjects or {}
    except nats.errors.Error:
        return 1
    return sum(count for subject, count in told.items() if subject.rsplit(".", 1)[-1] not in buried)


async def _counted(js: Any, redis: Any, buried: Collection[str]) -> dict[str, int]:
    counts = {
        "RUNS": await _messages(js, "RUNS"),
        "WORK": await _messages(js, "WORK"),
        "DEAD": await _messages(js, "DEAD", buried),
        "places": await redis.scard(PLACED),
        "called runs": await redis.zcard(CALLED),
        "runs": await _at_work(redis),
        "lines": len(await redis.keys("procession:*:line:*")),
        "stream parts": len(await redis.keys("procession:*:parts")),
    }
    return {what: count for what, count in counts.items() if count}
