"""Finding messages by their meaning: questions are answered at once, indexing waits in a queue."""

import asyncio
import hashlib
import json
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from procession_schemas.messages import Message
from procession_services.memory.core.recall_text import indexed_text
from procession_services.memory.ports import Embedded, Hit, Index, VectorStore
from procession_services.runtime.gates import Gates

__all__ = [
    "DEFAULT_INDEX", "Embedder", "EmbeddingError", "Entry", "IndexQueue", "IndexRef", "Recall", "default_index_name",
    "entry_of",
]  # fmt: skip

log = logging.getLogger(__name__)
DEFAULT_INDEX: Final = "messages"
"""The index of agents that say nothing about it (R-WIRE-8)."""
CACHED: Final = 1000
"""Embeddings that a process keeps (R-SEM-12)."""
BATCH: Final = 32
"""Texts of one call of an embedder."""
LONGEST: Final = 6000
"""Characters of a text that count; embedders take no more, and a batch must fit into a message of the broker, and into
a request of Chroma's."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_]")
_NAME_LENGTH: Final = 63


class EmbeddingError(Exception):
    """An embedder gave no vectors; the message says why.

    Attributes:
        retryable: Whether it may later, since it is away or busy.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class Embedder(Protocol):
    """Makes vectors of texts; `id` names the model, and vectors of one id can be compared."""

    id: str

    async def embed(self, texts: Sequence[str], *, tenant: str) -> list[list[float]]:
        """A vector for each text, all of one length; raises EmbeddingError."""


Embedders = Callable[[str | None, dict[str, Any]], Embedder]
"""The embedder of a name (None: the configured one) and its options; raises EmbeddingError for an unknown name."""


@dataclass(frozen=True, slots=True)
class IndexRef:
    """The index that a processor means: None stands for the derived name, and for the configured embedder."""

    tenant: str
    name: str | None = None
    embedder: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """A message to be indexed: its id, the text to find it by, and what is kept with it (R-SEM-11)."""

    id: str
    text: str
    metadata: dict[str, str]


def entry_of(message: Message, resource: str, thread: str) -> Entry | None:
    """How a message of a thread is indexed, by the beginning of its text; None where it is not."""
    text = indexed_text(message)[:LONGEST]
    if message["role"] == "system" or not text:
        return None
    metadata = {
        "message_id": message["id"],
        "thread_id": thread,
        "resource_id": resource,
        "role": message["role"],
        "content": text,
        "created_at": message["createdAt"],
    }
    return Entry(message["id"], text, metadata)


class IndexQueue(Protocol):
    """Work on the index that outlives a crash."""

    async def put(self, job: dict[str, Any]) -> None:
        """Stores a job (JSON) of `job["tenant"]`."""

    async def waiting(self, tenant: str) -> int:
        """How many jobs of a tenant are not done."""

    async def remember(self, tenant: str, name: str, ref: dict[str, Any]) -> None:
        """Keeps which index an agent of the tenant uses, in place of what was kept under this name."""

    async def remembered(self, tenant: str) -> list[dict[str, Any]]:
        """The indexes that agents of the tenant use."""


def default_index_name(embedder: str) -> str:
    """The name of an index that has none: the reference's, made of the embedder's id (R-SEM-3)."""
    return f"mastra_memory_{_UNSAFE.sub('_', embedder or 'default')}"[:_NAME_LENGTH]


