"""Works off a queue of jobs of many tenants: those of one tenant hold up those of no other."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol

from procession_services.runtime.tasks import ended, repeated, spawned

__all__ = ["Jobs", "Lanes"]

_PAUSE_SECONDS: Final = 5.0
"""Before a queue that could not be read is read again."""


class Jobs(Protocol):
    """A queue as its workers see it."""

    def tenants(self) -> AsyncIterator[str]:
        """Tenants that have jobs, again and again, and soon after there is one more; never ends."""

    async def take(self, tenant: str) -> tuple[str, dict[str, Any]] | None:
        """The next job of a tenant with its number, what was taken and not done in time first; None: there is none."""

    async def done(self, tenant: str, number: str) -> None:
        """Removes a job."""


Hold = Callable[[str], AbstractAsyncContextManager[bool]]
"""Says for a block whether the jobs of a tenant may be worked on here."""


@asynccontextmanager
async def _by_anybody(_tenant: str) -> AsyncIterator[bool]:
    yield True


class Lanes:
    """One replica's work on a queue.

    Args:
        jobs: The queue.
        work: Does a job. False: it is to come again after a while, as jobs of lost replicas do.
        at_once: Jobs of one tenant that are worked on at the same time.
        hold: Where only one replica at a time may work on the jobs of a tenant: whether it is this one.
    """

    def __init__(
        self,
        jobs: Jobs,
        work: Callable[[dict[str, Any]], Awaitable[bool]],
        *,
        at_once: int = 1,
        hold: Hold = _by_anybody,
    ) -> None:
        self._jobs, self._work, self._at_once, self._hold = jobs, work, at_once, hold
        self._lanes: dict[str, set[asyncio.Task[Any]]] = {}
        self._at_work: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Works until it is cancelled; what is not done then is done by another replica."""
        try:
            await repeated("looking for queued memory jobs", _PAUSE_SECONDS, self._look, at_once=True)
        finally:
            await ended(*(lane for lanes in self._lanes.values() for lane in lanes))

    async def _look(self) -> None:
        async for tenant in self._jobs.tenants():
            self._open(tenant)

    def _open(self, tenant: str) -> None:
        lanes = self._lanes.setdefault(tenant, set())
        if len(lanes) < self._at_once:
            spawned(lanes, f"working on the memory jobs of tenant {tenant}", self._lane(tenant))

    async def _lane(self, tenant: str) -> None:
        """Does one job of the tenant after the other, until there is none."""
        async with self._hold(tenant) as held:
            while held and (taken := await self._jobs.take(tenant)):
                number, job = taken
                if (tenant, number) in self._at_work:  # it takes so long that it seems to be a lost replica's
                    continue
                self._open(tenant)
                self._at_work.add((tenant, number))
                try:
                    if await self._work(job):
                        await self._jobs.done(tenant, number)
                finally:
                    self._at_work.remove((tenant, number))
