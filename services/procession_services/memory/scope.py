"""Where memory processors work: for whom, in which store, and in which conversation."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from procession.message_list import MessageList
from procession_schemas.base import WireModel
from procession_services.memory.ports import MessageStore

CONTEXT_KEY = "MastraMemory"
"""Where the runtime puts thread, resource and memory options into the request context (R-RX-2)."""
THREAD_KEY = "mastra__threadId"
RESOURCE_KEY = "mastra__resourceId"

Count = Annotated[int, Field(ge=0, strict=True)] | Literal[False]
"""How many messages; false is none."""


class MemoryScopeError(RuntimeError):
    """A memory processor runs outside the memory service, or for a thread whose resource is not known."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The store of a service, seen by one tenant."""

    store: MessageStore
    tenant: str


_memory: ContextVar[Memory] = ContextVar("procession_memory")


@contextmanager
def acting_for(tenant: str, store: MessageStore) -> Iterator[None]:
    """Within it, memory processors work for this tenant; each command of a service runs in one."""
    token = _memory.set(Memory(store, tenant))
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
            "no memory here: run this processor in the memory service (`acting_for`)"
        ) from None


@dataclass(frozen=True, slots=True)
class Conversation:
    """The thread of a run and what its memory options say; None stands for what they leave open."""

    thread: str
    resource: str
    read_only: bool = False
    last_messages: Count | None = None


class _MemoryConfig(WireModel):
    read_only: bool | None = None
    last_messages: Count | None = None


class _ThreadRef(WireModel):
    id: str | None = None


class _MemoryContext(WireModel):
    thread: _ThreadRef | None = None
    resource_id: str | None = None
    memory_config: _MemoryConfig | None = None


def conversation(context: Mapping[str, Any], messages: MessageList) -> Conversation | None:
    """Where a run's messages belong; None when no thread is known (R-HIST-1).

    Reserved keys of the request context come first, then what the runtime put there, then the message list.

    Raises:
        MemoryScopeError: A thread without a resource (R-ME-8).
        pydantic.ValidationError: The entry of the runtime has another shape.
    """
    given = _MemoryContext.model_validate(context.get(CONTEXT_KEY) or {})
    config = given.memory_config or _MemoryConfig()
    thread = context.get(THREAD_KEY) or (given.thread and given.thread.id) or messages.thread_id
    if not thread:
        return None
    resource = context.get(RESOURCE_KEY) or given.resource_id or messages.resource_id
    if not resource:
        raise MemoryScopeError(
            f"AGENT_MEMORY_MISSING_RESOURCE_ID: thread {thread!r} has no resource; name one in the request's "
            f"memory, or in its request context as {RESOURCE_KEY!r}"
        )
    return Conversation(str(thread), str(resource), bool(config.read_only), config.last_messages)
