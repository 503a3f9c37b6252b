"""Runs of which Redis knows nothing any more, since it came back without its data, or somebody emptied it.

EVENTS knows that they were accepted, and has no end of them. Nobody will work on them again, so they end as failures.
"""

import asyncio
from typing import Final

from procession_schemas import subjects
from procession_schemas.events import RunAccepted
from procession_schemas.run import Failure
from procession_services.bus import Bus
from procession_services.processor_host.driver import Driver
from procession_services.processor_host.outbox import Outbox, last_sent
from procession_services.runtime.store import RunStore

__all__ = ["LostRuns"]

_AT_ONCE: Final = 64
_LOST: Final = Failure(
    code="STATE_LOST",
    message="Redis has lost what it knew of this run; send the request again, as another run",
)


class LostRuns:
    """Finds them, and tells their end."""

    def __init__(self, store: RunStore, bus: Bus, driver: Driver) -> None:
        self._store, self._bus, self._driver = store, bus, driver

    async def end(self) -> int:
        """Ends all of them; returns how many there were.

        A request that NATS still has is handled again (docs/adr/0024): to be called when that has been done.
        """
        lost, batch = 0, list[tuple[str, RunAccepted]]()
        async for subject, body in self._bus.stored("EVENTS", subjects.events("run.accepted")):
            _, tenant, *_ = subjects.parse(subject)
            batch.append((tenant, RunAccepted.model_validate_json(body)))
            if len(batch) == _AT_ONCE:
                lost, batch = lost + await self._end_those(batch), []
        return lost + await self._end_those(batch)

    async def _end_those(self, accepted: list[tuple[str, RunAccepted]]) -> int:
        return sum(await asyncio.gather(*(self._end_one(tenant, run) for tenant, run in accepted)))

    async def _end_one(self, tenant: str, accepted: RunAccepted) -> bool:
        run = accepted.run_id
        if await self._bus.last_body("EVENTS", subjects.event(tenant, run, "run.finished")) is not None:
            return False
        if await self._store.load_state(tenant, run) is not None:
            return False
        await self._bus.publish(subjects.cancelled(tenant, run), b"")
        shown = await last_sent(self._bus, tenant, run)
        outbox = Outbox(self._bus, tenant, run, 0, live=True, fence=shown.fence + 1)
        await outbox.follow()
        await self._driver.failed(outbox, tenant, run, accepted.agent, _LOST)
        return True
