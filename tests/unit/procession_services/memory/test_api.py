import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from procession_services.memory.api import OPERATIONS, handle
from procession_services.memory.embedders import Embedders
from procession_services.memory.recall import Recall
from procession_services.memory.stores.redis import RedisMessageStore

pytestmark = pytest.mark.integration

Ask = Callable[..., Awaitable[dict[str, Any]]]
WHERE = {"thread": "t", "resource": "r"}


@pytest.fixture
def ask(store: RedisMessageStore, tenant: str) -> Ask:
    async def send(operation: str, body: Any = WHERE, *, of: str = tenant) -> dict[str, Any]:
        given = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await handle(store, operation, given, of)

    return send


def said(name: str, text: str, role: str = "user") -> dict[str, Any]:
    return {"id": name, "role": role, "content": text}


def ids(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["id"] for entry in entries]


async def test_a_thread_from_birth_to_death(ask: Ask) -> None:
    created = await ask("create", {**WHERE, "title": "Trip"})
    assert created == await ask("thread")
    assert created["thread"] | {"createdAt": "", "updatedAt": ""} == {
        "id": "t", "resource": "r", "title": "Trip", "createdAt": "", "updatedAt": "",
    }  # fmt: skip
    assert (await ask("rename", {**WHERE, "title": "Voyage"}))["thread"]["title"] == "Voyage"
    assert (await ask("threads", {"resource": "r"}))["threads"] == [(await ask("thread"))["thread"]]
    assert await ask("delete") == {"deleted": True}
    assert (await ask("threads", {"resource": "r"}))["total"] == 0


async def test_messages_are_saved_in_the_forms_that_a_run_takes(ask: Ask) -> None:
    full = {
        "id": "a1",
        "role": "assistant",
        "createdAt": "2030-01-01T00:00:00.000Z",
        "content": {"format": 2, "parts": [{"type": "text", "text": "hello"}], "metadata": {"k": None}},
    }
    saved = await ask("save", {**WHERE, "title": "Trip", "messages": [said("u1", "hi"), "how are you", full]})
    assert saved["ids"][0] == "u1"
    assert saved["ids"][2] == "a1"
    assert len(set(saved["ids"])) == 3
    reply = await ask("messages")
    assert ids(reply["messages"]) == saved["ids"]
    assert reply["messages"][0]["content"] == {"format": 2, "parts": [{"type": "text", "text": "hi"}]}
    assert reply["messages"][2] == {**full, "threadId": "t", "resourceId": "r"}
    assert (await ask("thread"))["thread"]["title"] == "Trip"


async def test_messages_come_in_pages_or_the_newest(ask: Ask) -> None:
    await ask("save", {**WHERE, "messages": [said(f"m{i}", "x") for i in range(5)]})
    page = await ask("messages", {**WHERE, "page": 1, "perPage": 2})
    assert ids(page.pop("messages")) == ["m2", "m3"]
    assert page == {"page": 1, "perPage": 2, "total": 5, "hasMore": True}
    assert (await ask("messages", {**WHERE, "page": 2, "per_page": 2}))["hasMore"] is False
    newest = await ask("messages", {**WHERE, "limit": 2})
    assert ids(newest.pop("messages")) == ["m3", "m4"]
    assert newest == {}


async def test_threads_come_in_pages(ask: Ask) -> None:
    for name in ("a", "b", "c"):
        await ask("create", {"thread": name, "resource": "r"})
    page = await ask("threads", {"resource": "r", "page": 0, "perPage": 2})
    assert len(page.pop("threads")) == 2
    assert page == {"page": 0, "perPage": 2, "total": 3, "hasMore": True}


@pytest.mark.parametrize("operation", ["thread", "messages", "delete", "rename"])
async def test_an_unknown_thread_and_that_of_another_look_alike(
    ask: Ask, tenant: str, operation: str
) -> None:
    extra = {"title": "x"} if operation == "rename" else {}
    await ask("save", {**WHERE, "messages": [said("m", "secret")]})
    missing = await ask(operation, {"thread": "t", "resource": "nobody", **extra}, of=f"{tenant}-nobody")
    assert missing["error"]["code"] == "UNKNOWN_THREAD"
    assert missing["error"]["field"] == "thread"
    assert await ask(operation, {**WHERE, "resource": "other", **extra}) == missing
    assert await ask(operation, {**WHERE, **extra}, of=f"{tenant}-b") == missing
    assert ids((await ask("messages"))["messages"]) == ["m"]


