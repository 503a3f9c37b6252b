"""Answers clients that have heard nothing of their run: whether there is anything of it."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from procession_schemas import subjects
from procession_schemas.run_ids import asked_id, derived_id
from procession_services.bus import Bus
from procession_services.runs.stored import UnreadableError
from procession_services.runtime.store import RunStore

__all__ = ["Known"]

_EVENTS: Final = ("run.accepted", "run.finished", "request.rejected")
_OF_RUNNING: Final = ("run.accepted", "run.suspended")
_REQUESTS: Final = 1_024
_BYTES: Final = 4 * 1024 * 1024
"""So much is read of what a tenant has in RUNS, to find the request of a run."""


class Known:
    """Looks for a run where it may be: in RUNS, in Redis, in EVENTS, in the order in which it gets there.

    `again` publishes once more what follows from the state of a run.
    """

    def __init__(self, store: RunStore, bus: Bus, again: Callable[[str, str], Awaitable[None]]) -> None:
        self._store, self._bus, self._again = store, bus, again

    async def knows(self, tenant: str, run: str, request: int | None) -> tuple[bool, int | None]:
        """Whether there is something of the run, and the place of its request in RUNS while that is there.

        Who knows that place tells it (`request`); else it is looked for. Where there is nothing, nothing will come:
        nobody asked for such a run, or NATS and Redis have both come back without their data.

        A run may wait for a person for longer than EVENTS keeps that it does; then it is told again.
        """
        if request is None:
            request = await self._request(tenant, run)
        elif not await self._bus.stored.may_hold("RUNS", request):
            request = None
        if request is not None:
            return True, request
        if await self._store.load_state(tenant, run) is not None:
            if not await self._is_told(tenant, run, _OF_RUNNING):
                with suppress(UnreadableError):
                    await self._again(tenant, run)
            return True, None
        return await self._is_told(tenant, run, _EVENTS), None

    async def _is_told(self, tenant: str, run: str, events: tuple[str, ...]) -> bool:
        """Whether EVENTS has one of these events of a run."""
        for event in events:
            if await self._bus.stored.last_event(tenant, run, event) is not None:
                return True
        return False

    async def _request(self, tenant: str, run: str) -> int | None:
        """The place in RUNS of the first request for a run, among the oldest ones of the tenant that are there."""
        read = size = 0
        async for message in self._bus.stored.whole("RUNS", subjects.runs(tenant)):
            body, headers = message.data or b"", message.headers or {}
            if run == (asked_id(body) or derived_id(headers.get("Nats-Msg-Id"), message.seq)):
                return int(message.seq)
            read, size = read + 1, size + len(body)
            if read == _REQUESTS or size > _BYTES:
                break
        return None
