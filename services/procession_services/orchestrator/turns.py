"""Lets tenants' requests be handled in turns, so that nobody's comes behind all of another's."""

import asyncio
from collections import deque
from typing import Final

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

    def turn(self, tenant: str) -> "_Turn":
        """As a context, waits for a turn, and has it until the end."""
        return _Turn(self, tenant)

    async def take(self, tenant: str) -> None:
        """Waits for a turn."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came at the same moment
                self.pass_on()
            raise

    def pass_on(self) -> None:
        """Ends a turn."""
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


class _Turn:
    """See `Turns.turn`; a class, since each request makes one."""

    __slots__ = ("_tenant", "_turns")

    def __init__(self, turns: Turns, tenant: str) -> None:
        self._turns, self._tenant = turns, tenant

    async def __aenter__(self) -> None:
        await self._turns.take(self._tenant)

    async def __aexit__(self, *_: object) -> None:
        self._turns.pass_on()
