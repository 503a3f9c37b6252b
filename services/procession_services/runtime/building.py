"""Building what requests ask for: where it may take long, beside the event loop, so that other tenants' runs go on."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

__all__ = ["built"]

_LONG: Final = 4096
_THREAD: Final = ThreadPoolExecutor(1, "building")
"""One at a time: two would leave the loop a third of the interpreter's time instead of half."""
_T = TypeVar("_T")


async def built(make: Callable[[], _T], size: int) -> _T:
    """What `make` gives; it has no event loop when it is made of more than 4,096 characters or bytes of options.

    Regular expressions, say, take a millisecond for each rule.
    """
    if size <= _LONG:
        return make()
    return await asyncio.get_running_loop().run_in_executor(_THREAD, make)
