"""What the memory service needs from a store, whatever keeps the data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NotRequired, Protocol, TypedDict, TypeVar

from procession_schemas.messages import Message

T = TypeVar("T")


class Thread(TypedDict):
    """A conversation of one resource; times are ISO-8601 in UTC with milliseconds."""

    id: str
    resource: str
    createdAt: str
    updatedAt: str
    title: NotRequired[str]


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

    async def recent(self, tenant: str, thread: str, resource: str, limit: int) -> list[Message]:
        """The newest `limit` messages, oldest first; the cost does not grow with the thread."""

    async def messages(
        self, tenant: str, thread: str, resource: str, *, page: int, per_page: int
    ) -> Page[Message] | None:
        """A page of the messages, oldest first; None when there is no such thread."""

    async def threads(self, tenant: str, resource: str, *, page: int, per_page: int) -> Page[Thread]:
        """A page of the threads of a resource, the latest updated first."""

    async def get_thread(self, tenant: str, thread: str, resource: str) -> Thread | None:
        """The thread; None when there is no such thread."""

    async def create_thread(
        self, tenant: str, thread: str, resource: str, *, title: str | None = None
    ) -> Thread | None:
        """Creates an empty thread; None when there is one already, which stays as it is."""

    async def rename_thread(self, tenant: str, thread: str, resource: str, title: str) -> Thread | None:
        """Gives the thread a title (an empty one takes it away); None when there is no such thread."""

    async def delete_thread(self, tenant: str, thread: str, resource: str) -> bool:
        """Deletes the thread with its messages; tells whether there was one."""