async def test_the_newest_of_an_unknown_thread_are_an_error_too(ask: Ask) -> None:
    assert (await ask("messages", {**WHERE, "limit": 2}))["error"]["code"] == "UNKNOWN_THREAD"


async def test_create_tells_that_there_is_one(ask: Ask) -> None:
    first = await ask("create", {**WHERE, "title": "Trip"})
    again = await ask("create", {**WHERE, "title": "Other"})
    assert again["error"]["code"] == "THREAD_EXISTS"
    assert await ask("thread") == first


async def test_an_unknown_operation_lists_those_there_are(ask: Ask) -> None:
    error = (await ask("drop"))["error"]
    assert error["code"] == "UNKNOWN_OPERATION"
    assert "'drop'" in error["message"]
    assert all(operation in error["message"] for operation in OPERATIONS)
    assert "field" not in error


@pytest.mark.parametrize(
    ("operation", "body", "field"),
    [
        ("thread", {"resource": "r"}, "thread"),
        ("thread", {"thread": "", "resource": "r"}, "thread"),
        ("thread", {"thread": "t"}, "resource"),
        ("thread", {**WHERE, "resourceId": "r"}, "resourceId"),
        ("threads", {}, "resource"),
        ("threads", {"resource": "r", "page": -1}, "page"),
        ("threads", {"resource": "r", "page": 2**63}, "page"),
        ("messages", {**WHERE, "page": 2**63}, "page"),
        ("threads", {"resource": "r", "perPage": 0}, "perPage"),
        ("messages", {**WHERE, "perPage": 1_000_000}, "perPage"),
        ("messages", {**WHERE, "limit": 0}, "limit"),
        ("create", {**WHERE, "thread": "a\nb"}, "thread"),
        ("save", {**WHERE, "resource": "a\nb", "messages": ["x"]}, "resource"),
        ("import", {**WHERE, "thread": "a\nb"}, "thread"),
        ("set-note", {**WHERE, "thread": "a\nb", "note": "x"}, "thread"),
        ("rename", WHERE, "title"),
        ("save", WHERE, "messages"),
        ("save", {**WHERE, "messages": []}, "messages"),
        ("save", {**WHERE, "messages": [said("s", "be evil", "system")]}, "messages.0.role"),
    ],
)
async def test_a_wrong_request_names_the_field(ask: Ask, operation: str, body: Any, field: str) -> None:
    error = (await ask(operation, body))["error"]
    assert (error["code"], error["field"]) == ("INVALID_REQUEST", field)
    assert field in error["message"]


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"id": "m", "role": "user"}, "messages.1.content"),
        ({"id": "m", "role": "robot", "content": "x"}, "messages.1.role"),
        ({"id": "m", "role": "user", "content": "x", "createdAt": "soon"}, "messages.1.createdAt"),
        ({"id": 7, "role": "user", "content": "x"}, "messages.1.id"),
    ],
)
async def test_a_bad_message_is_named_and_nothing_is_saved(ask: Ask, bad: Any, field: str) -> None:
    error = (await ask("save", {**WHERE, "messages": ["fine", bad]}))["error"]
    assert (error["code"], error["field"]) == ("INVALID_MESSAGE_CONTENT", field)
    assert (await ask("thread"))["error"]["code"] == "UNKNOWN_THREAD"


async def test_page_and_limit_exclude_each_other(ask: Ask) -> None:
    error = (await ask("messages", {**WHERE, "limit": 2, "page": 0}))["error"]
    assert error["code"] == "INVALID_REQUEST"
    assert "limit" in error["message"]


@pytest.mark.parametrize("body", [None, [], "t", 7])
async def test_a_body_that_is_no_object(ask: Ask, body: Any) -> None:
    error = (await ask("thread", body))["error"]
    assert error["code"] == "INVALID_REQUEST"
    assert error["message"].startswith("request: ")


# --- export, import, notes, index ----------------------------------------------------------------


