"""What work costs, however busy the machine is."""

import gc
import time
from collections.abc import Callable
from typing import Any

__all__ = ["growth", "seconds"]


def seconds(work: Callable[[], Any]) -> float:
    """CPU seconds of the best of five times, without collections of all that other tests have left."""
    best = float("inf")
    gc.disable()
    try:
        for _ in range(5):
            began = time.process_time()
            work()
            best = min(best, time.process_time() - began)
    finally:
        gc.enable()
    return best


def growth(work: Callable[[int], Any], size: int) -> float:
    """How many times as much work of this size costs as a quarter of it: about 4 if linear, 16 if quadratic."""
    return seconds(lambda: work(size)) / (seconds(lambda: work(size // 4)) + 0.001)
