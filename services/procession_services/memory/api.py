"""Requests about threads and their messages: `handle` takes an operation and its body and gives the reply."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from procession.json_values import NotJsonError, given
from procession.messages import InvalidMessageError, normalise
from procession_schemas.base import JsonObject, StrictModel, from_json
from procession_schemas.memory import LONGEST_PAGE, ThreadName
from procession_schemas.messages import Message
from procession_schemas.validation import RefusedError, short
from procession_services.memory.core.notes import LONGEST_NOTE, InvalidUpdateError
from procession_services.memory.indexing import submit_all
from procession_services.memory.notes import NoteToolOptions, update_note
from procession_services.memory.ports import MessageStore
from procession_services.memory.recall import EmbeddingError, Recall
from procession_services.memory.scope import Memory
from procession_services.runtime import clock
from procession_services.runtime.store import ANSWER_SECONDS

log = logging.getLogger(__name__)
Reply = dict[str, Any]
Id = Annotated[str, Field(min_length=1, max_length=512)]


class ThreadsRequest(StrictModel):
    """Body of `threads`: the threads of a resource, the latest updated first."""

    resource: Id
    page: int = Field(default=0, ge=0, lt=2**31)
    per_page: int = Field(default=40, ge=1, le=LONGEST_PAGE)


class ThreadRequest(StrictModel):
    """Body of `thread` and `delete`."""

    thread: Id
    resource: Id


class NewThreadRequest(ThreadRequest):
    """What may make a thread: only one that a run could name."""

    thread: ThreadName
    resource: ThreadName


class CreateRequest(NewThreadRequest):
    """Body of `create`."""

    title: str | None = Field(default=None, max_length=1024)
    metadata: JsonObject | None = None


class RenameRequest(ThreadRequest):
    """Body of `rename`; an empty title takes the title away."""

    title: str = Field(max_length=1024)


class SaveRequest(NewThreadRequest):
    """Body of `save`: messages in any form that a run takes; the title is for a thread that it creates."""

    title: str | None = Field(default=None, max_length=1024)
    messages: list[Any] = Field(min_length=1, max_length=LONGEST_PAGE)


class MessagesRequest(ThreadRequest):
    """Body of `messages`: a page counted from the oldest, or the newest `limit`; either way oldest first."""

    page: int = Field(default=0, ge=0, lt=2**31)
    per_page: int = Field(default=40, ge=1, le=LONGEST_PAGE)
    limit: int | None = Field(default=None, ge=1, le=LONGEST_PAGE)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.limit is not None and self.model_fields_set & {"page", "per_page"}:
            raise ValueError("give either limit (the newest messages) or page and perPage")
        return self


class ImportRequest(CreateRequest):
    """Body of `import`: a page of an export; of what the thread has, messages are replaced, all else stays."""

    messages: list[Any] = Field(default_factory=list, max_length=LONGEST_PAGE)
    embedder: str | None = Field(default=None, description="As for `reindex`.")
    note: str | None = Field(default=None, max_length=LONGEST_NOTE)


class NoteRequest(StrictModel):
    """Body of `note`: the working memory of a resource, or of one of its threads."""

    resource: Id
    thread: Id | None = None


class SetNoteRequest(NoteRequest):
    """Body of `set-note`; where `expected` is given, only if it still says that (null: there is none)."""

    resource: ThreadName
    thread: ThreadName | None = None
    note: str = Field(max_length=LONGEST_NOTE)
    expected: str | None = None


class UpdateNoteRequest(StrictModel):
    """Body of `update-note`: one call of the tool `updateWorkingMemory`, whose ids come from the run."""

    options: NoteToolOptions
    given: JsonObject
    resource: Id | None = None
    thread: Id | None = None


class ReindexRequest(StrictModel):
    """Body of `reindex`; `embedder` counts where no agent of the tenant has run yet."""

    embedder: str | None = None


class NothingRequest(StrictModel):
    """A body that says nothing: `index`."""


async def handle(
    store: MessageStore,
    operation: str,
    body: bytes,
    tenant: str,
    *,
    recall: Recall | None = None,
) -> Reply:
    """Answers one request of a tenant.

    `save` replies `ids`; `messages` and `threads` reply what they are called, pages also with `page`,
    `perPage`, `total` and `hasMore`; `thread`, `create` and `rename` reply `thread`; `delete` replies
    `{"deleted": true}`. `export` replies a page of messages with `thread` and `note`, and `import` takes it in. What is
    saved or imported is queued for the index of semantic recall, where there is one.
    `note` replies `note`, null where there is none; `set-note` and `update-note` change it. `reindex` queues all
    messages of the tenant for the index, `index` replies how many of its jobs are `waiting`.

    What went wrong is `{"error": {"code", "message", "field"}}`, `field` only where one is to blame. Codes:
    UNKNOWN_OPERATION, INVALID_JSON, INVALID_REQUEST, INVALID_MESSAGE_CONTENT, UNKNOWN_THREAD, THREAD_EXISTS,
    INVALID_UPDATE, NOTE_CHANGED, NO_VECTOR_STORE, STORE_UNAVAILABLE, ANSWER_TOO_LONG (`too_long`), INTERNAL.
    """
    try:
        model, answer = _find(operation)
        request = _parse(model, body)
        async with asyncio.timeout(ANSWER_SECONDS):
            return await answer(Memory(store, tenant, recall), request)
    except RefusedError as error:
        return _told(error)
    except TimeoutError:
        return _told(RefusedError("STORE_UNAVAILABLE", "Redis does not answer; ask again later"))
    except Exception:  # whatever ails the store, who asks gets an answer
        log.exception("the memory operation %s failed", operation)
        return _told(
            RefusedError("INTERNAL", f"the operation {operation} failed; the memory service's log says why")
        )


def too_long(size: int, limit: int) -> Reply:
    """What is answered in the place of an answer of so many bytes, where NATS takes fewer."""
    text = f"the answer has {size:,} bytes, but NATS accepts at most {limit:,}; ask for a smaller page (`perPage`)"
    return _told(RefusedError("ANSWER_TOO_LONG", text))


def _told(error: RefusedError) -> Reply:
    return {"error": error.failure.model_dump(by_alias=True, exclude_none=True)}


def _parse(model: type[StrictModel], body: bytes) -> Any:
    try:
        request = model.model_validate_json(body)
        given(from_json(body), "request")
    except ValidationError as error:
        raise RefusedError.because(error) from error
    except NotJsonError as error:
        raise RefusedError("INVALID_REQUEST", str(error), short(error.field) or None) from error
    return request


def _unknown(thread: str) -> RefusedError:
    return RefusedError("UNKNOWN_THREAD", f"this resource has no thread {thread!r}", "thread")


async def _save(memory: Memory, request: SaveRequest) -> Reply:
    messages = [_message(given, f"messages.{i}") for i, given in enumerate(request.messages)]
    await memory.store.save(memory.tenant, request.thread, request.resource, messages, title=request.title)
    await _index_later(memory, request, messages)
    return {"ids": [message["id"] for message in messages]}


async def _index_later(
    memory: Memory, request: ThreadRequest, messages: list[Message], embedder: str | None = None
) -> None:
    """What nobody said in a run is found by semantic recall, too."""
    if memory.recall is not None:
        refs = await memory.recall.indexes(memory.tenant, embedder)
        await submit_all(memory.recall, refs, request.resource, request.thread, messages)


def _message(given: Any, where: str) -> Message:
    try:
        message = normalise(given, new_id=lambda: clock.new_token(32), now=clock.now_iso, where=where)
    except InvalidMessageError as error:
        raise RefusedError(error.code, str(error), error.field) from error
    if message["role"] == "system":
        raise RefusedError(
            "INVALID_REQUEST", f"{where}.role: system messages are not stored", f"{where}.role"
        )
    return message


async def _messages(memory: Memory, request: MessagesRequest) -> Reply:
    thread, resource = request.thread, request.resource
    if request.limit is not None:
        if await memory.store.get_thread(memory.tenant, thread, resource) is None:
            raise _unknown(thread)
        return {"messages": await memory.store.recent(memory.tenant, thread, resource, request.limit)}
    page = await memory.store.messages(
        memory.tenant, thread, resource, page=request.page, per_page=request.per_page
    )
    if page is None:
        raise _unknown(thread)
    return {"messages": page.items, **_position(request, page.total)}


async def _threads(memory: Memory, request: ThreadsRequest) -> Reply:
    page = await memory.store.threads(
        memory.tenant, request.resource, page=request.page, per_page=request.per_page
    )
    return {"threads": page.items, **_position(request, page.total)}


def _position(request: MessagesRequest | ThreadsRequest, total: int) -> Reply:
    more = (request.page + 1) * request.per_page < total
    return {"page": request.page, "perPage": request.per_page, "total": total, "hasMore": more}


async def _thread(memory: Memory, request: ThreadRequest) -> Reply:
    thread = await memory.store.get_thread(memory.tenant, request.thread, request.resource)
    if thread is None:
        raise _unknown(request.thread)
    return {"thread": thread}


async def _create(memory: Memory, request: CreateRequest) -> Reply:
    thread = await memory.store.create_thread(
        memory.tenant, request.thread, request.resource, title=request.title, metadata=request.metadata
    )
    if thread is None:
        raise RefusedError(
            "THREAD_EXISTS", f"this resource already has a thread {request.thread!r}", "thread"
        )
    return {"thread": thread}


async def _rename(memory: Memory, request: RenameRequest) -> Reply:
    thread = await memory.store.rename_thread(memory.tenant, request.thread, request.resource, request.title)
    if thread is None:
        raise _unknown(request.thread)
    return {"thread": thread}


async def _delete(memory: Memory, request: ThreadRequest) -> Reply:
    # Its embeddings first: of a thread that is gone, nobody who asks again after a failure would get further.
    if memory.recall is not None:
        await memory.recall.forget(memory.tenant, request.resource, request.thread)
    if not await memory.store.delete_thread(memory.tenant, request.thread, request.resource):
        raise _unknown(request.thread)
    return {"deleted": True}


async def _export(memory: Memory, request: MessagesRequest) -> Reply:
    page = await _messages(memory, request)
    thread = await memory.store.get_thread(memory.tenant, request.thread, request.resource)
    note = await memory.store.note(memory.tenant, request.resource, request.thread)
    return {**page, "thread": thread, "note": note}


async def _import(memory: Memory, request: ImportRequest) -> Reply:
    messages = [_message(given, f"messages.{i}") for i, given in enumerate(request.messages)]
    thread, resource = request.thread, request.resource
    _check_embedder(memory.recall, request.embedder)
    await memory.store.create_thread(
        memory.tenant, thread, resource, title=request.title, metadata=request.metadata
    )
    if messages:
        await memory.store.save(memory.tenant, thread, resource, messages)
        await _index_later(memory, request, messages, request.embedder)
    if request.note is not None:
        await memory.store.replace_note(memory.tenant, resource, thread, request.note, expected=None)
    return {"ids": [message["id"] for message in messages]}


async def _note(memory: Memory, request: NoteRequest) -> Reply:
    return {"note": await memory.store.note(memory.tenant, request.resource, request.thread)}


async def _set_note(memory: Memory, request: SetNoteRequest) -> Reply:
    home, fixed = (memory.tenant, request.resource, request.thread), "expected" in request.model_fields_set
    for _ in range(1 if fixed else 10):
        expected = request.expected if fixed else await memory.store.note(*home)
        if await memory.store.replace_note(*home, request.note, expected=expected):
            return {"note": request.note}
    raise RefusedError("NOTE_CHANGED", "the working memory was changed in the meantime", "expected")


async def _update_note(memory: Memory, request: UpdateNoteRequest) -> Reply:
    try:
        result = await update_note(
            memory.store,
            memory.tenant,
            request.options,
            request.given,
            resource=request.resource,
            thread=request.thread,
        )
    except InvalidUpdateError as error:
        raise RefusedError("INVALID_UPDATE", str(error)) from error
    return {"result": result}


def _index_of(memory: Memory) -> Recall:
    if memory.recall is None:
        told = "no vector store is configured: set PROCESSION_CHROMA_URL or PROCESSION_CHROMA_PATH"
        raise RefusedError("NO_VECTOR_STORE", told)
    return memory.recall


def _check_embedder(recall: Recall | None, embedder: str | None) -> None:
    """Refuses a name that is none: the job would empty the indexes, and could not fill them again."""
    if recall is None or embedder is None:
        return
    try:
        recall.check(embedder)
    except EmbeddingError as error:
        raise RefusedError("INVALID_REQUEST", str(error), "embedder") from error


async def _reindex(memory: Memory, request: ReindexRequest) -> Reply:
    recall = _index_of(memory)
    _check_embedder(recall, request.embedder)
    await recall.queue.put({"kind": "reindex", "tenant": memory.tenant, "embedder": request.embedder})
    return {"waiting": await recall.queue.waiting(memory.tenant)}


async def _index(memory: Memory, request: NothingRequest) -> Reply:  # noqa: ARG001 - every operation has a body
    return {"waiting": await _index_of(memory).queue.waiting(memory.tenant)}


_Operation = tuple[type[StrictModel], Callable[[Memory, Any], Awaitable[Reply]]]
_OPERATIONS: dict[str, _Operation] = {
    "save": (SaveRequest, _save),
    "messages": (MessagesRequest, _messages),
    "threads": (ThreadsRequest, _threads),
    "thread": (ThreadRequest, _thread),
    "create": (CreateRequest, _create),
    "delete": (ThreadRequest, _delete),
    "rename": (RenameRequest, _rename),
    "export": (MessagesRequest, _export),
    "import": (ImportRequest, _import),
    "note": (NoteRequest, _note),
    "set-note": (SetNoteRequest, _set_note),
    "update-note": (UpdateNoteRequest, _update_note),
    "reindex": (ReindexRequest, _reindex),
    "index": (NothingRequest, _index),
}
OPERATIONS = {operation: body for operation, (body, _) in _OPERATIONS.items()}
"""The operations that `handle` knows, and what their bodies are."""


def _find(operation: str) -> _Operation:
    if operation not in _OPERATIONS:
        known = ", ".join(OPERATIONS)
        raise RefusedError("UNKNOWN_OPERATION", f"unknown operation {operation[:60]!r}; known: {known}")
    return _OPERATIONS[operation]
