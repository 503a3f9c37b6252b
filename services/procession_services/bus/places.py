"""Places of a worker, one for each message in hand; work on another worker's message has its place where it is done."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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

    def visited_from(self, home: "Places | None") -> "_Visit":
        """As a context, takes a place here, and gives up the one at `home`, if there is one."""
        return _Visit(self, home)

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """For the length of the block, there is one more place, since its owner is a guest elsewhere."""
        self.give()
        try:
            yield
        finally:
            self.take_back()

    def come(self) -> None:
        """A guest takes a place."""
        self._guests += 1
        self._no_guests.clear()
        self._free -= 1

    def go(self) -> None:
        """A guest leaves it."""
        self.give()
        self._guests -= 1
        if not self._guests:
            self._no_guests.set()

    def give(self) -> None:
        """There is one more place."""
        self._free += 1
        self._on_free()

    def take_back(self) -> None:
        """There is one less."""
        self._free -= 1

    async def no_guests(self) -> None:
        """Returns when nobody is a guest here."""
        await self._no_guests.wait()


class _Visit:
    """See `Places.visited_from`; a class, since each command that is handed over makes one."""

    __slots__ = ("_at", "_home")

    def __init__(self, at: Places, home: Places | None) -> None:
        self._at, self._home = at, home

    def __enter__(self) -> None:
        self._at.come()
        if self._home:
            self._home.give()

    def __exit__(self, *_: object) -> None:
        if self._home:
            self._home.take_back()
        self._at.go()
