"""Does the jobs of the index: what could not be done because a store was down is done when it is back."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from procession_schemas.messages import Message
from procession_services.memory.core.times import to_millis
from procession_services.memory.ports import EmbedderChangedError, MessageStore, VectorsUnavailableError
from procession_services.memory.recall import (
    BATCH,
    EmbeddingError,
    Entry,
    IndexRef,
    Recall,
    entry_of,
)
from procession_services.runtime.words import number_of

__all__ = ["Indexer", "submit_all"]

log = logging.getLogger(__name__)
ATTEMPTS: Final = 5
"""How often a job is tried that fails."""
PATIENCE: Final = 720
"""How often an embedder that is away or busy is asked for the vectors of a job: for an hour."""
_PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
_PAGE: Final = 200
_DERIVED: Final = "mastra_memory_"


class Indexer:
    """What a replica does for the index."""

    def __init__(
        self,
        recall: Recall,
        store: MessageStore,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._recall, self._store, self._pause = recall, store, pause

    async def finish(self, job: dict[str, Any]) -> bool:
        """Does a job, or gives up on one that cannot be done; waits as long as the vector store is down.

        It waits an hour for an embedder that is away, which may just be unable to do with a certain text.

        True: either way it is not to be done again.
        """
        failures = waits = 0
        while True:
            try:
                await self.work(job)
            except Exception as error:  # noqa: BLE001 - whatever ails a store must not end the worker
                if _will_pass(error, waits):
                    if not waits:
                        log.warning("indexing for semantic recall is paused: %s", error)
                    waits += 1
                else:
                    failures += 1
                    if failures >= ATTEMPTS or isinstance(error, EmbedderChangedError):
                        _give_up(job, error)
                        return True
            else:
                if waits:
                    log.warning("indexing for semantic recall resumes")
                return True
            await self._pause(_PAUSES[min(failures + waits, len(_PAUSES)) - 1])

    async def work(self, job: dict[str, Any]) -> None:
        """Does one job.

        Raises:
            VectorsUnavailableError, EmbedderChangedError, EmbeddingError: It cannot be done, or not now.
        """
        match job["kind"]:
            case "upsert":
                await self._upsert(job)
            case "delete":
                await self._delete(job["tenant"], job["resource"], job["thread"], job["messages"])
            case "reindex":
                await self._reindex(job["tenant"], job.get("embedder"))
            case kind:
                log.warning(
                    "skipping an index job of unknown kind %r; does a replica run another version?", kind
                )

    async def _upsert(self, job: dict[str, Any]) -> None:
        tenant, resource, thread, index = job["tenant"], job["resource"], job["thread"], job["index"]
        ref = IndexRef(tenant, index["name"], index["embedder"], index["options"])
        entries = [Entry(**entry) for entry in job["entries"]]
        await self._recall.index(ref, entries)
        removed = await self._removed(tenant, resource, thread, entries)
        if removed != []:
            await self._delete(tenant, resource, thread, removed)

    async def _removed(
        self, tenant: str, resource: str, thread: str, entries: Sequence[Entry]
    ) -> list[str] | None:
        """Which of these messages are gone; None: the thread is.

        Their removal is a job, too, which another replica may have done meanwhile. What is missing, but not older than
        all that is there, may be saved soon.
        """
        page = await self._store.messages(tenant, thread, resource, page=0, per_page=1)
        if page is None:
            return None
        since = min((to_millis(message["createdAt"]) for message in page.items), default=0)
        older = [entry.id for entry in entries if to_millis(entry.metadata["created_at"]) < since]
        there = await self._store.find(tenant, thread, resource, older) if older else []
        return [each for each in older if each not in {message["id"] for message in there}]

    async def _delete(self, tenant: str, resource: str, thread: str, messages: list[str] | None) -> None:
        """Removes a thread, or messages of it; what is stored of these is queued anew.

        It has come meanwhile, such as a backup of the thread, and another replica may have indexed it already.
        """
        await self._recall.vectors.delete(tenant, resource, thread, messages)
        refs = await self._recall.indexes(tenant)
        if messages is None:
            await self._queue_thread(refs, tenant, resource, thread)
        elif again := await self._store.find(tenant, thread, resource, messages):
            await submit_all(self._recall, refs, resource, thread, again)

    async def _reindex(self, tenant: str, embedder: str | None) -> None:
        """Empties every index of a tenant and queues all of its messages.

        Those that agents use are filled, too, where they are gone: whoever began this before may have got no further.
        """
        names = [name for name in await self._recall.vectors.drop(tenant) if not name.startswith(_DERIVED)]
        used = await self._recall.indexes(tenant, embedder)
        asked = [ref.name for ref in used if embedder is not None and ref.name is not None]
        refs = [ref for ref in used if ref.name not in asked]
        known = {ref.name for ref in refs}
        refs += [
            IndexRef(tenant, name, embedder) for name in dict.fromkeys([*asked, *names]) if name not in known
        ]
        async for resource, thread in self._store.every_thread(tenant):
            await self._queue_thread(refs, tenant, resource, thread)

    async def _queue_thread(self, refs: list[IndexRef], tenant: str, resource: str, thread: str) -> None:
        """Queues the newest messages first: what retention removes of the oldest meanwhile moves no other one."""
        skip = 0
        while found := await self._store.recent(tenant, thread, resource, _PAGE, skip=skip):
            skip += len(found)
            await submit_all(self._recall, refs, resource, thread, found)


async def submit_all(
    recall: Recall, refs: Sequence[IndexRef], resource: str, thread: str, messages: Sequence[Message]
) -> None:
    """Queues messages of a thread for these indexes."""
    entries = [entry for message in messages if (entry := entry_of(message, resource, thread))]
    for start in range(0, len(entries), BATCH):
        for ref in refs:
            await recall.submit(ref, resource, thread, entries[start : start + BATCH])


def _will_pass(error: Exception, waits: int) -> bool:
    """Whether what ails a job is waited for, after so many times."""
    away = isinstance(error, EmbeddingError) and error.retryable
    return isinstance(error, VectorsUnavailableError) or (away and waits < PATIENCE)


def _give_up(job: dict[str, Any], error: Exception) -> None:
    known = isinstance(error, EmbedderChangedError | EmbeddingError)
    size = number_of(len(job.get("entries", ())), "message")
    what = f"an index job ({job.get('kind')}, {size}) of tenant {job.get('tenant')} was given up"
    told = str(error) if known else "unexpected error"
    log.error(
        "%s: %s; repair the index with `procession memory reindex`",
        what,
        told,
        exc_info=None if known else error,
    )
