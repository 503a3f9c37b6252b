"""Tells whoever works here on a run that it was cancelled."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from procession.args import AbortSignal
from procession_services.runtime.lasting import Lasting
from procession_services.runtime.store import RunStore

LEAVE_SECONDS: Final = 5.0
"""How long what a run has begun may go on after it was cancelled: hooks, calls of tools, a provider's answer."""


class Cancels:
    """The abort signals of the runs that are worked on in this process; `listeners` hear of every cancelled run."""

    def __init__(self, store: RunStore) -> None:
        self.listeners: list[Callable[[str, str], None]] = []
        self._store = store
        self._signals: dict[tuple[str, str], list[AbortSignal]] = {}
        self._lately: dict[tuple[str, str], float] = {}

    def watched(self, tenant: str, run: str) -> Lasting[AbortSignal]:
        """The signal that fires when the run is cancelled during a block."""
        key, signal = (tenant, run), AbortSignal()
        if key in self._lately:  # a command that was handed over may come behind that
            signal.abort()
        self._signals.setdefault(key, []).append(signal)
        return Lasting(signal, partial(self._forget, key, signal))

    def _forget(self, key: tuple[str, str], signal: AbortSignal) -> None:
        signals = self._signals[key]
        signals.remove(signal)
        if not signals:
            del self._signals[key]

    def cancel(self, tenant: str, run: str) -> None:
        """Fires the signals of a run, and tells whoever else wants to know."""
        self._lately[tenant, run] = asyncio.get_running_loop().time()
        for listener in self.listeners:
            listener(tenant, run)
        for signal in self._signals.get((tenant, run), ()):
            signal.abort()

    async def look(self) -> None:
        """Fires the signals of runs that were cancelled while nobody could tell us."""
        oldest = asyncio.get_running_loop().time() - LEAVE_SECONDS
        self._lately = {key: moment for key, moment in self._lately.items() if moment > oldest}
        going = [key for key, signals in self._signals.items() if not all(s.aborted for s in signals)]
        cancelled = await asyncio.gather(*(self._store.is_cancelled(*key) for key in going))
        for (tenant, run), told in zip(going, cancelled, strict=True):
            if told:
                self.cancel(tenant, run)
