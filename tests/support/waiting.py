"""Waiting for what sets no event."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from procession.client import MemoryClient

__all__ = ["eventually", "indexed", "nothing_more", "until"]

_SECONDS = 60.0
_LOOK_SECONDS = 0.02
_TURNS = 10
"""Of the loop; what one task brings about in another takes two or three."""


async def until(holds: Callable[[], Any]) -> None:
    """Waits until a condition holds that another task of this process brings about; looks in each turn of the loop."""
    async with asyncio.timeout(_SECONDS):
        while not holds():  # noqa: ASYNC110 - what it waits for sets no event
            await asyncio.sleep(0)


async def eventually(holds: Callable[[], Awaitable[Any]]) -> None:
    """Waits until a server says that something holds; asks it now and then, since it tells nobody."""
    async with asyncio.timeout(_SECONDS):
        while not await holds():  # noqa: ASYNC110 - a server has no event for it
            await asyncio.sleep(_LOOK_SECONDS)


async def indexed(memory: MemoryClient) -> None:
    """Waits until the index of semantic recall has done all jobs."""

    async def none_wait() -> bool:
        return not await memory.index_waiting()

    await eventually(none_wait)


async def nothing_more() -> None:
    """Lets all tasks do what they can do at once, before a test says that something has not happened."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)
