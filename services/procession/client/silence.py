"""When a client that hears nothing asks whether its run is still known, and when it believes that it is not."""

import math
from collections.abc import Awaitable, Callable
from typing import Final

__all__ = ["Silence"]

_ASKED_SECONDS: Final = 10.0
_TIMES: Final = 2
"""So often nobody must know the run: a system that has just come back may be about to."""


class Silence:
    """Adds up how long nothing was heard of a run."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._unknown = 0
        self._ends: float | None = None

    def left(self, now: float, patience: float) -> float:
        """Seconds until it has lasted for as long as that: for whoever waits for moments, too, again and again."""
        self._ends = min(self._ends or math.inf, now + patience)
        return max(0.0, self._ends - now)

    def broken(self) -> None:
        """Notes that something was heard."""
        self._seconds, self._unknown, self._ends = 0.0, 0, None

    async def is_borne(self, seconds: float, known: Callable[[], Awaitable[bool]]) -> bool:
        """Notes that nothing was heard for further seconds; False when nobody knows the run any more."""
        self._seconds, self._ends = self._seconds + seconds, None
        if self._seconds >= _ASKED_SECONDS:
            self._seconds = 0.0
            self._unknown = 0 if await known() else self._unknown + 1
        return self._unknown < _TIMES
