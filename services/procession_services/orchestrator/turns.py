"""Lets tenants' requests be handled in turns, so that nobody's comes behind all of another's."""

import asyncio
from collections import deque
from typing import Final

from procession_services.runtime.lasting import Lasting

__all__ = ["AT_ONCE", "INTAKE", "Turns"]

INTAKE: Final = 4_096
"""Requests, or controls, that one process has in hand, including those whose outcome Redis may not have written yet;
the next one waits for them."""
AT_ONCE: Final = 16
"""How many of them are handled at the same time; a few keep a process busy."""


class Turns:
    """So many at once; whoever waits gets a turn after at most one of each other tenant."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}  # whose turn is next comes first

    def waiting(self, tenant: str) -> int:
        """How many of a tenant wait."""
        return len(self._queues.get(tenant, ()))

    async def turn(self, tenant: str) -> Lasting[None]:
        """Waits for a turn, which lasts for the length of a block."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(tenant)
        return Lasting(None, self._pass_on)

    async def _wait(self, tenant: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came at the same moment
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._queues:
            tenant = next(iter(self._queues))
            queue = self._queues.pop(tenant)
            turn = queue.popleft()
            if queue:
                self._queues[tenant] = queue  # behind the others
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
