"""Where memory processors work: for whom, in which store, and in which conversation."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from procession.message_list import MessageList
from procession_schemas.base import WireModel
from procession_schemas.memory import MEMORY_KEY, RESOURCE_KEY, THREAD_KEY, Retention
from procession_services.memory.observers import Observers
from procession_services.memory.ports import MessageStore
from procession_services.memory.recall import Recall

Count = Annotated[int, Field(ge=0, strict=True)] | Literal[False]
"""How many messages; false is none."""


class MemoryScopeError(RuntimeError):
    """A memory processor runs outside the memory service."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The store of a service, seen by one tenant."""

    store: MessageStore
    tenant: str
    recall: Recall | None = None
    background: Observers | None = None

    @property
    def observers(self) -> Observers:
        """Who makes notes behind the runs.

        Raises:
            MemoryScopeError: There are no observers here.
        """
        if self.background is None:
            raise MemoryScopeError("there is no observer here: observational memory needs the memory service")
        return self.background

    @property
    def index(self) -> Recall:
        """What finds messages by their meaning.

        Raises:
            MemoryScopeError: There is no index here.
        """
        if self.recall is None:
            raise MemoryScopeError(
                "there is no index here: semantic recall needs the memory service, with PROCESSION_CHROMA_URL or "
                "PROCESSION_CHROMA_PATH"
            )
        return self.recall


_memory: ContextVar[Memory] = ContextVar("procession_memory")


@contextmanager
def acting_for(
    tenant: str, store: MessageStore, recall: Recall | None = None, observers: Observers | None = None
) -> Iterator[None]:
    """Within it, memory processors work for this tenant; each command of a service runs in one."""
    token = _memory.set(Memory(store, tenant, recall, observers))
    try:
        yield
    finally:
        _memory.reset(token)


def current_memory() -> Memory:
    """The store and tenant of the command in hand.

    Raises:
        MemoryScopeError: There is none; memory is never read or written without a tenant.
    """
    try:
        return _memory.get()
    except LookupError:
        raise MemoryScopeError(
            "there is no message store here: run this processor in the memory service, or within `acting_for`"
        ) from None


@dataclass(frozen=True, slots=True)
class Conversation:
    """The thread of a run and what its memory options say; None stands for what they leave open."""

    thread: str
    resource: str
    read_only: bool = False
    last_messages: Count | None = None
    retention: Retention | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Which thread and which resource a run names; either may be missing."""

    thread: str | None
    resource: str | None
    options: "MemoryContextOptions"


class MemoryContextOptions(WireModel):
    """The memory options of a request as processors find them in its context."""

    read_only: bool | None = None
    last_messages: Count | None = None
    retention: Retention | None = None


class _ThreadRef(WireModel):
    id: str | None = None


class _MemoryContext(WireModel):
    thread: _ThreadRef | None = None
    resource_id: str | None = None
    memory_config: MemoryContextOptions | None = None


def place(context: Mapping[str, Any], messages: MessageList | None = None) -> Place:
    """Which thread and resource a run names.

    Reserved keys of the request context come first, then what the runtime put there, then the message list.

    Raises:
        pydantic.ValidationError: The entry of the runtime has another shape.
    """
    given = _MemoryContext.model_validate(context.get(MEMORY_KEY) or {})
    listed = (messages.thread_id, messages.resource_id) if messages is not None else (None, None)
    thread = context.get(THREAD_KEY) or (given.thread and given.thread.id) or listed[0]
    resource = context.get(RESOURCE_KEY) or given.resource_id or listed[1]
    return Place(
        thread=str(thread) if thread else None,
        resource=str(resource) if resource else None,
        options=given.memory_config or MemoryContextOptions(),
    )


def conversation(context: Mapping[str, Any], messages: MessageList) -> Conversation | None:
    """Where a run's messages belong; None when no thread is known (R-HIST-1).

    A thread without a resource is a resource of its own (R-HIST-9). An agent with memory never gets that far
    (R-ME-8); a processor that was placed by hand may.

    Raises:
        pydantic.ValidationError: The entry of the runtime has another shape.
    """
    found = place(context, messages)
    if found.thread is None:
        return None
    options = found.options
    return Conversation(
        found.thread,
        found.resource or found.thread,
        bool(options.read_only),
        options.last_messages,
        options.retention,
    )
