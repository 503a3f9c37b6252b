"""Embeddings in Chroma: over HTTP in a deployment, in this process and a directory in embedded mode.

Each tenant and index has a collection, and more of them as it grows: see `core/shards.py`. Their metadata record
embedder and dimension, their distance is cosine. Ids of entries are hashes of resource, thread and message, since a
message id is unique in its thread only. Chroma takes seconds to load, so it is imported when it is first needed, in a
thread.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from procession_services.memory.core.shards import FIRST, FULL, LEVELS, OWN, SHARE, shards
from procession_services.memory.ports import (
    Embedded,
    EmbedderChangedError,
    Hit,
    Index,
    VectorStore,
    VectorsUnavailableError,
)
from procession_services.memory.stores.directory_lock import DirectoryLock

__all__ = ["ChromaVectors"]

log = logging.getLogger(__name__)
_T = TypeVar("_T")
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")
_THREADS: Final = 8
_NEIGHBOURS: Final = 64
"""Links of a message in the index. With Chroma's 16 there may be no way to one that is like no other: it is not found,
in 3 of 100 indexes of 61 messages. Nor are 14 in 100 of thousands that are much alike (1 with 64). No search takes
longer."""
_WIDER: Final = 10
"""So many times as much is asked for where a thread may be found without a filter."""
_ANSWER_SECONDS: Final = 30.0
"""How long a server may say nothing. Chroma's client waits for ever, and its thread, as on a half-open connection."""
_REFUSALS: Final = frozenset({"InvalidArgumentError", "InvalidDimensionException", "DuplicateIDError"})


