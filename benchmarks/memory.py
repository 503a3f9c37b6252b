"""Memory at scale: `python -m benchmarks.memory [--messages N] [--embeddings N]`.

Prints how long the last 20 messages of a thread take to read as it grows, and how long a search takes among as many
embeddings of Chroma in this process, with the memory that they occupy. Needs no servers: it starts a Redis of its own.
"""

import argparse
import asyncio
import json
import random
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from redis.asyncio import Redis

from procession_services.memory.core.times import to_iso
from procession_services.memory.ports import Embedded, Index
from procession_services.memory.stores.chroma import ChromaVectors
from procession_services.memory.stores.redis import RedisMessageStore
from procession_services.runtime.embedded import embedded

_LAST: Final = 20
_BATCH: Final = 1000
_ROUNDS: Final = 300
_DIMENSION: Final = 384
_START: Final = 1_767_225_600_000


def _message(number: int) -> Any:
    parts = [{"type": "text", "text": f"message {number}: " + "some words of an ordinary length " * 4}]
    content = {"format": 2, "parts": parts}
    return {
        "id": f"m{number}",
        "role": "user",
        "createdAt": to_iso(_START + number * 1000),
        "content": content,
    }


async def _timed(work: Callable[[], Awaitable[Any]], rounds: int) -> dict[str, float]:
    """Median and 99th percentile, in milliseconds."""
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - start) * 1000)
    taken.sort()
    return {"p50": round(statistics.median(taken), 3), "p99": round(taken[int(len(taken) * 0.99)], 3)}


async def history(total: int) -> list[dict[str, Any]]:
    """Reading and saving, at each power of ten up to `total` messages in one thread."""
    rows = []
    with TemporaryDirectory() as directory:
        async with (
            embedded(Path(directory), nats=False) as servers,
            Redis.from_url(servers.redis_url) as redis,
        ):
            store, number = RedisMessageStore(redis), 0
            sizes = [size for size in (10, 100, 1000, 10_000, 100_000, 1_000_000) if size <= total]
            for size in sizes:
                while number < size:
                    some = min(_BATCH, size - number)
                    await store.save("t", "thread", "r", [_message(number + i) for i in range(some)])
                    number += some
                read = await _timed(lambda: store.recent("t", "thread", "r", _LAST), _ROUNDS)
                page = await _timed(lambda: store.messages("t", "thread", "r", page=0, per_page=40), _ROUNDS)
                used = (await redis.info("memory"))["used_memory"]
                rows.append(
                    {
                        "messages": size,
                        "last20_ms": read,
                        "first_page_ms": page,
                        "redis_mb": round(used / 1e6, 1),
                    }
                )
    return rows


async def embeddings(total: int) -> list[dict[str, Any]]:
    """Searching, at growing sizes of one tenant's index; half a percent of it belongs to the resource."""
    rows, chance = [], random.Random(7)  # noqa: S311 - not for secrets
    with TemporaryDirectory() as directory:
        vectors = ChromaVectors.in_directory(Path(directory))
        index, number = Index("t", "messages", "random", _DIMENSION), 0
        await vectors.ensure(index)
        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        for size in [size for size in (1000, 10_000, 100_000, 1_000_000) if size <= total]:
            while number < size:
                some = min(_BATCH, size - number)
                await vectors.upsert(index, [_embedded(number + i, chance) for i in range(some)])
                number += some
            added = time.perf_counter() - started
            search = partial(vectors.query, index, _vector(chance), top_k=4, resource="r0", thread=None)
            found = await _timed(search, 30)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
            rows.append(
                {"embeddings": size, "search_ms": found, "rss_mb": grown // 1024, "insert_s": round(added, 1)}
            )
        await vectors.aclose()
    return rows


def _vector(chance: random.Random) -> list[float]:
    return [chance.gauss(0, 1) for _ in range(_DIMENSION)]


def _embedded(number: int, chance: random.Random) -> Embedded:
    metadata = {
        "message_id": f"m{number}",
        "thread_id": f"t{number % 2000}",
        "resource_id": f"r{number % 200}",
        "role": "user",
        "content": f"message {number}",
        "created_at": to_iso(_START + number),
    }
    return Embedded(f"m{number}", _vector(chance), metadata)


def main() -> int:
    """Prints a JSON line for each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--embeddings", type=int, default=10_000)
    told = parser.parse_args()
    for rows in (asyncio.run(history(told.messages)), asyncio.run(embeddings(told.embeddings))):
        for row in rows:
            sys.stdout.write(f"{json.dumps(row)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
