"""What a conversation has loaded: names in the tenant's store, in order, for as long as they are used."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pydantic import Field

from procession.processor import Options
from procession.services import KeyValueStore, book_keys
from procession_services.processors.core.names import numbered, ordered

__all__ = ["KeptOptions", "LoadedNames", "scope_of"]


class _Run(Protocol):
    run_id: str
    request_context: Any


def scope_of(args: _Run) -> str:
    """Whose names these are: those of a resource's thread, or the run's where the request names no thread (D-80, D-86).

    The reference keeps one set for all requests without a thread, and for all threads of one id, so one caller sees
    what another one loaded.
    """
    thread = book_keys(args.request_context, args.run_id).get("thread")
    return f"thread:{thread}" if thread else f"run:{args.run_id}"


class KeptOptions(Options):
    """How long names are kept."""

    ttl: float = Field(
        default=3_600_000, description="Milliseconds that the set of an unused thread is kept; 0: for ever."
    )

    @property
    def ttl_seconds(self) -> float | None:
        """The same in seconds; None: for ever."""
        return self.ttl / 1000 if self.ttl > 0 else None


class LoadedNames:
    """One set of names. Calls of the same step may add to it at the same time.

    Args:
        store: The tenant's store.
        now: Tells the time, in seconds since the epoch.
        owner: Id of the processor: where the set's key begins, so that a scope cannot reach another one's.
        scope: Whose names these are.
        ttl: Seconds that an unused set is kept; None: for ever.
    """

    def __init__(
        self, store: KeyValueStore, now: Callable[[], float], owner: str, scope: str, ttl: float | None
    ) -> None:
        self._store = store
        self._now = now
        self._key = f"{owner}:{scope}"
        self._ttl = ttl

    async def names(self) -> list[str]:
        """The names, in the order of loading; reading renews the set."""
        members = await self._store.members(self._key)
        if members:
            await self._store.insert(self._key, *members, ttl=self._ttl)
        return ordered(members)

    async def add(self, names: Iterable[str]) -> None:
        """Adds names behind those that are there."""
        members = numbered(self._now(), names)
        if members:
            await self._store.insert(self._key, *members, ttl=self._ttl)

    async def keep(self, names: Iterable[str]) -> None:
        """Keeps only these names."""
        await self._store.delete(self._key)
        await self.add(names)
