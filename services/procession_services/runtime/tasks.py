"""Ends tasks that work until they are told to stop."""

import asyncio
from typing import Any, Final

__all__ = ["ended"]

_AGAIN_SECONDS: Final = 0.2


async def ended(*tasks: "asyncio.Task[Any]") -> None:
    """Cancels tasks and returns when all of them are over.

    It says so again until they are: `asyncio.wait_for` of Python 3.11, in which redis-py sends, loses a cancellation
    that comes just when a command has been sent.
    """
    going = set(tasks)
    while going:
        for task in going:
            task.cancel()
        _, going = await asyncio.wait(going, timeout=_AGAIN_SECONDS)
