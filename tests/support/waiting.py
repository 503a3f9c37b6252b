"""Waiting for what sets no event."""

import asyncio
from collections.abc import Callable
from typing import Any

__all__ = ["until"]

_SECONDS = 20.0


async def until(holds: Callable[[], Any]) -> None:
    """Waits until a condition holds that another task of this process brings about; looks in each turn of the loop."""
    async with asyncio.timeout(_SECONDS):
        while not holds():  # noqa: ASYNC110 - what it waits for sets no event
            await asyncio.sleep(0)