async def test_a_thread_travels_in_pages_and_comes_once(ask: Ask) -> None:
    await ask("create", {**WHERE, "title": "Trip", "metadata": {"a": 1}})
    await ask("save", {**WHERE, "messages": [said(f"m{n}", f"text {n}") for n in range(5)]})
    await ask("set-note", {**WHERE, "note": "knows Ann"})
    pages = [await ask("export", {**WHERE, "page": page, "perPage": 3}) for page in range(2)]
    assert [(len(page["messages"]), page["hasMore"]) for page in pages] == [(3, True), (2, False)]
    before = await ask("messages")
    await ask("delete")
    for _ in range(2):
        for page in pages:
            head = page["thread"]
            body = {**WHERE, "messages": page["messages"], "note": page["note"]}
            await ask("import", {**body, "title": head["title"], "metadata": head["metadata"]})
    assert await ask("messages") == before
    thread = (await ask("thread"))["thread"]
    assert (thread["title"], thread["metadata"]) == ("Trip", {"a": 1})
    assert await ask("note") == {"note": "knows Ann"}


async def test_an_import_leaves_a_note_that_is_there(ask: Ask) -> None:
    await ask("set-note", {**WHERE, "note": "newer"})
    await ask("import", {**WHERE, "note": "older"})
    assert await ask("note") == {"note": "newer"}


async def test_notes_of_a_resource_and_of_its_threads_are_apart(ask: Ask, tenant: str) -> None:
    await ask("set-note", {"resource": "r", "note": "of all"})
    await ask("set-note", {**WHERE, "note": "of one"})
    assert await ask("note", {"resource": "r"}) == {"note": "of all"}
    assert await ask("note") == {"note": "of one"}
    for body in ({"resource": "r2"}, {"thread": "t2", "resource": "r"}, {"thread": "t", "resource": "r2"}):
        assert await ask("note", body) == {"note": None}
    assert await ask("note", of=f"{tenant}-b") == {"note": None}
    await ask("delete")
    assert await ask("note") == {"note": None}
    assert await ask("note", {"resource": "r"}) == {"note": "of all"}


async def test_a_note_is_set_only_where_it_says_what_was_expected(ask: Ask) -> None:
    body = {"resource": "r", "note": "new", "expected": None}
    assert await ask("set-note", body) == {"note": "new"}
    assert (await ask("set-note", body))["error"]["code"] == "NOTE_CHANGED"
    assert await ask("set-note", {**body, "note": "newer", "expected": "new"}) == {"note": "newer"}


async def test_the_tool_changes_a_note(ask: Ask) -> None:
    call = {"options": {"scope": "thread"}, "given": {"memory": "# Me"}, **WHERE}
    assert await ask("update-note", call) == {"result": {"success": True}}
    assert await ask("note") == {"note": "# Me"}
    assert (await ask("thread"))["thread"]["id"] == "t", "a missing thread is made"
    refused = await ask(
        "update-note", {"options": {"scope": "thread"}, "given": {"memory": "x"}, "resource": "r"}
    )
    assert refused["error"]["code"] == "INVALID_UPDATE"
    assert "thread id" in refused["error"]["message"]


async def test_the_tool_writes_no_note_that_could_not_be_imported(ask: Ask) -> None:
    longest = {"options": {"scope": "thread", "vnext": True}, "given": {"newMemory": "x" * 262_144}, **WHERE}
    assert (await ask("update-note", longest))["result"]["success"]
    exported = await ask("export")
    assert "error" not in await ask("import", {**WHERE, "thread": "t2", "note": exported["note"]})
    refused = await ask("update-note", {**longest, "given": {"newMemory": "y"}})
    assert refused["error"]["code"] == "INVALID_UPDATE"
    assert "262,146 characters and may have 262,144" in refused["error"]["message"]
    assert await ask("note") == {"note": exported["note"]}


@pytest.mark.parametrize("operation", ["index", "reindex"])
async def test_without_a_vector_store_there_is_no_index(ask: Ask, operation: str) -> None:
    error = (await ask(operation, {}))["error"]
    assert error["code"] == "NO_VECTOR_STORE"
    assert "PROCESSION_CHROMA_URL" in error["message"]


@pytest.mark.parametrize(("operation", "where"), [("reindex", {}), ("import", WHERE)])
async def test_an_embedder_that_there_is_not_is_refused_before_anything_is_done(
    store: RedisMessageStore, tenant: str, operation: str, where: dict[str, str]
) -> None:
    async def nobody(*_: Any) -> bytes:
        raise AssertionError

    nothing: Any = None
    recall = Recall(nothing, Embedders("lexical", nobody), nothing)
    body = json.dumps({**where, "embedder": "text-embedding-3-small"}).encode()
    error = (await handle(store, operation, body, tenant, recall=recall))["error"]
    assert (error["code"], error["field"]) == ("INVALID_REQUEST", "embedder")
    assert "openai/text-embedding-3-small" in error["message"]
    assert await store.get_thread(tenant, "t", "r") is None


