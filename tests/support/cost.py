"""What work costs, however busy the machine is."""

import gc
import time
from collections.abc import Callable
from typing import Any

__all__ = ["seconds"]


def seconds(work: Callable[[], Any]) -> float:
    """CPU seconds of the best of three times, without collections of all that other tests have left."""
    best = float("inf")
    gc.disable()
    try:
        for _ in range(3):
            began = time.process_time()
            work()
            best = min(best, time.process_time() - began)
    finally:
        gc.enable()
    return best
