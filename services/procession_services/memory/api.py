"""Requests about threads and their messages: `handle` takes an operation and its body and gives the reply."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from procession.messages import InvalidMessageError, normalise
from procession_schemas.base import StrictModel
from procession_schemas.messages import Message
from procession_schemas.run import Failure
from procession_services.memory.ports import MessageStore
from procession_services.runtime import clock

Reply = dict[str, Any]
Id = Annotated[str, Field(min_length=1, max_length=512)]


class ApiError(Exception):
    """A request that cannot be answered; `failure` is what the caller is told."""

    def __init__(self, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.failure = Failure(code=code, message=message, field=field)


class ThreadsRequest(StrictModel):
    """Body of `threads`: the threads of a resource, the latest updated first."""

    resource: Id
    page: int = Field(default=0, ge=0)
    per_page: int = Field(default=40, ge=1, le=1000)


class ThreadRequest(StrictModel):
    """Body of `thread` and `delete`."""

    thread: Id
    resource: Id


class CreateRequest(ThreadRequest):
    """Body of `create`."""

    title: str | None = Field(default=None, max_length=1024)


class RenameRequest(ThreadRequest):
    """Body of `rename`; an empty title takes the title away."""

    title: str = Field(max_length=1024)


class SaveRequest(CreateRequest):
    """Body of `save`: messages in any form that a run takes; the title is for a thread that it creates."""

    messages: list[Any] = Field(min_length=1, max_length=1000)


class MessagesRequest(ThreadRequest):
    """Body of `messages`: a page counted from the oldest, or the newest `limit`; either way oldest first."""

    page: int = Field(default=0, ge=0)
    per_page: int = Field(default=40, ge=1, le=1000)
    limit: int | None = Field(default=None, ge=1, le=1000)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.limit is not None and self.model_fields_set & {"page", "per_page"}:
            raise ValueError("give either limit (the newest messages) or page and perPage")
        return self


async def handle(store: MessageStore, operation: str, body: Any, tenant: str) -> Reply:
    """Answers one request of a tenant.

    `save` replies `ids`; `messages` and `threads` reply what they are called, pages also with `page`,
    `perPage`, `total` and `hasMore`; `thread`, `create` and `rename` reply `thread`; `delete` replies
    `{"deleted": true}`.

    What went wrong is `{"error": {"code", "message", "field"}}`, `field` only where one is to blame. Codes:
    UNKNOWN_OPERATION, INVALID_REQUEST, INVALID_MESSAGE_CONTENT, UNKNOWN_THREAD, THREAD_EXISTS.
    """
    try:
        model, answer = _find(operation)
        return await answer(store, tenant, _parse(model, body))
    except ApiError as error:
        return {"error": error.failure.model_dump(by_alias=True, exclude_none=True)}


def _parse(model: type[StrictModel], body: Any) -> Any:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        problems = [(".".join(map(str, e["loc"])), e["msg"]) for e in error.errors(include_url=False)]
        message = "; ".join(f"{path or 'body'}: {what}" for path, what in problems)
        raise ApiError("INVALID_REQUEST", message, problems[0][0] or None) from error


def _unknown(thread: str) -> ApiError:
    return ApiError("UNKNOWN_THREAD", f"this resource has no thread {thread!r}", "thread")


async def _save(store: MessageStore, tenant: str, request: SaveRequest) -> Reply:
    messages = [_message(given, f"messages.{i}") for i, given in enumerate(request.messages)]
    await store.save(tenant, request.thread, request.resource, messages, title=request.title)
    return {"ids": [message["id"] for message in messages]}


def _message(given: Any, where: str) -> Message:
    try:
        message = normalise(given, new_id=lambda: clock.new_token(32), now=clock.now_iso, where=where)
    except InvalidMessageError as error:
        raise ApiError(error.code, str(error), error.field) from error
    if message["role"] == "system":
        raise ApiError("INVALID_REQUEST", f"{where}.role: system messages are not stored", f"{where}.role")
    return message


async def _messages(store: MessageStore, tenant: str, request: MessagesRequest) -> Reply:
    thread, resource = request.thread, request.resource
    if request.limit is not None:
        if await store.get_thread(tenant, thread, resource) is None:
            raise _unknown(thread)
        return {"messages": await store.recent(tenant, thread, resource, request.limit)}
    page = await store.messages(tenant, thread, resource, page=request.page, per_page=request.per_page)
    if page is None:
        raise _unknown(thread)
    return {"messages": page.items, **_position(request, page.total)}


async def _threads(store: MessageStore, tenant: str, request: ThreadsRequest) -> Reply:
    page = await store.threads(tenant, request.resource, page=request.page, per_page=request.per_page)
    return {"threads": page.items, **_position(request, page.total)}


def _position(request: MessagesRequest | ThreadsRequest, total: int) -> Reply:
    more = (request.page + 1) * request.per_page < total
    return {"page": request.page, "perPage": request.per_page, "total": total, "hasMore": more}


async def _thread(store: MessageStore, tenant: str, request: ThreadRequest) -> Reply:
    thread = await store.get_thread(tenant, request.thread, request.resource)
    if thread is None:
        raise _unknown(request.thread)
    return {"thread": thread}


async def _create(store: MessageStore, tenant: str, request: CreateRequest) -> Reply:
    thread = await store.create_thread(tenant, request.thread, request.resource, title=request.title)
    if thread is None:
        raise ApiError("THREAD_EXISTS", f"this resource already has a thread {request.thread!r}", "thread")
    return {"thread": thread}


async def _rename(store: MessageStore, tenant: str, request: RenameRequest) -> Reply:
    thread = await store.rename_thread(tenant, request.thread, request.resource, request.title)
    if thread is None:
        raise _unknown(request.thread)
    return {"thread": thread}


async def _delete(store: MessageStore, tenant: str, request: ThreadRequest) -> Reply:
    if not await store.delete_thread(tenant, request.thread, request.resource):
        raise _unknown(request.thread)
    return {"deleted": True}


_Operation = tuple[type[StrictModel], Callable[[MessageStore, str, Any], Awaitable[Reply]]]
_OPERATIONS: dict[str, _Operation] = {
    "save": (SaveRequest, _save),
    "messages": (MessagesRequest, _messages),
    "threads": (ThreadsRequest, _threads),
    "thread": (ThreadRequest, _thread),
    "create": (CreateRequest, _create),
    "delete": (ThreadRequest, _delete),
    "rename": (RenameRequest, _rename),
}
OPERATIONS = tuple(_OPERATIONS)
"""The operations that `handle` knows, for whoever subscribes to them."""


def _find(operation: str) -> _Operation:
    if operation not in _OPERATIONS:
        known = ", ".join(OPERATIONS)
        raise ApiError("UNKNOWN_OPERATION", f"unknown operation {operation[:60]!r}; there are {known}")
    return _OPERATIONS[operation]