class ChromaVectors(VectorStore):
    """A `VectorStore` in Chroma; `connect` makes the client, and is called again where that failed."""

    def __init__(self, connect: Callable[[], Any], directory: DirectoryLock | None = None) -> None:
        self._connect, self._directory = connect, directory
        self._client: Any = None
        self._lock = asyncio.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="procession-chroma")
        self._collections: dict[tuple[Index, str], Any] = {}
        self._full: set[str | tuple[str, str]] = set()

    @classmethod
    def over_http(cls, url: str) -> "ChromaVectors":
        """A server, such as `http://chroma:8000`."""
        parts = urlsplit(url)

        def connect() -> Any:
            import chromadb  # noqa: PLC0415 - seconds
            import httpx  # noqa: PLC0415 - which comes along with it
            from chromadb.config import Settings  # noqa: PLC0415

            secure = parts.scheme == "https"
            host, port = parts.hostname or "127.0.0.1", parts.port or (443 if secure else 8000)
            # Its client asks before it can be told how long it may wait.
            scheme = "https" if secure else "http"
            httpx.get(f"{scheme}://{host}:{port}/api/v2/heartbeat", timeout=_ANSWER_SECONDS)
            client = chromadb.HttpClient(
                host=host, port=port, ssl=secure, settings=Settings(anonymized_telemetry=False)
            )
            for session in _sessions(client):
                session.timeout = _ANSWER_SECONDS
            return client

        return cls(connect)

    @classmethod
    def in_directory(cls, path: Path) -> "ChromaVectors":
        """A directory of this machine; one process may use it at a time."""

        def connect() -> Any:
            import chromadb  # noqa: PLC0415 - seconds
            from chromadb.config import Settings  # noqa: PLC0415

            return chromadb.PersistentClient(path=str(path), settings=Settings(anonymized_telemetry=False))

        return cls(connect, DirectoryLock(path))

    async def ensure(self, index: Index) -> None:
        """Implements `VectorStore.ensure`."""
        await self._run(lambda client: self._open(client, index, FIRST, fresh=True))

    async def upsert(self, index: Index, items: Sequence[Embedded]) -> None:
        """Implements `VectorStore.upsert`."""
        resources: dict[str, dict[str, Embedded]] = {}
        for item in items:  # by id, since Chroma refuses one twice
            resources.setdefault(item.metadata["resource_id"], {})[_id(item.metadata)] = item

        def put(client: Any) -> None:
            for resource, some in resources.items():
                self._put(client, index, resource, some)

        await self._run(put)

    async def query(
        self, index: Index, vector: Sequence[float], *, top_k: int, resource: str, thread: str | None
    ) -> list[Hit]:
        """Implements `VectorStore.query`."""
        there = await self._run(lambda client: self._there(client, index, resource, thread))

        def search(client: Any, level: int, name: str) -> list[Hit]:
            collection = self._open(client, index, name, make=False)
            if collection is None:  # dropped meanwhile
                return []
            ask = partial(_nearest, collection, vector)
            if level < OWN:
                return ask(top_k, _where(resource, thread))
            return ask(top_k, None) if thread is None else _of_thread(ask, top_k, thread)

        found = await asyncio.gather(
            *(self._run(partial(search, level=level, name=name)) for level, name in there)
        )
        return sorted(chain.from_iterable(found), key=lambda hit: -hit.score)[:top_k]

    async def delete(
        self, tenant: str, resource: str, thread: str, messages: Sequence[str] | None = None
    ) -> None:
        """Implements `VectorStore.delete`."""

        def remove(client: Any) -> None:
            for index in _indexes(client, tenant):
                for level in range(LEVELS):
                    (name,) = shards(level, resource, thread)
                    collection = _found(client, f"{index}.{name}")
                    if collection is None:
                        break
                    if messages is None:
                        collection.delete(where=_where(resource, thread))
                    elif messages:
                        collection.delete(ids=[_hashed(resource, thread, each) for each in messages])

        await self._run(remove)

    async def drop(self, tenant: str) -> list[str]:
        """Implements `VectorStore.drop`."""

        def remove(client: Any) -> list[str]:
            collections = [
                each for each in client.list_collections() if each.name.startswith(_prefix(tenant))
            ]
            # The first collection of an index goes first: then nobody takes it for a full one and fills the next.
            for each in sorted(collections, key=lambda each: not each.name.endswith(f".{FIRST}")):
                client.delete_collection(each.name)
            self._forget()
            return list(dict.fromkeys(str(each.metadata["index"]) for each in collections))

        return await self._run(remove)

    async def indexes(self) -> list[tuple[str, str, int]]:
        """Every index with its embedder and its dimension; raises VectorsUnavailableError."""

        def listed(client: Any) -> list[tuple[str, str, int]]:
            found = [(each.name, each.metadata or {}) for each in client.list_collections()]
            return [
                (name, str(stored.get("embedder")), int(stored.get("dimension") or 0))
                for name, stored in found
                if name.startswith("procession.") and name.endswith(f".{FIRST}")
            ]

        return await self._run(listed)

    async def aclose(self) -> None:
        """Closes the client and ends the threads."""
        if self._client is not None:
            await asyncio.get_running_loop().run_in_executor(self._pool, _close, self._client)
        if self._directory is not None:
            self._directory.give_back()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- inside --------------------------------------------------------------------------------

    async def _run(self, work: Callable[[Any], _T]) -> _T:
        """Does something with the client, in a thread; once more where a collection was made anew meanwhile."""
        loop = asyncio.get_running_loop()
        try:
            async with self._lock:
                if self._client is None:
                    if self._directory is not None:
                        self._directory.take()
                    self._client = await loop.run_in_executor(self._pool, self._connect)
            try:
                return await loop.run_in_executor(self._pool, work, self._client)
            except Exception as error:
                if not _is_gone(error):
                    raise
                self._forget()
                return await loop.run_in_executor(self._pool, work, self._client)
        except EmbedderChangedError:
            raise
        except Exception as error:  # Chroma, httpx and its bindings raise whatever they like
            if type(error).__name__ in _REFUSALS:
                raise  # it does answer, and would again
            self._forget()
            told = f"{type(error).__name__}: {error}"
            raise VectorsUnavailableError(f"Chroma does not answer ({told})") from error

    def _forget(self) -> None:
        self._collections.clear()
        self._full.clear()

    def _there(self, client: Any, index: Index, resource: str, thread: str | None) -> list[tuple[int, str]]:
        """The collections in which a search has to look, with their levels; in a thread."""
        there: list[tuple[int, str]] = []
        for level in range(LEVELS):
            names = [
                name
                for name in shards(level, resource, thread)
                if self._open(client, index, name, make=False) is not None
            ]
            if not names:
                break
            there += [(level, name) for name in names]
        return there

    def _put(self, client: Any, index: Index, resource: str, items: dict[str, Embedded]) -> None:
        """Puts items into their first collection with room, or replaces them where they are; in a thread."""
        for level in range(LEVELS):
            places: dict[str, dict[str, Embedded]] = {}
            for key, item in items.items():
                (name,) = shards(level, resource, item.metadata["thread_id"])
                places.setdefault(name, {})[key] = item
            for name, here in places.items():
                collection = self._open(client, index, name)
                if not self._has_room(collection, level, resource):
                    known = collection.get(ids=list(here), include=[])["ids"]
                    here = {key: here[key] for key in known}  # noqa: PLW2901 - the others go further
                if here:
                    collection.upsert(
                        ids=list(here),
                        embeddings=[list(item.vector) for item in here.values()],
                        metadatas=[dict(item.metadata) for item in here.values()],
                    )
                items = {key: item for key, item in items.items() if key not in here}

    def _has_room(self, collection: Any, level: int, resource: str) -> bool:
        """Whether a collection takes something new of a resource; what is full once counts as full."""
        whole, share = collection.name, (collection.name, resource)
        if level == LEVELS - 1:
            return True
        if whole not in self._full and share not in self._full:
            entries = collection.count()
            if entries >= FULL:
                self._full.add(whole)
            elif level < OWN and entries >= SHARE:
                own = collection.get(where=_where(resource, None), limit=SHARE, include=[])["ids"]
                if len(own) >= SHARE:
                    self._full.add(share)
        return not self._full & {whole, share}

    def _open(self, client: Any, index: Index, name: str, *, make: bool = True, fresh: bool = False) -> Any:
        """A collection of an index; where it is missing it is made, or else this is None. In a thread."""
        if not fresh and (index, name) in self._collections:
            return self._collections[index, name]
        full_name = f"{_prefix(index.tenant)}{_safe(index.name)}.{name}"
        collection = _found(client, full_name)
        if collection is None:
            if not make:
                return None
            collection = _created(client, full_name, index)
        stored = collection.metadata or {}
        if (stored.get("embedder"), stored.get("dimension")) != (index.embedder, index.dimension):
            made = f"{stored.get('embedder')} ({stored.get('dimension')} dimensions)"
            raise EmbedderChangedError(
                f"the index {index.name!r} of tenant {index.tenant} was made with {made}, but the embedder is now "
                f"{index.embedder} ({index.dimension} dimensions): run `procession memory reindex`, or use the former "
                "embedder; agents with different embedders each need their own `indexName`"
            )
        self._collections[index, name] = collection
        return collection