class Recall:
    """What semantic recall does with embedders and vectors.

    Args:
        vectors: Where embeddings are kept.
        embedders: Finds embedders by name.
        queue: Takes what is to be indexed.
        concurrency: Calls of embedders at the same time, for one tenant.
        seconds: How long a search may take before the run goes on without it.
    """

    def __init__(
        self,
        vectors: VectorStore,
        embedders: Embedders,
        queue: IndexQueue,
        *,
        concurrency: int = 4,
        seconds: float = 5.0,
    ) -> None:
        self.vectors, self.queue = vectors, queue
        self._embedders, self._seconds = embedders, seconds
        self._gates = Gates(concurrency)
        self._cache: OrderedDict[str, list[float]] = OrderedDict()
        self._ensured: set[Index] = set()
        self._used: dict[tuple[str, str], dict[str, Any]] = {}

    def check(self, embedder: str) -> None:
        """Raises EmbeddingError where no embedder has that name; whether a provider knows its model shows later."""
        self._embedders(embedder, {})

    async def search(
        self, ref: IndexRef, text: str, *, top_k: int, resource: str, thread: str | None
    ) -> list[Hit]:
        """The nearest messages of a resource, or of one of its threads, best first.

        Raises:
            EmbeddingError: No vector of the text.
            VectorsUnavailableError: The store of vectors does not answer.
            EmbedderChangedError: The index was made with another embedder.
            TimeoutError: It took too long.
        """
        async with asyncio.timeout(self._seconds):
            embedder = self._embedders(ref.embedder, ref.options)
            [vector] = await self._vectors(ref, embedder, [text])
            await self._remember(ref)
            index = await self._open(ref, embedder, len(vector))
            try:
                return await self.vectors.query(index, vector, top_k=top_k, resource=resource, thread=thread)
            except BaseException:
                self._ensured.discard(index)
                raise

    async def submit(self, ref: IndexRef, resource: str, thread: str, entries: Sequence[Entry]) -> None:
        """Queues messages to be indexed."""
        told = [{"id": e.id, "text": e.text, "metadata": e.metadata} for e in entries]
        await self.queue.put(
            {
                "kind": "upsert",
                "tenant": ref.tenant,
                "resource": resource,
                "thread": thread,
                "index": {"name": ref.name, "embedder": ref.embedder, "options": ref.options},
                "entries": told,
            }
        )

    async def indexes(self, tenant: str, embedder: str | None = None) -> list[IndexRef]:
        """The indexes that agents of the tenant use; before any has, the default one, with this embedder."""
        used = await self.queue.remembered(tenant)
        return [IndexRef(tenant, **each) for each in used] or [IndexRef(tenant, DEFAULT_INDEX, embedder)]

    async def _remember(self, ref: IndexRef) -> None:
        """Keeps which embedder and options an index is used with: the last ones that have made a vector count.

        Of an embedder that there is not, whatever is saved later would be asked, in vain.
        """
        told = {"name": ref.name, "embedder": ref.embedder, "options": ref.options}
        key = ref.name or f"of {ref.embedder}"
        if self._used.get((ref.tenant, key)) != told:
            await self.queue.remember(ref.tenant, key, told)
            self._used[ref.tenant, key] = told

    async def forget(
        self, tenant: str, resource: str, thread: str, messages: Sequence[str] | None = None
    ) -> None:
        """Queues the removal of a thread, or of some of its messages."""
        told = None if messages is None else list(messages)
        await self.queue.put(
            {"kind": "delete", "tenant": tenant, "resource": resource, "thread": thread, "messages": told}
        )

    async def index(self, ref: IndexRef, entries: Sequence[Entry]) -> None:
        """Puts messages into the index; one that no vector can be made of is left out with a warning (R-SEM-11).

        Raises:
            EmbeddingError: There is a vector of none of them.
            VectorsUnavailableError, EmbedderChangedError: As `search`.
        """
        embedder = self._embedders(ref.embedder, ref.options)
        made = await self._made(ref, embedder, entries)
        if not made:
            return
        await self._remember(ref)
        index = await self._open(ref, embedder, len(made[0].vector))
        try:
            await self.vectors.upsert(index, made)
        except BaseException:
            self._ensured.discard(index)
            raise

    async def _made(self, ref: IndexRef, embedder: Embedder, entries: Sequence[Entry]) -> list[Embedded]:
        try:
            vectors: list[Any] = await self._vectors(ref, embedder, [entry.text for entry in entries])
        except EmbeddingError as error:
            if error.retryable or len(entries) == 1:
                raise
            vectors = [await self._one(ref, embedder, entry) for entry in entries]
            if not any(vectors):
                raise
        return [
            Embedded(entry.id, vector, entry.metadata)
            for entry, vector in zip(entries, vectors, strict=True)
            if vector
        ]

    async def _one(self, ref: IndexRef, embedder: Embedder, entry: Entry) -> list[float] | None:
        try:
            return (await self._vectors(ref, embedder, [entry.text]))[0]
        except EmbeddingError as error:
            if error.retryable:
                raise
            log.warning("message %s is not indexed: %s", entry.id, error)
            return None

    async def _vectors(self, ref: IndexRef, embedder: Embedder, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text, by its beginning; what is in the cache is not asked again."""
        texts = [text[:LONGEST] for text in texts]
        made_by = json.dumps([ref.tenant, embedder.id, ref.options], sort_keys=True)
        keys = [
            hashlib.sha256(f"{made_by}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()
            for text in texts
        ]
        known = {key: self._cache[key] for key in keys if key in self._cache}
        missing = dict.fromkeys(
            (key, text) for key, text in zip(keys, texts, strict=True) if key not in known
        )
        for start in range(0, len(missing), BATCH):
            batch = list(missing)[start : start + BATCH]
            async with self._gates.of(ref.tenant):
                made = await embedder.embed([text for _, text in batch], tenant=ref.tenant)
            known |= {key: vector for (key, _), vector in zip(batch, made, strict=True)}
        for key in keys:
            self._cache[key] = known[key]
            self._cache.move_to_end(key)
        while len(self._cache) > CACHED:
            self._cache.popitem(last=False)
        return [known[key] for key in keys]

    async def _open(self, ref: IndexRef, embedder: Embedder, dimension: int) -> Index:
        index = Index(ref.tenant, ref.name or default_index_name(embedder.id), embedder.id, dimension)
        if index not in self._ensured:
            await self.vectors.ensure(index)
            self._ensured.add(index)
        return index
