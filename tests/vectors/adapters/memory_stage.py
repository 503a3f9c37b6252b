"""What the memory vectors need around a processor: a store in dicts, vectors and embedders that note their calls."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from procession.args import RequestContext
from procession.message_list import MessageList
from procession_schemas.messages import Message
from procession_services.memory.ports import (
    Embedded,
    Hit,
    Index,
    MessageStore,
    NoteKind,
    Page,
    Thread,
    VectorStore,
)
from procession_services.memory.recall import Recall
from procession_services.memory.scope import acting_for

TENANT = "test"
Key = tuple[str, str]


class DictMessages(MessageStore):
    """Threads and messages in dicts, by resource and thread; `fails` is raised by every call, `calls` names them."""

    def __init__(self) -> None:
        self.rows: dict[Key, dict[str, Message]] = {}
        self.heads: dict[Key, Thread] = {}
        self.notes: dict[tuple[str, str | None], str] = {}
        self.calls: list[tuple[str, Any]] = []
        self.fails: Exception | None = None
        self.now = "2026-01-01T00:00:00.000Z"

    def add_thread(self, resource: str, thread: str, **fields: Any) -> None:
        """Puts a thread there, without a call."""
        head: Any = {"id": thread, "resource": resource, "createdAt": "", "updatedAt": "", **fields}
        self.heads[resource, thread] = head

    def add_message(self, resource: str, thread: str, message: Any) -> None:
        """Puts a message there, without a call."""
        if (resource, thread) not in self.heads:
            self.add_thread(resource, thread)
        row = {**message, "threadId": thread, "resourceId": resource}
        self.rows.setdefault((resource, thread), {})[message["id"]] = row  # type: ignore[assignment]

    def _called(self, name: str, detail: Any = None) -> None:
        self.calls.append((name, detail))
        if self.fails is not None:
            raise self.fails

    def _sorted(self, key: Key) -> list[Message]:
        return sorted(self.rows.get(key, {}).values(), key=lambda row: row["createdAt"])

    async def save(
        self,
        tenant: str,
        thread: str,
        resource: str,
        messages: Sequence[Message],
        *,
        title: str | None = None,
    ) -> None:
        self._called("save", [message["id"] for message in messages])
        if (resource, thread) not in self.heads:
            self.add_thread(resource, thread, createdAt=self.now, **({"title": title} if title else {}))
        for message in messages:
            self.add_message(resource, thread, message)
        self.heads[resource, thread]["updatedAt"] = self.now

    async def recent(
        self, tenant: str, thread: str, resource: str, limit: int, *, skip: int = 0
    ) -> list[Message]:
        self._called("recent", {"thread": thread, "resource": resource, "limit": limit, "skip": skip})
        found = self._sorted((resource, thread))
        end = len(found) - skip
        return found[max(0, end - limit) : end] if end > 0 and limit > 0 else []

    async def find(self, tenant: str, thread: str, resource: str, ids: Sequence[str]) -> list[Message]:
        self._called("find", list(ids))
        rows = self.rows.get((resource, thread), {})
        return [rows[each] for each in ids if each in rows]

    async def around(
        self, tenant: str, resource: str, hits: Sequence[tuple[str, str]], *, before: int, after: int
    ) -> list[Message]:
        self._called("around", list(hits))
        found: dict[tuple[str, str], Message] = {}
        for thread, message in hits:
            rows = self._sorted((resource, thread))
            for place, row in enumerate(rows):
                if row["id"] == message:
                    near = rows[max(0, place - before) : place + after + 1]
                    found |= {(thread, each["id"]): each for each in near}
        return list(found.values())

    async def trim(
        self, tenant: str, thread: str, resource: str, *, older_than: str | None, keep: int | None
    ) -> list[str]:
        raise NotImplementedError

    async def messages(
        self, tenant: str, thread: str, resource: str, *, page: int, per_page: int
    ) -> Page[Message] | None:
        self._called("messages")
        if (resource, thread) not in self.heads:
            return None
        rows = self._sorted((resource, thread))
        return Page(rows[page * per_page : (page + 1) * per_page], len(rows))

    async def threads(self, tenant: str, resource: str, *, page: int, per_page: int) -> Page[Thread]:
        raise NotImplementedError

    async def get_thread(self, tenant: str, thread: str, resource: str) -> Thread | None:
        self._called("get_thread")
        return self.heads.get((resource, thread))

    async def create_thread(
        self, tenant: str, thread: str, resource: str, *, title: str | None = None, metadata: Any = None
    ) -> Thread | None:
        self._called("create_thread")
        if (resource, thread) not in self.heads:
            self.add_thread(resource, thread, createdAt=self.now)
        return self.heads[resource, thread]

    async def rename_thread(self, tenant: str, thread: str, resource: str, title: str) -> Thread | None:
        raise NotImplementedError

    async def delete_thread(self, tenant: str, thread: str, resource: str) -> bool:
        raise NotImplementedError

    async def every_thread(self, tenant: str) -> AsyncIterator[tuple[str, str]]:
        for resource, thread in [*self.heads]:
            yield resource, thread

    async def note(
        self, tenant: str, resource: str, thread: str | None, *, kind: NoteKind = "note"
    ) -> str | None:
        self._called("note")
        return self.notes.get((resource, thread))

    async def replace_note(
        self,
        tenant: str,
        resource: str,
        thread: str | None,
        text: str,
        *,
        expected: str | None,
        kind: NoteKind = "note",
    ) -> bool:
        self._called("replace_note")
        if self.notes.get((resource, thread)) != expected:
            return False
        self.notes[resource, thread] = text
        return True


class NotedVectors(VectorStore):
    """Answers every query with the same hits, and notes what it is asked."""

    def __init__(self, hits: Sequence[Hit] = (), fails: Exception | None = None) -> None:
        self.hits, self.fails = list(hits), fails
        self.ensured: list[Index] = []
        self.queries: list[dict[str, Any]] = []
        self.upserts: list[tuple[Index, list[Embedded]]] = []

    async def ensure(self, index: Index) -> None:
        self.ensured.append(index)

    async def upsert(self, index: Index, items: Sequence[Embedded]) -> None:
        self.upserts.append((index, list(items)))

    async def query(
        self, index: Index, vector: Sequence[float], *, top_k: int, resource: str, thread: str | None
    ) -> list[Hit]:
        self.queries.append({"index": index, "topK": top_k, "resource": resource, "thread": thread})
        if self.fails is not None:
            raise self.fails
        return self.hits[:top_k]

    async def delete(self, tenant: str, resource: str, thread: str, messages: Any = None) -> None:
        raise NotImplementedError

    async def drop(self, tenant: str) -> list[str]:
        raise NotImplementedError


class NotedEmbedder:
    """Makes the same vector of every text, and notes the texts."""

    def __init__(self, name: str, fails: Exception | None = None) -> None:
        self.id, self.fails = name, fails
        self.texts: list[str] = []

    async def embed(self, texts: Sequence[str], *, tenant: str) -> list[list[float]]:
        self.texts += texts
        if self.fails is not None:
            raise self.fails
        return [[1.0, 0.0, 0.0] for _ in texts]


class ListQueue:
    """Keeps jobs until a test works on them."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []

    async def put(self, job: dict[str, Any]) -> None:
        self.jobs.append(job)

    async def waiting(self, tenant: str) -> int:
        return len(self.jobs)

    async def remember(self, tenant: str, name: str, ref: dict[str, Any]) -> None:
        pass  # tests name the index

    async def remembered(self, tenant: str) -> list[dict[str, Any]]:
        return []


@contextmanager
def on_stage(store: MessageStore, recall: Recall | None = None) -> Iterator[None]:
    """Within it, memory processors work with this store."""
    with acting_for(TENANT, store, recall):
        yield


def memory_context(given: Any, **config: Any) -> RequestContext:
    """The request context out of a vector's, which may be flat (`threadId`), nested (`thread.id`) or null."""
    if given is None:
        return RequestContext()
    thread = given.get("threadId") or (given.get("thread") or {}).get("id")
    options = {**(given.get("memoryConfig") or {}), **config}
    entry: dict[str, Any] = {"resourceId": given.get("resourceId"), "memoryConfig": options}
    if thread:
        entry["thread"] = {"id": thread}
    return RequestContext({"MastraMemory": entry})


def resource_of(given: Any, default: str = "r1") -> str:
    """The resource that a vector's context means."""
    return (given or {}).get("resourceId") or (given or {}).get("threadId") or default


def listed(messages: Sequence[Any], source: str, into: MessageList) -> None:
    """Adds messages, each as it is."""
    for message in messages:
        into.add(message, source, merge=False)
