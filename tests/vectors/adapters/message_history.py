"""`message-history.json`: what of a thread is recalled, and what a run leaves in it."""

from typing import Any

from procession_services.memory.core.storable import storable
from procession_services.memory.history import BOUNDARY, MessageHistory
from tests.vectors.adapters.common import from_message, to_message, without
from tests.vectors.adapters.memory_run import MemoryRun, rows, thrown
from tests.vectors.adapters.memory_stage import TENANT, DictMessages, memory_context, resource_of

_QUESTION = "2024-01-01T00:01:40.000Z"
"""When the question of a vector was asked: between the stored messages that are dated."""


async def observe(vector: dict[str, Any]) -> Any:
    """Runs the hook, or the function that saves."""
    hook = vector["input"]["hook"]
    if hook == "persistMessages":
        return await _persist(vector["input"])
    return await (_input(vector) if hook == "processInput" else _output(vector))


async def _input(vector: dict[str, Any]) -> Any:
    given = vector["input"]
    context = given.get("context", {"threadId": "t1", "resourceId": "r1"})
    store = DictMessages()
    resource = resource_of(context)
    for row in rows(vector):
        told = {"role": "user", "parts": [{"type": "text", "text": row["id"]}], **row}
        store.add_message(resource, row.get("threadId", "t1"), {**to_message(told), "createdAt": row["at"]})
    if told := vector["expected"].get("throws"):  # nothing else says that the store fails
        store.fails = ConnectionError(str(told.get("message") if isinstance(told, dict) else told))
    run = MemoryRun(_processor(vector), store, memory_context(context))
    if thread := given.get("messageListThreadId"):
        run.list.thread_id, run.list.resource_id = thread, resource
    question = [{"id": "q", "role": "user", "parts": [{"type": "text", "text": "now"}]}]
    for told in given.get("incoming", [] if "tokensPerMessage" in given else question):
        run.list.add({"createdAt": told.get("at", _QUESTION), **to_message(told)}, "input", merge=False)
    if boundary := _boundary(given):
        await run.values.put(f"{BOUNDARY}:{resource}:t1", boundary)
    error = await run.input()
    if error:
        return {"throws": thrown(error)}
    found = run.list.get.all.db()
    if "tokensPerMessage" in given:
        return {"loaded": [message["id"] for message in run.list.get.remembered.db()]}
    asked = [detail for name, detail in store.calls if name == "recent"]
    return {
        "sameList": True,
        "order": [{"id": m["id"], "source": run.list.source_of(m["id"]), "text": _text(m)} for m in found],
        "listMessagesArgs": [_listed(detail) for detail in asked],
    }


def _boundary(given: dict[str, Any]) -> dict[str, Any] | None:
    """What an earlier trim has stored, which the reference keeps in the thread's metadata, by message or by time."""
    metadata = given.get("threadMetadata") or given.get("metadata") or {}
    told = metadata.get("memoryTokenLimiter") or given.get("boundary")
    if not isinstance(told, dict):
        return None
    dated = {row["id"]: row["at"] for row in given.get("stored") or ()}
    values = [value for value in told.values() if isinstance(value, str)]
    times = [dated[value] for value in values if value in dated] or [v for v in values if v[:2] == "20"]
    return {**told, "createdAt": times[0]} if times else None


def _processor(vector: dict[str, Any]) -> MessageHistory:
    """The processor; each message counts as many tokens as the vector says."""
    tokens = vector["input"].get("tokensPerMessage")

    class Counted(MessageHistory):
        def count_message(self, message: Any) -> float:
            return float(tokens)

    options = {k: v for k, v in without(vector["options"]).items() if k in ("lastMessages", "tokenLimit")}
    return (MessageHistory if tokens is None else Counted).build(options)


def _text(message: Any) -> str:
    return "".join(part.get("text", "") for part in message["content"]["parts"])


