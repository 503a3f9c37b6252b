"""Whose turn it is in a thread, where a request does not want two runs on it at once: queue, reject or interrupt."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from procession.args import AbortSignal
from procession.errors import ProcessorError
from procession_schemas.memory import Concurrency

__all__ = ["TurnStore", "Turns"]

_LOOK_SECONDS: Final = 0.05
RunAsk = Callable[[str, str], Awaitable[bool]]
RunTell = Callable[[str, str], Awaitable[None]]


class TurnStore(Protocol):
    """Who is at work on a thread, and who waits, first come first served."""

    async def take(self, tenant: str, resource: str, thread: str, run: str) -> str | None:
        """Takes the turn, or a place in the queue; gives the run that is in the way, None where it is our turn."""

    async def leave(self, tenant: str, resource: str, thread: str, run: str) -> None:
        """Takes a run out of the turn and out of the queue."""


class Turns:
    """Lets runs on one thread work one after another.

    A turn ends with its run, however that ends, and where it is suspended: nobody has to give it back.

    Args:
        store: Who is at work.
        running: Whether a run (tenant, id) is at work: not ended, not waiting for a person.
        cancel: Cancels a run.
    """

    def __init__(self, store: TurnStore, running: RunAsk, cancel: RunTell) -> None:
        self._store, self._running, self._cancel = store, running, cancel

    async def begin(
        self,
        tenant: str,
        resource: str,
        thread: str,
        run: str,
        *,
        policy: Concurrency,
        abort_signal: AbortSignal,
    ) -> bool:
        """Returns when it is this run's turn, or it is cancelled while it waits; tells whether another one was here.

        Raises:
            ProcessorError: Another run is at work, and the policy is `reject`.
        """
        where = (tenant, resource, thread)
        told: set[str] = set()
        waited = False
        while (other := await self._store.take(*where, run)) is not None:
            if abort_signal.aborted:
                await self._store.leave(*where, run)
                return waited
            if not await self._running(tenant, other):
                await self._store.leave(*where, other)
                continue
            waited = True
            if policy == "reject":
                await self._store.leave(*where, run)
                raise _busy(thread, other)
            if policy == "interrupt" and other not in told:
                told.add(other)
                await self._cancel(tenant, other)
            await asyncio.sleep(_LOOK_SECONDS)
        return waited


def _busy(thread: str, other: str) -> ProcessorError:
    message = (
        f"run {other} is at work on thread {thread!r}; wait for it, or ask with memory.concurrency: queue"
    )
    return ProcessorError(
        message, processor_id="memory", hook="processInput", code="THREAD_BUSY", name="ThreadBusyError"
    )
