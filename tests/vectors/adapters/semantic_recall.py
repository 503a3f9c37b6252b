"""`semantic-recall.json`: hits that a noted index gives, and what is put into it."""

import re
from typing import Any

from procession_services.memory.core.recall_text import other_conversations
from procession_services.memory.indexing import Indexer
from procession_services.memory.ports import Hit, VectorsUnavailableError
from procession_services.memory.recall import EmbeddingError, Recall
from procession_services.memory.semantic import SemanticRecall
from tests.vectors.adapters.common import without
from tests.vectors.adapters.memory_run import MemoryRun
from tests.vectors.adapters.memory_stage import (
    DictMessages,
    ListQueue,
    NotedEmbedder,
    NotedVectors,
    memory_context,
    resource_of,
)

PROSE = {"loggedErrors", "0", "1", "2", "3"}
"""Lines of what was logged stand below their place in the list."""


class _Stage:
    """Store, index and embedder of one vector."""

    def __init__(self, given: dict[str, Any]) -> None:
        fails = VectorsUnavailableError("down") if given.get("vectorFails") else None
        hits = [Hit(h["id"], h.get("thread_id", "t1"), h["score"]) for h in given.get("vectorHits") or ()]
        self.vectors = NotedVectors(hits, fails)
        broken = EmbeddingError("no vector") if given.get("embedderFails") else None
        model = given.get("embedderModelId", "test-embed-3.small")
        self.embedder = NotedEmbedder("" if model in (None, "<undefined>") else model, broken)
        self.queue, self.store, self.logged = ListQueue(), DictMessages(), list[str]()
        self.recall = Recall(self.vectors, lambda _name, _options: self.embedder, self.queue)
        self.known = [row["id"] for row in given.get("stored") or ()]

    async def index(self) -> None:
        """Does what is queued, once."""
        while self.queue.jobs:
            try:
                await Indexer(self.recall, self.store).work(self.queue.jobs.pop(0))
            except EmbeddingError as error:
                self.logged.append(str(error))


def _message(told: dict[str, Any]) -> dict[str, Any]:
    """A message: parts are separated by `|`; `content` stands beside them."""
    texts = told["text"].split("|") if told.get("text") else []
    content: dict[str, Any] = {"format": 2, "parts": [{"type": "text", "text": text} for text in texts]}
    content |= {key: told[key] for key in ("content", "metadata") if told.get(key) is not None}
    if "parts" in told:
        content["parts"] = told["parts"]
    return {"id": told["id"], "role": told["role"], "createdAt": told["at"], "content": content}


async def observe(vector: dict[str, Any]) -> Any:
    """Runs the hook; indexing, which is done behind a run's back, is done at once."""
    return await (_input(vector) if vector["input"]["hook"] == "processInput" else _output(vector))


def _options(vector: dict[str, Any]) -> dict[str, Any]:
    known = {"topK", "messageRange", "scope", "threshold", "indexName", "embedderOptions"}
    return {key: value for key, value in without(vector["options"]).items() if key in known}


async def _input(vector: dict[str, Any]) -> Any:
    given = vector["input"]
    stage, context = _Stage(given), given.get("context")
    for row in given.get("stored") or ():
        stage.store.add_message(resource_of(context), row["threadId"], _message(row))
    run = MemoryRun(
        SemanticRecall.build(_options(vector)), stage.store, memory_context(context), stage.recall
    )
    for told in given["incoming"]:
        run.list.add({**_message(told), "threadId": told.get("threadId", "t1")}, "input", merge=False)
    for told in given.get("memory") or ():
        run.list.add({**_message(told), "threadId": told.get("threadId", "t1")}, "memory", merge=False)
    await run.input()
    others = [message["content"] for message in run.list.get_system_messages("memory")]
    observed: dict[str, Any] = {
        "order": [f"{m['id']}:{run.list.source_of(m['id'])}" for m in run.list.get.all.db()],
        "queryText": stage.embedder.texts,
        "vectorQueries": [_query(each) for each in stage.vectors.queries],
        "createIndex": [
            {"indexName": index.name, "dimension": index.dimension, "metric": "cosine"}
            for index in stage.vectors.ensured
        ],
    }
    if others:
        observed["crossThreadSystemMessage"] = others
    return observed | ({"loggedErrors": run.warnings} if run.warnings else {})