def _listed(detail: dict[str, Any]) -> dict[str, Any]:
    """A call of our store in the words of the reference's: the newest `limit`, newest first."""
    page = {"page": detail["skip"] // detail["limit"] if detail["limit"] else 0, "perPage": detail["limit"]}
    order = {"orderBy": {"field": "createdAt", "direction": "DESC"}, "includeTotal": False}
    return {"threadId": detail["thread"], "resourceId": detail["resource"], **page, **order}


async def _output(vector: dict[str, Any]) -> Any:
    given, context = vector["input"], vector["input"].get("context")
    store = DictMessages()
    if given.get("threadExists"):
        store.add_thread("r1", "t1", title="T", metadata={"a": 1}, updatedAt="2020-01-01T00:00:00.000Z")
    if told := vector["expected"].get("throws"):  # nothing else says that the store fails
        store.fails = ConnectionError(str(told.get("message") if isinstance(told, dict) else told))
    options = {"readOnly": True} if given.get("readOnly") else {}
    run = MemoryRun(_processor(vector), store, memory_context(context, **options))
    for source in ("memory", "input", "response"):
        for told in given.get(source) or ():
            run.list.add(to_message(told), source, merge=False)
    error = await run.output((given.get("result") or {}).get("finishReason", "stop"))
    thread = next(iter(store.heads.values()), None)
    kept = [row for saved in store.rows.values() for row in saved.values()]
    observed: dict[str, Any] = {
        "saved": [from_message(row) for row in kept],
        "storageCalls": _calls(store, existed=bool(given.get("threadExists"))),
    }
    if thread is not None:
        told = {"title": thread.get("title", ""), "resourceId": thread["resource"]}
        told["metadata"] = thread.get("metadata", {})
        if given.get("threadExists"):
            told["updatedAtMoved"] = thread["updatedAt"] != "2020-01-01T00:00:00.000Z"
        observed["thread"] = told
    return observed | ({"throws": thrown(error)} if error else {})


def _calls(store: DictMessages, *, existed: bool) -> list[str]:
    """What our one atomic `save` does: it looks for the thread, makes it where it is missing, and saves."""
    found = []
    for name, _ in store.calls:
        found += (
            ["getThreadById", *([] if existed else ["saveThread"]), "saveMessages"]
            if name == "save"
            else [name]
        )
    return found


async def _persist(given: dict[str, Any]) -> Any:
    """What the processor saves of a list of messages."""
    store = DictMessages()
    kept = storable([{"createdAt": _QUESTION, **to_message(told)} for told in given["messages"]])  # type: ignore[typeddict-item]
    resource = given.get("resourceId") or given["threadId"]
    if kept:
        await store.save(TENANT, given["threadId"], resource, kept)
    thread = next(iter(store.heads.values()), None)
    return {"saved": [message["id"] for message in kept], "threadResourceId": thread and thread["resource"]}


def override(vector: dict[str, Any], observed: Any, differences: list[str]) -> str | None:
    """D-18: the incoming copy wins; D-42: false is none, left out it is 10; D-43: a number holds beside a budget, too;
    D-111: what says nothing is not kept.
    """
    if "saved" in observed:
        return _of_saving(vector, observed)
    given, options = vector["input"], without(vector["options"])
    if "loaded" in observed and isinstance(options.get("lastMessages"), int):
        ours, theirs = observed["loaded"], vector["expected"]["loaded"]
        kept = [each for each in theirs if each in ours] == ours
        return "D-43" if kept and len(ours) <= options["lastMessages"] < len(theirs) else None
    if given["hook"] != "processInput" or "order" not in observed:
        return None
    order = observed["order"]
    incoming = {told["id"]: told for told in given.get("incoming") or ()}
    stored = {row["id"] for row in rows(vector) if row.get("role") != "system"}
    both = [entry for entry in order if entry["id"] in incoming and entry["id"] in stored]
    if both:
        fresh = all(
            entry["source"] == "input" and entry["text"] == _text(to_message(incoming[entry["id"]]))
            for entry in both
        )
        twice = {entry["id"] for entry in both}
        ids, expected_ids = (
            [entry["id"] for entry in each if entry["id"] not in twice]
            for each in (order, vector["expected"]["order"])
        )
        return "D-18" if fresh and ids == expected_ids else None
    last = options.get("lastMessages")
    recalled = [entry["id"] for entry in order if entry["source"] == "memory"]
    limits = [asked["perPage"] for asked in observed["listMessagesArgs"]]
    if last is False:
        return "D-42" if not recalled and not any(limits) else None
    if last is None and "tokenLimit" not in options and limits == [10]:
        expected = [e["id"] for e in vector["expected"]["order"] if e["source"] == "memory"]
        return "D-42" if recalled == expected[-10:] else None
    return None


def _of_saving(vector: dict[str, Any], observed: Any) -> str | None:
    """D-111, where only texts that were emptied, and messages of which nothing is left, are missing."""
    given, expected = vector["input"], vector["expected"]
    before = given.get("messages") or [told for key in ("input", "response") for told in given.get(key) or ()]
    rows: list[Any] = [to_message({"createdAt": _QUESTION, **told}) for told in before]
    speaking = {row["id"]: told for row, told in zip(rows, before, strict=True) if storable([row])}
    if given["hook"] == "persistMessages":
        return (
            "D-111" if [each for each in expected["saved"] if each in speaking] == observed["saved"] else None
        )
    kept = [_without_emptied(row, speaking[row["id"]]) for row in expected["saved"] if row["id"] in speaking]
    left = [key for key in expected if key not in ("saved", "storageCalls", "thread")]
    same = kept == observed["saved"] and all(expected[key] == observed.get(key) for key in left)
    return "D-111" if same else None


def _without_emptied(row: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """A message without the texts that were more before; all texts of before are in it, in their order."""
    texts = iter([part["text"] for part in told["parts"] if part["type"] == "text"])
    parts = [p for p in row["parts"] if p["type"] != "text" or (p["text"] == "") is (next(texts) == "")]
    return {**row, "parts": parts}
