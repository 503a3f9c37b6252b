"""Applies controls from people, and deadlines, to runs."""

import logging
from collections.abc import Awaitable, Callable

from pydantic import ValidationError

from procession.json_values import NotJsonError, given
from procession_schemas.validation import misfit
from procession_schemas.work import Control, WorkResult
from procession_services.bus import Delivery, HopelessError
from procession_services.orchestrator.addressed import addressed
from procession_services.orchestrator.lapses import Lapses
from procession_services.orchestrator.turns import AT_ONCE, Turns
from procession_services.processor_host.driver import Driver
from procession_services.processor_host.service import Host
from procession_services.runs.events import DeadlinePassed
from procession_services.runtime.clock import seconds
from procession_services.runtime.redis_client import UNANSWERED
from procession_services.runtime.redis_refusals import NotAllowedError

__all__ = ["Orchestrator"]

log = logging.getLogger(__name__)


class Orchestrator:
    """Handles what happens to runs that were accepted. Any replica handles any event."""

    def __init__(self, host: Host, driver: Driver, lapses: Lapses) -> None:
        self._driver, self._lapses = driver, lapses
        self._turns = Turns(AT_ONCE)
        self._store, self._begun = host.store, host.begun

    async def on_work(self, delivery: Delivery) -> None:
        """An answer that nobody took into the run yet: a host of another kind gave it, or one gave up."""
        result = WorkResult.from_json(delivery.body)
        await self._patiently(delivery, lambda: self._driver.event(result.tenant, result.run, result))

    async def on_control(self, delivery: Delivery) -> None:
        """A person cancels or resumes. Tenants take turns.

        Raises:
            HopelessError: Its subject names no run, or its body is not a control.
        """
        tenant, run = addressed(delivery)
        try:
            control = Control.model_validate_json(delivery.body)
            given(control.resume_data, "resumeData")
        except ValidationError as error:
            raise HopelessError(f"the control message cannot be read: {misfit(error).message}") from error
        except NotJsonError as error:
            raise HopelessError(f"the control message cannot be read: {error}") from error
        kept = False
        while not kept:
            await self._patiently(delivery, lambda: self._controlled(delivery, tenant, run, control))
            kept = await self._lapses.kept()

    async def _patiently(self, delivery: Delivery, take: Callable[[], Awaitable[object]]) -> None:
        """Takes something into a run, for as long as Redis is away, or refuses us.

        Of what would be in DEAD then nobody would hear.
        """
        while True:
            try:
                await take()
            except (*UNANSWERED, NotAllowedError) as error:
                log.warning("the message on %s waits for Redis: %s", delivery.subject, error)
                await delivery.hold.keep()
            else:
                return

    async def _controlled(self, delivery: Delivery, tenant: str, run: str, control: Control) -> None:
        with await self._turns.turn(tenant):
            async with self._begun.counted(delivery.place, delivery.attempt):
                if control.type == "cancel":
                    await self._store.mark_cancelled(tenant, run)
                await self._driver.event(tenant, run, control)

    async def on_deadline(self, tenant: str, run: str) -> None:
        """A run's time is up."""
        if not await self._driver.event(tenant, run, DeadlinePassed(int(seconds() * 1000))):
            await self._driver.begin(await self._store.forget(tenant, run))

    async def give_up(self, _delivery: Delivery, _reason: str) -> None:
        """Does nothing: what could not be applied to a run is in DEAD."""
