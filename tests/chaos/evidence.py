"""What NATS and Redis hold of a run: the only witnesses of one that was lost."""

from pathlib import Path
from typing import Any, Final

import nats
from nats.js.errors import NotFoundError
from redis.asyncio import Redis

from procession_services.runtime.embedded import Endpoints

__all__ = ["keep_evidence"]

_STREAMS: Final = {
    "RUNS": "run.*.*",
    "WORK": "*.*.>",
    "EVENTS": "event.*.{run}.>",
    "CHUNKS": "chunk.*.{run}",
    "DEAD": ">",
}


async def keep_evidence(servers: Endpoints, run: str, path: Path) -> None:
    """Writes all of it into a file, as it is stored."""
    with path.open("w") as out:
        async with Redis.from_url(servers.redis_url) as redis:
            for key in sorted([key async for key in redis.scan_iter(f"*{run}*")]):
                out.write(f"{key!r}: {await _value(redis, key)!r}\n")
        async with await nats.connect(servers.nats_url.split(",")) as connection:
            for stream, subject in _STREAMS.items():
                await _messages(
                    connection.jetstream(), stream, f"procession.v1.{subject.format(run=run)}", run, out
                )


async def _value(redis: Any, key: bytes) -> Any:
    match await redis.type(key):
        case b"hash":
            return await redis.hgetall(key)
        case b"list":
            return await redis.lrange(key, 0, -1)
        case b"string":
            return await redis.get(key)
        case other:
            return other


async def _messages(js: Any, stream: str, subject: str, run: str, out: Any) -> None:
    number = 0
    while True:
        try:
            message = await js.get_msg(stream, seq=number + 1, subject=subject, next=True)
        except NotFoundError:
            return
        number = message.seq
        if run in message.subject or run.encode() in message.data:
            out.write(
                f"{stream} {number} {message.subject} {message.headers or ''} {message.data.decode()}\n"
            )