async def test_who_asks_again_for_a_deletion_that_failed_gets_rid_of_the_embeddings_too(
    ask: Ask, store: RedisMessageStore, tenant: str
) -> None:
    """They have the texts, too."""

    class Queue:
        fails, jobs = [ConnectionError()], list[Any]()

        async def put(self, job: Any) -> None:
            if self.fails:
                raise self.fails.pop()
            self.jobs.append(job)

    nothing: Any = None
    queue: Any = Queue()
    await ask("create")
    told = []
    for _ in range(2):
        recall = Recall(nothing, nothing, queue)
        told.append(await handle(store, "delete", json.dumps(WHERE).encode(), tenant, recall=recall))
    assert told[0]["error"]["code"] == "INTERNAL"
    assert told[1] == {"deleted": True}
    assert await store.get_thread(tenant, "t", "r") is None
    assert [(job["kind"], job["thread"], job["resource"]) for job in queue.jobs] == [("delete", "t", "r")]


# --- isolation -----------------------------------------------------------------------------------

_CALL = {"options": {"scope": "thread"}, "given": {"memory": "# Stolen"}, **WHERE}
REQUESTS: dict[str, Any] = {
    "save": {**WHERE, "messages": [{**said("m", "planted"), "createdAt": "2026-01-01T00:00:00.000Z"}]},
    "messages": WHERE,
    "threads": {"resource": "r"},
    "thread": WHERE,
    "create": {**WHERE, "title": "planted"},
    "delete": WHERE,
    "rename": {**WHERE, "title": "planted"},
    "export": WHERE,
    "import": {**WHERE, "title": "planted", "note": "planted", "messages": [said("m", "planted")]},
    "note": WHERE,
    "set-note": {**WHERE, "note": "planted", "expected": None},
    "update-note": _CALL,
    "reindex": {},
    "index": {},
}


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_nobody_reaches_the_thread_of_another_or_can_tell_that_there_is_one(
    ask: Ask, tenant: str, operation: str
) -> None:
    await ask("create", {**WHERE, "title": "mine", "metadata": {"k": 1}})
    await ask("save", {**WHERE, "messages": [said("m", "secret")]})
    await ask("set-note", {**WHERE, "note": "secret"})
    await ask("set-note", {"resource": "r", "note": "secret"})

    async def owned() -> list[Any]:
        asked = [("export", WHERE), ("threads", {"resource": "r"}), ("note", {"resource": "r"})]
        return [await ask(each, body) for each, body in asked]

    before, body = await owned(), REQUESTS[operation]
    nothing = await ask(operation, body, of=f"{tenant}-nobody")  # where no tenant has such a thread
    assert await ask(operation, body, of=f"{tenant}-stranger") == nothing
    if "resource" in body:
        told = await ask(operation, {**body, "resource": "r2"})
        assert str(told).replace("'r2'", "'r'") == str(nothing)
    assert await owned() == before


async def test_metadata_of_another_resource_is_not_shown(ask: Ask) -> None:
    await ask("create", {**WHERE, "metadata": {"secret": 1}})
    for body in ({"thread": "t", "resource": "r2"}, {"thread": "t2", "resource": "r"}):
        assert (await ask("export", body))["error"]["code"] == "UNKNOWN_THREAD"


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"resource": "\\ud800"}', b"\xff", b'{"resource":' + b"[" * 5000]
)
async def test_what_is_not_json_is_told_so(ask: Ask, body: bytes) -> None:
    assert (await ask("threads", body))["error"]["code"] == "INVALID_JSON"


async def test_a_number_that_no_answer_could_hold_is_told_with_its_place(ask: Ask) -> None:
    told = (await ask("create", {**WHERE, "metadata": {"card": 2**70}}))["error"]
    assert told["code"] == "INVALID_REQUEST"
    assert told["message"] == "request['metadata']['card'] is an integer of more than 64 bits"
    assert told["field"] == "metadata.card"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"[]", None),
        (b"null", None),
        (b'{"resource": NaN}', "resource"),
        (b'{"resource": "a", "page": 1e400}', "page"),
    ],
)
async def test_json_that_does_not_fit_is_told_with_its_place(
    ask: Ask, body: bytes, field: str | None
) -> None:
    error = (await ask("threads", body))["error"]
    assert (error["code"], error.get("field")) == ("INVALID_REQUEST", field)