def _texts(message: Any) -> list[str]:
    return [part["text"] for part in message["content"]["parts"] if part["type"] == "text" and part["text"]]


def _query(asked: dict[str, Any]) -> dict[str, Any]:
    """A query in the words of the reference's; ours says the resource as well where it asks for a thread."""
    where = {"resource_id": asked["resource"]} if asked["thread"] is None else _both(asked)
    return {"indexName": asked["index"].name, "topK": asked["topK"], "filter": where}


def _both(asked: dict[str, Any]) -> dict[str, Any]:
    return {"thread_id": asked["thread"], "resource_id": asked["resource"]}


async def _output(vector: dict[str, Any]) -> Any:
    given = vector["input"]
    stage = _Stage(given)
    options = {"readOnly": True} if given.get("readOnly") else {}
    context = memory_context(given.get("context"), **options)
    for _ in range(2 if given.get("runTwice") else 1):
        run = MemoryRun(SemanticRecall.build(_options(vector)), stage.store, context, stage.recall)
        for source in ("memory", "input", "response"):
            for told in given.get(source) or ():
                run.list.add({**_message(told), "threadId": told["threadId"]}, source, merge=False)
        await run.output()
        await stage.index()
    observed: dict[str, Any] = {
        "returnsSameList": True,
        "embeddedTexts": stage.embedder.texts,
        "upserts": [
            {
                "indexName": index.name,
                "ids": [item.id for item in items],
                "metadata": [dict(item.metadata) for item in items],
            }
            for index, items in stage.vectors.upserts
        ],
        "createIndexCalls": len(stage.vectors.ensured),
    }
    return observed | ({"loggedErrors": stage.logged} if stage.logged else {})


def override(vector: dict[str, Any], observed: Any, differences: list[str]) -> str | None:
    """D-26: messages of other threads in UTC, a line each, in a closed tag; D-86: a thread is one of its resource;
    D-41: a flat copy of a text follows its parts.
    """
    expected = vector["expected"]
    keys = {key for key in {*expected, *observed} if expected.get(key) != observed.get(key)} - PROSE
    rules = {_rule(key, vector, observed) for key in keys}
    return next(iter(rules)) if len(rules) == 1 else None


def _rule(key: str, vector: dict[str, Any], observed: Any) -> str | None:
    given, expected = vector["input"], vector["expected"]
    if key == "crossThreadSystemMessage":
        return "D-26" if expected.get(key) and observed.get(key) == [_block(vector)] else None
    if key == "vectorQueries":
        resource = resource_of(given.get("context"))
        widened = [
            {**asked, "filter": {**asked["filter"], "resource_id": resource}} for asked in expected[key]
        ]
        return "D-86" if observed[key] == widened else None
    if key == "queryText":
        asked = [" ".join(_texts(_message(told))) for told in given["incoming"] if told["role"] == "user"]
        written = [text for text in asked if text]
        follows = bool(written) and observed[key] == written[-1:] and expected[key][0] not in written
        return "D-41" if follows else None
    return None


def _block(vector: dict[str, Any]) -> str:
    """What the rule makes of the messages that the reference shows."""
    told = "\n".join(vector["expected"]["crossThreadSystemMessage"]).replace("Message from", "\nMessage from")
    shown = [
        {**_message(row), "threadId": row["threadId"]}
        for row in vector["input"]["stored"]
        if row["threadId"] != "t1"
        and row.get("text")
        and re.search(rf"\b{re.escape(' '.join(row['text'].split('|')))}\b", told)
    ]
    return other_conversations(shown)  # type: ignore[arg-type]