def _sessions(client: Any) -> Iterator[Any]:
    """The HTTP clients below a client of Chroma's; one of a directory has none."""
    for each in (client, getattr(client, "_admin_client", None)):
        session = getattr(getattr(each, "_server", None), "_session", None)
        if session is not None:
            yield session


def _close(client: Any) -> None:
    client.close()
    for session in _sessions(client):  # Chroma leaves their connections open
        session.close()


def _found(client: Any, name: str) -> Any:
    try:
        return client.get_collection(name, embedding_function=None)
    except Exception as error:
        if _is_gone(error):
            return None
        raise


def _created(client: Any, name: str, index: Index) -> Any:
    """A new collection, or the one that another replica has just made; `get_or_create` would change its metadata."""
    try:
        return client.create_collection(
            name,
            metadata={"index": index.name, "embedder": index.embedder, "dimension": index.dimension},
            configuration={"hnsw": {"space": "cosine", "max_neighbors": _NEIGHBOURS}},
            embedding_function=None,
        )
    except Exception:
        if (collection := _found(client, name)) is None:
            raise
        return collection


def _is_gone(error: Exception) -> bool:
    return type(error).__name__ in ("NotFoundError", "InvalidCollectionException")


def _indexes(client: Any, tenant: str) -> list[str]:
    """The indexes of a tenant, each as the beginning of the names of its collections."""
    names = (each.name for each in client.list_collections())
    first = f".{FIRST}"
    return [n.removesuffix(first) for n in names if n.startswith(_prefix(tenant)) and n.endswith(first)]


def _prefix(tenant: str) -> str:
    return f"procession.{tenant}."


def _safe(index: str) -> str:
    """A name that Chroma takes; one with other characters is hashed."""
    return index if _SAFE.fullmatch(index) else hashlib.sha256(index.encode()).hexdigest()[:32]


def _of_thread(ask: Callable[[int, dict[str, Any] | None], list[Hit]], top_k: int, thread: str) -> list[Hit]:
    """A thread's best hits in a resource's own collection, without a filter if much of it is of the thread."""
    hits = [hit for hit in ask(top_k * _WIDER, None) if hit.thread == thread][:top_k]
    return hits if len(hits) == top_k else ask(top_k, {"thread_id": thread})


def _nearest(collection: Any, vector: Sequence[float], top_k: int, where: dict[str, Any] | None) -> list[Hit]:
    """The best hits of a collection, best first."""
    found = collection.query(
        query_embeddings=[list(vector)], n_results=top_k, where=where, include=["metadatas", "distances"]
    )
    rows = zip(found["metadatas"][0], found["distances"][0], strict=True)
    return [Hit(str(m["message_id"]), str(m["thread_id"]), 1.0 - float(d), dict(m)) for m, d in rows]


def _where(resource: str, thread: str | None) -> dict[str, Any]:
    if thread is None:
        return {"resource_id": resource}
    return {"$and": [{"resource_id": resource}, {"thread_id": thread}]}


def _id(metadata: dict[str, str]) -> str:
    return _hashed(metadata["resource_id"], metadata["thread_id"], metadata["message_id"])


def _hashed(resource: str, thread: str, message: str) -> str:
    parts = "".join(f"{len(part)}:{part}" for part in (resource, thread, message))
    return hashlib.sha256(parts.encode()).hexdigest()
