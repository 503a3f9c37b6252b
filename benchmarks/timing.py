"""Times something that is done again and again."""

import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["timed"]


async def timed(work: Callable[[], Awaitable[Any]], rounds: int) -> dict[str, float]:
    """Median and 99th percentile of so many rounds, in milliseconds."""
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - start) * 1000)
    taken.sort()
    return {"p50": round(statistics.median(taken), 3), "p99": round(taken[int(len(taken) * 0.99)], 3)}
