"""What memory costs: `python -m benchmarks.memory history [--messages N] | recall [--embeddings N] [--server]`.

`history` prints how long the last 20 messages of a thread take to read as it grows, `recall` how long a search takes
among as many embeddings, with the memory that they occupy (`embeddings.py`). Both start the servers that they need.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from redis.asyncio import Redis

from benchmarks import embeddings
from benchmarks.timing import timed
from procession_services.memory.core.times import to_iso
from procession_services.memory.stores.redis import RedisMessageStore
from procession_services.runtime.embedded import embedded

_LAST: Final = 20
_BATCH: Final = 1000
_ROUNDS: Final = 300
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


async def history(total: int) -> AsyncIterator[dict[str, Any]]:
    """Reading and saving, at each power of ten up to `total` messages in one thread."""
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
                read = await timed(lambda: store.recent("t", "thread", "r", _LAST), _ROUNDS)
                page = await timed(lambda: store.messages("t", "thread", "r", page=0, per_page=40), _ROUNDS)
                used = (await redis.info("memory"))["used_memory"]
                yield {
                    "messages": size,
                    "last20_ms": read,
                    "first_page_ms": page,
                    "redis_mb": round(used / 1e6, 1),
                }


async def _print(rows: AsyncIterator[dict[str, Any]]) -> None:
    async for row in rows:
        sys.stdout.write(f"{json.dumps(row)}\n")
        sys.stdout.flush()


def main() -> int:
    """Prints a JSON line for each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    told = parts.add_parser("history", help="reading a thread as it grows")
    told.add_argument("--messages", type=int, default=100_000)
    told = parts.add_parser("recall", help="searching as an index grows")
    told.add_argument("--embeddings", type=int, default=10_000)
    told.add_argument(
        "--server", action="store_true", help="a Chroma server, instead of Chroma in this process"
    )
    options = parser.parse_args()
    if options.part == "history":
        asyncio.run(_print(history(options.messages)))
    else:
        asyncio.run(_print(embeddings.measure(options.embeddings, server=options.server)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
