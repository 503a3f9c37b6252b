"""Places of a worker, one for each message in hand; work on another worker's message has its place where it is done."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

__all__ = ["Places"]


class Places:
    """So many places, some of them taken by guests of another worker; `on_free` is called when one gets free."""

    def __init__(self, count: int, on_free: Callable[[], None]) -> None:
        self._free, self._on_free = count, on_free
        self._guests = 0
        self._no_guests = asyncio.Event()
        self._no_guests.set()

    def left(self, taken: int) -> int:
        """How many are free while so many messages are in hand."""
        return self._free - taken

    @contextmanager
    def visited_from(self, home: "Places | None") -> Iterator[None]:
        """For the length of the block, takes a place here, and gives up the one at `home`, if there is one."""
        self._guests += 1
        self._no_guests.clear()
        self._free -= 1
        try:
            with home.one_more() if home else nullcontext():
                yield
        finally:
            self._free += 1
            self._on_free()
            self._guests -= 1
            if not self._guests:
                self._no_guests.set()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """For the length of the block, there is one more place, since its owner is a guest elsewhere."""
        self._free += 1
        self._on_free()
        try:
            yield
        finally:
            self._free -= 1

    async def no_guests(self) -> None:
        """Returns when nobody is a guest here."""
        await self._no_guests.wait()
