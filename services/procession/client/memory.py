"""Threads, messages and working memory, asked of the memory service."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from procession.client.errors import RequestTooLargeError
from procession.client.link import Link
from procession.errors import ProcessionError
from procession_schemas import subjects
from procession_schemas.memory import LONGEST_PAGE
from procession_schemas.run import Failure

__all__ = ["MemoryClient", "MemoryRequestError"]

_SECONDS: Final = 10.0
_PAGE: Final = 128
"""A power of two: where an answer would be too long, half of it is asked for."""


class MemoryRequestError(ProcessionError):
    """The memory service refused; `failure` says why (`UNKNOWN_THREAD`, `INVALID_REQUEST`, ...) and which field."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class MemoryClient:
    """What `procession.memory` offers; a thread belongs to a resource, and every call names both.

    Every call raises MemoryRequestError when the service refuses, and NotAcceptedError when it does not answer: then
    the request may have been carried out, or may still be.
    Threads and messages are plain dicts; pages have `page`, `perPage`, `total` and `hasMore`, and count from 0.
    """

    def __init__(self, link: Link, tenant: str) -> None:
        self._link, self._tenant = link, tenant

    async def threads(self, resource: str, *, page: int = 0, per_page: int = 40) -> dict[str, Any]:
        """A page of `threads` of a resource, the latest updated first."""
        return await self._ask("threads", resource=resource, page=page, perPage=per_page)

    async def thread(self, thread: str, resource: str) -> dict[str, Any]:
        """A thread: `id`, `resource`, `createdAt`, `updatedAt`, and `title` and `metadata` where it has them."""
        return dict((await self._ask("thread", thread=thread, resource=resource))["thread"])

    async def create(
        self, thread: str, resource: str, *, title: str | None = None, metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Creates an empty thread; one that is there already is refused (`THREAD_EXISTS`)."""
        fields = {"thread": thread, "resource": resource, "title": title, "metadata": metadata}
        return dict((await self._ask("create", **fields))["thread"])

    async def rename(self, thread: str, resource: str, title: str) -> dict[str, Any]:
        """Gives a thread a title; an empty one takes it away."""
        return dict((await self._ask("rename", thread=thread, resource=resource, title=title))["thread"])

    async def delete(self, thread: str, resource: str) -> None:
        """Deletes a thread with its messages, its working memory and its embeddings."""
        await self._ask("delete", thread=thread, resource=resource)

    async def messages(
        self, thread: str, resource: str, *, page: int = 0, per_page: int = 40, limit: int | None = None
    ) -> dict[str, Any]:
        """A page of `messages`, oldest first; with `limit` the newest ones, oldest first, and no page."""
        if limit is not None:
            return await self._ask("messages", thread=thread, resource=resource, limit=limit)
        return await self._ask("messages", thread=thread, resource=resource, page=page, perPage=per_page)

    async def save(
        self, thread: str, resource: str, messages: str | dict[str, Any] | Sequence[Any]
    ) -> list[str]:
        """Saves messages in any form that a run takes, also a single one, at most 1,000; gives their ids."""
        several = [messages] if isinstance(messages, str | dict) else list(messages)
        told = await self._ask("save", thread=thread, resource=resource, messages=several)
        return list(told["ids"])

    async def export(self, thread: str, resource: str) -> AsyncIterator[dict[str, Any]]:
        """A thread as pages that `import_page` takes: `thread`, `note` and `messages`."""
        at, size, more = 0, _PAGE, True
        while more:
            place = {"thread": thread, "resource": resource, "page": at // size, "perPage": size}
            try:
                told = await self._ask("export", **place)
            except MemoryRequestError as error:
                if error.failure.code != "ANSWER_TOO_LONG" or size == 1:
                    raise
                size //= 2
            else:
                at, more = at + size, told["hasMore"]
                yield {name: told.get(name) for name in ("thread", "note", "messages")}

    async def import_page(self, page: dict[str, Any], *, embedder: str | None = None) -> list[str]:
        """Takes in a page of an export; messages that the thread has already are replaced, and nothing comes twice.

        A title, metadata and a working memory that are there stay. A page that is too long for one request is sent in
        parts. The messages are queued for the index of semantic recall.

        Args:
            page: As `export` gives it.
            embedder: What embeds the messages where no agent of the tenant has run yet; default: the configured one.
        """
        head, messages = page["thread"], page["messages"]
        fields = {"thread": head["id"], "resource": head["resource"], "messages": messages}
        more = {name: head.get(name) for name in ("title", "metadata")}
        more |= {"note": page.get("note"), "embedder": embedder}
        if not isinstance(messages, list) or len(messages) <= LONGEST_PAGE:
            try:
                return list((await self._ask("import", **fields, **more))["ids"])
            except RequestTooLargeError:
                if len(messages) <= 1:
                    raise
        half = len(messages) // 2
        parts = [{**page, "messages": part} for part in (messages[:half], messages[half:])]
        return [each for part in parts for each in await self.import_page(part, embedder=embedder)]

    async def note(self, resource: str, thread: str | None = None) -> str | None:
        """The working memory of a resource, or of one of its threads."""
        note: str | None = (await self._ask("note", resource=resource, thread=thread)).get("note")
        return note

    async def set_note(self, note: str, resource: str, thread: str | None = None) -> None:
        """Replaces working memory."""
        await self._ask("set-note", resource=resource, thread=thread, note=note)

    async def reindex(self, embedder: str | None = None) -> int:
        """Queues all messages of the tenant for the index of semantic recall; gives how many jobs wait."""
        return int((await self._ask("reindex", embedder=embedder))["waiting"])

    async def index_waiting(self) -> int:
        """How many jobs of the tenant the index has not done yet."""
        return int((await self._ask("index"))["waiting"])

    async def _ask(self, operation: str, **fields: Any) -> dict[str, Any]:
        told = {name: value for name, value in fields.items() if value is not None}
        # Letters as they are: escaped, they may take twice the space. What is none is for the service to refuse.
        body = json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
        subject = subjects.api("memory", self._tenant, operation)
        answer: dict[str, Any] = json.loads(await self._link.ask(subject, body, _SECONDS))
        if "error" in answer:
            raise MemoryRequestError(Failure.model_validate(answer["error"]))
        return answer
