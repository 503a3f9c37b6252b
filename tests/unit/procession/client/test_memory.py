"""What a client makes of messages that it saves, and of threads that are longer than a message of NATS."""

import json
from typing import Any

import pytest

from procession.client import MemoryRequestError, RequestTooLargeError
from procession.client.memory import MemoryClient

LONGEST = 1_000
TEXTS = [letter * 100 for letter in "ab字c字字字d字字字e"]


class Service:
    """A link to a service that has one thread, behind a broker that takes so many bytes."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.imported = list(texts), list[Any]()

    async def ask(self, subject: str, body: bytes, _seconds: float) -> bytes:
        if len(body) > LONGEST:
            raise RequestTooLargeError("the request is too long")
        operation, asked = subject.rpartition(".")[2], json.loads(body)
        answer = json.dumps(getattr(self, f"_{operation}")(asked), ensure_ascii=False).encode()
        if len(answer) <= LONGEST:
            return answer
        return b'{"error": {"code": "ANSWER_TOO_LONG", "message": "ask for a smaller page"}}'

    def _export(self, asked: dict[str, Any]) -> dict[str, Any]:
        first, size = asked["page"] * asked["perPage"], asked["perPage"]
        thread = {"id": asked["thread"], "resource": asked["resource"]}
        more = first + size < len(self.texts)
        return {"thread": thread, "note": None, "messages": self.texts[first : first + size], "hasMore": more}

    def _import(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.imported += asked["messages"]
        return {"ids": asked["messages"]}

    _save = _import


def client(service: Any) -> MemoryClient:
    return MemoryClient(service, "tenant")


async def test_a_thread_of_long_messages_is_exported_in_shorter_pages() -> None:
    pages = [page async for page in client(Service(*TEXTS)).export("t", "ann")]
    assert [text for page in pages for text in page["messages"]] == TEXTS
    assert len(pages) > 1


async def test_a_message_that_is_too_long_by_itself_is_told() -> None:
    with pytest.raises(MemoryRequestError, match="smaller page"):
        await anext(client(Service("x" * LONGEST)).export("t", "ann"))


async def test_what_was_exported_can_be_imported() -> None:
    service = Service(*TEXTS)
    async for page in client(service).export("t", "ann"):
        await client(service).import_page(page)
    assert service.imported == TEXTS


async def test_a_page_that_is_too_long_is_imported_in_parts() -> None:
    service = Service()
    page = {"thread": {"id": "t", "resource": "ann"}, "messages": TEXTS}
    assert await client(service).import_page(page) == TEXTS
    assert service.imported == TEXTS
    with pytest.raises(RequestTooLargeError):
        await client(service).import_page({**page, "messages": ["x" * LONGEST]})


@pytest.mark.parametrize("one", ["Hello", {"role": "user", "content": "Hello"}])
async def test_a_single_message_is_saved_as_one(one: Any) -> None:
    service = Service()
    for given in (one, [one], (one,)):
        await client(service).save("t", "ann", given)
    assert service.imported == [one] * 3
