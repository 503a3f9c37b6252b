"""What the sender of a run request is told."""

import asyncio

from procession_schemas.events import RequestRejected, RunAccepted
from procession_schemas.fingerprint import fingerprint
from procession_schemas.run import Failure
from procession_services.bus import Delivery
from procession_services.orchestrator.lapses import Lapses
from procession_services.orchestrator.limits import refusal
from procession_services.orchestrator.places import PlaceKeeper
from procession_services.processor_host.driver import Driver
from procession_services.processor_host.outbox import Outbox
from procession_services.processor_host.service import Host
from procession_services.runs.state import RunState
from procession_services.runs.stored import read_state
from procession_services.runtime import telemetry
from procession_services.runtime.admission import Over
from procession_services.runtime.clock import iso, now
from procession_services.runtime.run_records import Admission
from procession_services.runtime.store import ANSWER_SECONDS

__all__ = ["Answers"]


class Answers:
    """Tells that a run was accepted, or why not."""

    def __init__(self, host: Host, driver: Driver, keeper: PlaceKeeper, lapses: Lapses) -> None:
        self._driver, self._keeper, self._lapses = driver, keeper, lapses
        self._bus, self._store, self._settings = host.bus, host.store, host.settings

    async def accepted(self, state: RunState, key: str, *, once: bool = False) -> None:
        """Tells that a run was accepted, once for each `key`, and with `once` not again."""
        event = RunAccepted(
            run_id=state.run,
            agent=state.agent,
            message_id=state.message_id,
            at=state.accepted_at,
            fingerprint=state.fingerprint,
            stream=state.plan.stream,
        )
        await self._driver.tell(state.tenant, event, key, once=once)

    async def known(self, known: Admission, asked: RunState, delivery: Delivery) -> bool:
        """Answers a request whose id is taken; `asked` is the run it would have begun. Returns what `repeated` does."""
        if known.state is not None:
            state = read_state(known.state.state, known.state.plan)
            return await self.repeated(state, asked.fingerprint, delivery)
        if known.told == asked.fingerprint:
            await self._accepted_again(asked, delivery)
        else:
            await self.conflict(asked.tenant, asked.run, delivery)
        return False

    async def repeated(self, state: RunState, digest: str, delivery: Delivery) -> bool:
        """The same id again: the same run for the same body, a conflict for another (design.md 3).

        Says whether it is that run, which Redis may not have written yet: who admitted it may have died.
        """
        if state.fingerprint == digest:
            await self._accepted_again(state, delivery)
            await self._driver.again(state.tenant, state.run)
            return True
        await self.conflict(state.tenant, state.run, delivery)
        return False

    async def _accepted_again(self, state: RunState, delivery: Delivery) -> None:
        """Whoever sends a request again is answered again; one that is delivered again has had its answer, mostly."""
        await self.accepted(state, str(delivery.sequence), once=delivery.attempt > 1)

    async def conflict(self, tenant: str, run_id: str, delivery: Delivery) -> None:
        """The id belongs to another request."""
        text = f"run {run_id} already exists with a different request; use a new runId for a new request"
        error = Failure(code="RUN_ID_CONFLICT", message=text, field="runId")
        await self.reject(tenant, run_id, delivery, error)

    async def over_limit(self, tenant: str, run_id: str, delivery: Delivery, over: Over) -> None:
        """Nothing is kept of a request above a limit, so the same one may come again."""
        telemetry.observer().request_rejected(tenant, over.limit)
        limits, waiting = self._keeper.tenants.of(tenant), self._settings.waiting_runs
        await self.reject(tenant, run_id, delivery, refusal(tenant, limits, waiting, over))

    async def reject(self, tenant: str, run_id: str, delivery: Delivery, error: Failure) -> None:
        """Tells why there is no such run."""
        event = RequestRejected(run_id=run_id, at=iso(now()), error=error, sequence=delivery.sequence)
        await self._driver.tell(tenant, event, str(delivery.sequence))

    async def refuse(
        self, tenant: str, run_id: str, agent: str, delivery: Delivery, failure: Failure
    ) -> None:
        """Answers a request that cannot run: an error chunk and the terminal event."""
        digest = fingerprint(delivery.subject, delivery.body)
        async with asyncio.timeout(ANSWER_SECONDS):
            known = await self._store.refuse(tenant, run_id, digest)
        if known.state is not None:
            await self.repeated(read_state(known.state.state, known.state.plan), digest, delivery)
            return
        if known.told == digest:
            return  # the same request again; its end can still be read
        if known.told is not None or known.refused not in (None, digest):
            await self.conflict(tenant, run_id, delivery)
            return
        if known.refused is not None and await self._lapses.ended(tenant, run_id) is not None:
            return  # refused before, for whatever reason; it was told then
        outbox = Outbox(self._bus, tenant, run_id, 0, live=True)
        await self._driver.failed(outbox, tenant, run_id, agent, failure, fingerprint=digest)
