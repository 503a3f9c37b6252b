"""So much of each tenant's work at once, and the rest waits."""

import asyncio
from weakref import WeakValueDictionary

__all__ = ["Gates"]


class Gates:
    """A gate for each tenant: one whose provider hangs holds up its own work, and nobody else's."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._gates = WeakValueDictionary[str, asyncio.Semaphore]()

    def of(self, tenant: str) -> asyncio.Semaphore:
        """The gate of a tenant; it is there for as long as somebody has it."""
        gate = self._gates.get(tenant)
        if gate is None:
            gate = self._gates[tenant] = asyncio.Semaphore(self._places)
        return gate
