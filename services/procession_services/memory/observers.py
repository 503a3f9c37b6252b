"""Makes notes behind the runs' back: a queue of threads that have become long, worked off by all replicas (R-OM-2)."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from procession.services import ModelAnswer, ModelCallError
from procession_schemas.memory import ObservationalConfig
from procession_services.memory import lanes
from procession_services.memory.core.observed import Condensed, Observed, Piece
from procession_services.memory.lanes import Lanes
from procession_services.memory.notebook import SECONDS, Ask, Notebook
from procession_services.memory.ports import MessageStore

__all__ = ["Observers"]

log = logging.getLogger(__name__)
_AT_ONCE: Final = 8
"""Threads of one tenant that one replica has noted at the same time."""


class Jobs(lanes.Jobs, Protocol):
    """The queue of threads."""

    async def put(self, job: dict[str, Any]) -> None:
        """Stores a job."""


class Locks(Protocol):
    """Keeps two observers from one place."""

    def hold(self, *place: str | None, wait: float = 0) -> AbstractAsyncContextManager[bool]:
        """Holds the lock of a place; False where another one has it after `wait` seconds."""


class Observers:
    """One replica's observers.

    What is to be done is read from the notes and messages themselves, so a job that is done twice, too late or not at
    all does no harm: the next run of the thread queues it again.

    Args:
        store: Messages and notes.
        jobs: The queue.
        locks: One observer at a time for each notebook.
        generate: Asks a model for a tenant.
        wait: Seconds that an observer waits for another one of the same notes.
    """

    def __init__(
        self,
        store: MessageStore,
        jobs: Jobs,
        locks: Locks,
        generate: Callable[..., Awaitable[ModelAnswer]],
        *,
        wait: float = SECONDS,
    ) -> None:
        self._store, self._jobs, self._locks, self._generate = store, jobs, locks, generate
        self._wait = wait

    async def submit(self, book: Notebook) -> None:
        """Has notes made ahead for a thread."""
        names = {*ObservationalConfig.model_fields}
        options = book.options.model_dump(by_alias=True, exclude_unset=True, include=names)
        await self._jobs.put(
            {"tenant": book.tenant, "resource": book.resource, "thread": book.thread, "options": options}
        )

    def alone(self, book: Notebook) -> AbstractAsyncContextManager[bool]:
        """Keeps other observers from a notebook; False where one is at work for too long."""
        return self._locks.hold(*book.home, wait=self._wait)

    async def run(self) -> None:
        """Works until it is cancelled; what is not done then is done by another replica."""
        await Lanes(self._jobs, self._done, at_once=_AT_ONCE).run()

    async def _done(self, job: dict[str, Any]) -> bool:
        """Whether a job is done, or given up."""
        try:
            return await self.work(job)
        except ModelCallError:
            log.warning(
                "no notes were made for tenant %s: the observer failed or returned nothing", job.get("tenant")
            )
        except Exception as error:  # noqa: BLE001 - the next run of the thread queues it again
            log.warning("no notes were made for tenant %s: %s", job.get("tenant"), type(error).__name__)
        return True

    async def work(self, job: dict[str, Any]) -> bool:
        """Makes all notes that a thread wants ahead; False where another one is at work on it for too long.

        Raises:
            ModelCallError: A model gives none.
        """
        options = ObservationalConfig.model_validate(job["options"])
        book = Notebook(self._store, job["tenant"], job["resource"], job["thread"], options)
        async with self.alone(book) as alone:
            if alone and await self._store.get_thread(book.tenant, book.thread, book.resource) is not None:
                await self._work(book, partial(self._generate, tenant=book.tenant))
            return alone

    async def _work(self, book: Notebook, ask: Ask) -> None:
        await book.change(_begun)
        while True:
            observed, messages = await book.load()
            if book.wants_notes(observed, messages):
                piece = await book.observe(ask, observed, book.unseen(observed, messages))
                await book.change(partial(_add, piece, observed.seen(book.thread)))
            elif book.wants_shortening(observed):
                made = await book.condense(ask, observed)
                await book.change(partial(_keep, made, observed.notes))
            else:
                return


def _begun(observed: Observed) -> Observed | None:
    """Stores notes where none are, so that it shows when the thread is deleted while it is noted."""
    return None if observed.stored else observed


def _add(piece: Piece, seen: str, observed: Observed) -> Observed | None:
    """Adds notes unless the thread was deleted meanwhile, or noted by others."""
    return observed.with_piece(piece) if observed.stored and observed.seen(piece.thread) == seen else None


def _keep(made: Condensed, notes: str, observed: Observed) -> Observed | None:
    """Keeps shorter notes unless those that they were made from are no longer there."""
    return replace(observed, condensed=made) if observed.notes.startswith(notes) else None
