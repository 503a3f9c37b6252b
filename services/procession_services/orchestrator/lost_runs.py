"""Runs that Redis no longer knows, since it came back without its data, or somebody emptied it.

EVENTS has that they were accepted, but not their end. Nobody will work on them again, so they end as failures.
So does a run whose time is up while its stored state cannot be read.
"""

import asyncio
import logging
from typing import Final

from pydantic import ValidationError

from procession_schemas import subjects
from procession_schemas.events import RunAccepted
from procession_schemas.run import Failure
from procession_services.bus import Bus
from procession_services.processor_host.driver import Driver
from procession_services.processor_host.outbox import Outbox, last_sent
from procession_services.runs.stored import remains
from procession_services.runtime.store import RunStore

__all__ = ["LostRuns"]

log = logging.getLogger(__name__)
_AT_ONCE: Final = 64
_LOST: Final = Failure(
    code="STATE_LOST",
    message="Redis has lost the state of this run; send the request again as a new run",
)
_UNREADABLE: Final = Failure(
    code="STATE_LOST",
    message="the stored state of this run cannot be read: another version of Procession may have written it; "
    "send the request again as a new run",
)


class LostRuns:
    """Finds them, and tells their end; and tells Redis anew which ids are taken."""

    def __init__(self, store: RunStore, bus: Bus, driver: Driver) -> None:
        self._store, self._bus, self._driver = store, bus, driver

    async def end(self, life: int, *, until: int) -> int:
        """Ends those that were accepted up to that number of EVENTS; returns how many there were.

        What was accepted later is in the Redis that is here now. A request that NATS still has is handled again
        (docs/adr/0024): to be called when that has been done in this `life` of Redis. In the next one it may have
        forgotten again what was done.
        """
        lost, batch = 0, list[tuple[str, bytes]]()
        async for each in self._bus.stored.messages("EVENTS", subjects.events("run.accepted"), until=until):
            batch.append(each)
            if len(batch) == _AT_ONCE:
                lost, batch = lost + await self._look_at(batch, life), []
        return lost + await self._look_at(batch, life)

    async def _look_at(self, accepted: list[tuple[str, bytes]], life: int) -> int:
        return sum(await asyncio.gather(*(self._end_one(*each, life) for each in accepted)))

    async def _end_one(self, subject: str, body: bytes, life: int) -> bool:
        """Ends a run if it is lost; says whether it was."""
        try:
            accepted = RunAccepted.model_validate_json(body)
        except ValidationError:
            log.exception("the event stored on %s cannot be read; leaving it alone", subject)
            return False
        _, tenant, run, *_ = subjects.parse(subject)
        ended = await self._has_ended(tenant, run)
        if not ended and await self._store.load_state(tenant, run) is not None:
            return False
        if self._store.life != life:
            return False
        if not ended:
            await self._tell(tenant, run, accepted.agent, accepted.fingerprint, _LOST)
        if accepted.fingerprint:
            self._store.mark_told(tenant, run, accepted.fingerprint)
        return not ended

    async def end_unread(self, tenant: str, run: str) -> None:
        """Ends a run whose time is up, and of which nobody has read what is stored.

        Not before: of the replicas of two versions, as an upgrade has them, some may read it.
        """
        stored = await self._store.load_state(tenant, run)
        left = remains(stored.state if stored else b"")
        if not await self._has_ended(tenant, run):
            await self._tell(tenant, run, left.agent, left.fingerprint or None, _UNREADABLE)
        if left.fingerprint:
            self._store.mark_told(tenant, run, left.fingerprint)
        await self._driver.discard(tenant, run, left.line)

    async def _has_ended(self, tenant: str, run: str) -> bool:
        return await self._bus.stored.last_event(tenant, run, "run.finished") is not None

    async def _tell(self, tenant: str, run: str, agent: str, fingerprint: str | None, why: Failure) -> None:
        await self._bus.publish(subjects.cancelled(tenant, run), b"")
        shown = await last_sent(self._bus, tenant, run)
        outbox = Outbox(self._bus, tenant, run, 0, live=True, fence=shown.fence + 1)
        await outbox.follow()
        await self._driver.failed(outbox, tenant, run, agent, why, fingerprint=fingerprint)
