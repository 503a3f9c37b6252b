"""Ends runs whose time is up. One timer a replica, set to the earliest deadline; no polling in between."""

import asyncio
import contextlib
import logging

from procession_services.orchestrator.handlers import Orchestrator
from procession_services.orchestrator.lost_runs import LostRuns
from procession_services.processor_host.driver import Driver
from procession_services.runs.stored import UnreadableError
from procession_services.runtime.clock import now
from procession_services.runtime.store import RunStore

log = logging.getLogger(__name__)
_LOOK_AGAIN_SECONDS = 15.0
"""Other replicas accept runs too: how late one whose replica died may be ended."""
_AT_ONCE = 64
"""Runs that are ended together: one that takes its time, as on a busy machine, keeps no other from its end."""


class Deadlines:
    """Watches the earliest deadline."""

    def __init__(self, store: RunStore, orchestrator: Orchestrator, lost: LostRuns, driver: Driver) -> None:
        self._store, self._orchestrator, self._lost = store, orchestrator, lost
        self._next = float("inf")
        self._sooner = asyncio.Event()
        driver.on_deadline_added = self._added

    def _added(self, deadline_ms: int) -> None:
        if deadline_ms < self._next:
            self._next = deadline_ms
            self._sooner.set()

    async def run(self) -> None:
        """Waits for deadlines until it is cancelled."""
        while True:
            self._sooner.clear()
            try:
                await self._look()
            except Exception:  # Redis may be away: the next look catches up
                log.exception("deadlines could not be read")
                self._next = float("inf")
            wait = min(max(self._next - now().timestamp() * 1000, 0) / 1000, _LOOK_AGAIN_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._sooner.wait()

    async def _look(self) -> None:
        while True:
            self._next = float("inf")  # what is added from now on may be missing in what is read
            found = await self._store.next_deadlines(_AT_ONCE)
            self._next = min([self._next, *(deadline for deadline, *_ in found)])
            at = now().timestamp() * 1000
            due = [run for deadline, *run in found if deadline <= at]
            if not due:
                return
            await asyncio.gather(*(self._end(*run) for run in due))

    async def _end(self, tenant: str, run: str) -> None:
        """Ends one run, and looks at it again in a while unless its end is told by then."""
        try:
            try:
                await self._orchestrator.on_deadline(tenant, run)
            except UnreadableError:
                log.exception(
                    "the stored state of run %s of tenant %s cannot be read; ending the run with STATE_LOST",
                    run,
                    tenant,
                )
                await self._lost.end_unread(tenant, run)
        except Exception:  # it must not keep others from their end
            log.exception(
                "run %s of tenant %s is past its deadline but could not be ended; trying again", run, tenant
            )
        await self._store.put_off(tenant, run, int((now().timestamp() + _LOOK_AGAIN_SECONDS) * 1000))
