"""What clients ask who have heard nothing of their run for a while: whether anything is left of it."""

from typing import Final

from procession_schemas import subjects
from procession_services.bus import Bus
from procession_services.runtime.store import RunStore

__all__ = ["Known"]

_EVENTS: Final = ("run.accepted", "run.finished", "request.rejected")


class Known:
    """Looks for a run where it may be: in RUNS, in Redis, in EVENTS, in the order in which it gets there."""

    def __init__(self, store: RunStore, bus: Bus) -> None:
        self._store, self._bus = store, bus

    async def knows(self, tenant: str, run: str, request: int | None) -> bool:
        """Whether something of the run is left; `request` is the place of its request in RUNS, where that is known.

        What is left of none will never end: NATS and Redis have both come back without their data.
        """
        if request is not None and await self._bus.stored.may_hold("RUNS", request):
            return True
        if await self._store.load_state(tenant, run) is not None:
            return True
        for event in _EVENTS:
            if await self._bus.stored.last_body("EVENTS", subjects.event(tenant, run, event)) is not None:
                return True
        return False
