"""What the memory service needs from a store, whatever keeps the data."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NotRequired, Protocol, TypedDict, TypeVar

from procession_schemas.messages import Message

T = TypeVar("T")
NoteKind = Literal["note", "observations"]
"""Working memory, or the notes of observational memory."""


class Thread(TypedDict):
    """A conversation of one resource; times are ISO-8601 in UTC with milliseconds."""

    id: str
    resource: str
    createdAt: str
    updatedAt: str
    title: NotRequired[str]
    metadata: NotRequired[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of something, and how much of it there is over all pages."""

    items: list[T]
    total: int


class MessageStore(Protocol):
    """Threads and their messages.

    Tenant and resource are part of the identity of a thread: the thread of another tenant or resource looks
    exactly like one that does not exist, and the same thread id under two resources is two threads. Messages
    are ordered by `createdAt`, then by when they were first saved. Pages count from 0. A save happens as a
    whole or not at all, and concurrent saves to one thread all count.
    """

    async def save(
        self,
        tenant: str,
        thread: str,
        resource: str,
        messages: Sequence[Message],
        *,
        title: str | None = None,
    ) -> None:
        """Saves messages together, creates the thread if it is missing, and advances its `updatedAt`.

        A message whose id the thread already has is replaced in place: position and `createdAt` stay. `title`
        names a thread that this save creates.

        Raises:
            ValueError: A `createdAt` is not an ISO-8601 time; nothing is saved.
        """

    async def recent(
        self, tenant: str, thread: str, resource: str, limit: int, *, skip: int = 0
    ) -> list[Message]:
        """The newest `limit` messages before the last `skip`, oldest first; as cheap in a long thread."""

    async def find(self, tenant: str, thread: str, resource: str, ids: Sequence[str]) -> list[Message]:
        """The messages of a thread that have these ids."""

    async def around(
        self, tenant: str, resource: str, hits: Sequence[tuple[str, str]], *, before: int, after: int
    ) -> list[Message]:
        """Messages, each given as thread and id, with their neighbours in their threads; each message once."""

    async def trim(
        self, tenant: str, thread: str, resource: str, *, older_than: str | None, keep: int | None
    ) -> list[str]:
        """Deletes messages from before a time and all but the newest `keep`; gives the ids of what went."""

    async def messages(
        self, tenant: str, thread: str, resource: str, *, page: int, per_page: int
    ) -> Page[Message] | None:
        """A page of the messages, oldest first; None when there is no such thread."""

    async def threads(self, tenant: str, resource: str, *, page: int, per_page: int) -> Page[Thread]:
        """A page of the threads of a resource, the latest updated first."""

    async def get_thread(self, tenant: str, thread: str, resource: str) -> Thread | None:
        """The thread; None when there is no such thread."""

    async def create_thread(
        self,
        tenant: str,
        thread: str,
        resource: str,
        *,
        title: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Thread | None:
        """Creates an empty thread; None when there is one already, which stays as it is."""

    async def rename_thread(self, tenant: str, thread: str, resource: str, title: str) -> Thread | None:
        """Gives the thread a title (an empty one takes it away); None when there is no such thread."""

    async def delete_thread(self, tenant: str, thread: str, resource: str) -> bool:
        """Deletes the thread with its messages and its note; tells whether there was one."""

    def every_thread(self, tenant: str) -> AsyncIterator[tuple[str, str]]:
        """Resource and id of every thread, in no order; one that changes meanwhile may come twice."""

    async def note(
        self, tenant: str, resource: str, thread: str | None, *, kind: NoteKind = "note"
    ) -> str | None:
        """The working memory of a thread, or what was observed in it; without a thread, that of the resource."""

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
        """Stores a note where it still is what was expected; a thread that is missing is created."""


@dataclass(frozen=True, slots=True)
class Index:
    """A collection of embeddings: whose, which of them, and what made its vectors."""

    tenant: str
    name: str
    embedder: str
    dimension: int


@dataclass(frozen=True, slots=True)
class Embedded:
    """A message as it is indexed; `metadata` has `message_id`, `thread_id`, `resource_id`, `role`, ... (R-SEM-11)."""

    id: str
    vector: Sequence[float]
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that was found; 1 is the best score."""

    message: str
    thread: str
    score: float
    metadata: dict[str, Any] = field(default_factory=dict)


class EmbedderChangedError(Exception):
    """An index was made with another embedder than the one that is configured; the message says how to go on."""


class VectorsUnavailableError(Exception):
    """The vector store does not answer; it may later."""


class VectorStore(Protocol):
    """Embeddings by index; one tenant's are never another's."""

    async def ensure(self, index: Index) -> None:
        """Creates the index where it is missing; safe however many replicas do it at once.

        Raises:
            EmbedderChangedError: It is there, with vectors of another embedder.
            VectorsUnavailableError: The store does not answer.
        """

    async def upsert(self, index: Index, items: Sequence[Embedded]) -> None:
        """Adds items, or replaces those with their ids; raises as `ensure`."""

    async def query(
        self, index: Index, vector: Sequence[float], *, top_k: int, resource: str, thread: str | None
    ) -> list[Hit]:
        """The nearest messages of a resource, or of one of its threads, best first; raises as `ensure`."""

    async def delete(
        self, tenant: str, resource: str, thread: str, messages: Sequence[str] | None = None
    ) -> None:
        """Removes a thread, or some of its messages, from every index of the tenant."""

    async def drop(self, tenant: str) -> list[str]:
        """Removes every index of a tenant and gives their names."""
