"""Places of a worker, one for each message in hand; work on another worker's message has its place where it is done."""

import asyncio
from collections.abc import Callable
from functools import partial

from procession_services.runtime.lasting import Lasting

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

    def visited_from(self, home: "Places | None") -> Lasting[None]:
        """Takes a place here for the length of a block, and gives up the one at `home`, if there is one."""
        self._guests += 1
        self._no_guests.clear()
        self._free -= 1
        return Lasting(None, partial(self._left_by_guest, home.one_more() if home else None))

    def one_more(self) -> Lasting[None]:
        """There is one more place for the length of a block, since its owner is a guest elsewhere."""
        self._free += 1
        self._on_free()
        return Lasting(None, self._one_less)

    def _one_less(self) -> None:
        self._free -= 1

    def _left_by_guest(self, given_up: Lasting[None] | None) -> None:
        if given_up:
            given_up.end()
        self._free += 1
        self._on_free()
        self._guests -= 1
        if not self._guests:
            self._no_guests.set()

    async def no_guests(self) -> None:
        """Returns when nobody is a guest here."""
        await self._no_guests.wait()
