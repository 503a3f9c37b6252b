"""Wakes whoever waits for something to happen."""

import asyncio

__all__ = ["Bell"]


class Bell:
    """Wakes everybody who waits at this moment."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wakes them."""
        waiting, self._waiting = self._waiting, set()
        for waiter in waiting:
            _wake(waiter)

    async def heard(self, seconds: float) -> bool:
        """Waits for the next ring; False when it did not come in time."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _wake, waiter)
        self._waiting.add(waiter)
        try:
            await waiter
            return waiter not in self._waiting
        finally:
            timer.cancel()
            self._waiting.discard(waiter)


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
