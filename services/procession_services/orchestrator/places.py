"""Keeps the number of places as configured, begins runs that nobody else has begun, and reports how full it is."""

from typing import Final

from procession_services.processor_host.driver import Driver
from procession_services.runtime import telemetry
from procession_services.runtime.admission import Places
from procession_services.runtime.reload import Watched
from procession_services.runtime.tasks import repeated
from procession_services.runtime.tenants import Tenants

_EVERY_SECONDS: Final = 5.0


class PlaceKeeper:
    """Sees to it now and then that places are given out by the limits that hold now.

    Args:
        places: Where they are.
        driver: Begins runs.
        tenants: The limits; what they say when they are looked at counts.
        otherwise: How many places there are while no gateway says how many it has.
    """

    def __init__(self, places: Places, driver: Driver, tenants: Watched[Tenants], otherwise: int) -> None:
        self._tenants = tenants
        self._places, self._driver, self._otherwise = places, driver, otherwise

    @property
    def tenants(self) -> Tenants:
        """The limits that hold now."""
        return self._tenants.value

    async def run(self) -> None:
        """Looks every few seconds, until it is cancelled."""
        await repeated("giving out places for runs", _EVERY_SECONDS, self.look)

    async def look(self) -> None:
        """Says how many places there are, and begins the runs that get one.

        There are as many as the gateways can work on: more would only queue up in front of them, without turns. While
        no gateway is there, there are as many as one would have, so that work is at hand when it comes.
        """
        offered = await self._places.offered()
        named = {name: limits.concurrent_runs for name, limits in self.tenants.named.items()}
        by_default = self.tenants.default.concurrent_runs
        called = await self._places.let_in(
            in_all=offered or self._otherwise, by_default=by_default, named=named
        )
        await self._driver.begin(called)
        if telemetry.observer().metered:
            queues = await self._places.queues()
            telemetry.observer().queues(queues.running, queues.waiting)
