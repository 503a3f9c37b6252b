"""What threads keep, over the whole system: eager saving, partial answers, retention, and embeddings."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from procession_services.memory.core import lexical
from procession_services.memory.ports import Index
from procession_services.memory.stores.chroma import ChromaVectors
from tests.support.servers import own_chroma
from tests.support.system import SERVICES, finished, running_system
from tests.support.waiting import indexed

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="session"),
]

_names = map("r{}".format, itertools.count())
NOTED = {"chunks": ["noted"]}
PAGE = Path(__file__).parents[2] / "docs" / "memory.md"
OF_MASTRA = [
    {
        "id": "9541727c",
        "content": {
            "format": 2,
            "parts": [
                {"type": "text", "text": "weather in Ulm?", "createdAt": 1795844260275},
                {"type": "file", "data": "data:image/png;base64,iVBORw0KGgo=", "mimeType": "image/png"},
            ],
            "content": "weather in Ulm?",
        },
        "role": "user",
        "createdAt": "2026-11-28T05:37:40.275Z",
        "threadId": "t",
    },
    {
        "id": "68fb7380",
        "content": {
            "format": 2,
            "parts": [
                {
                    "type": "reasoning",
                    "reasoning": "hmm",
                    "details": [{"type": "text", "text": "hmm"}],
                    "createdAt": 1795844260381,
                },
                {
                    "type": "tool-invocation",
                    "toolInvocation": {
                        "state": "result",
                        "toolCallId": "c1",
                        "toolName": "weather",
                        "args": {"city": "Ulm"},
                        "result": {"t": 5},
                    },
                },
                {"type": "step-start", "createdAt": 1795844260412, "model": "openai/script:mm"},
                {"type": "text", "text": "It is 5.", "createdAt": 1795844260445},
            ],
            "metadata": {"modelId": "script:mm", "provider": "openai"},
            "content": "It is 5.",
        },
        "role": "assistant",
        "createdAt": "2026-11-28T05:37:40.381Z",
        "threadId": "t",
    },
]
"""What `recall` of `@mastra/memory` 1.31.0 gives, as JSON."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def chroma(tmp_path_factory):
    async with own_chroma(tmp_path_factory.mktemp("chroma")) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def vectors(chroma):
    """Chroma's clients of one process share connections, so this one outlives that of the memory service."""
    vectors = ChromaVectors.over_http(chroma.url)
    yield vectors
    await vectors.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, chroma, vectors, tmp_path_factory, monkeypatch_module):
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with (
        running_system(servers, tmp_path_factory.mktemp("logs")) as system,
        system.inside(*SERVICES, chroma_url=chroma.url, embedder="lexical"),
    ):
        yield system


@pytest.fixture
def resource():
    return next(_names)


@pytest.fixture
def embedded_messages(system, vectors, resource):
    """Asks Chroma itself which messages of the resource it has, once the index has done everything."""
    index = Index(system.client.tenant, "messages", lexical.ID, lexical.DIMENSION)

    async def ask():
        await indexed(system.client.memory)
        hits = await vectors.query(index, lexical.embed("x"), top_k=100, resource=resource, thread=None)
        return sorted(str(hit.metadata["content"]) for hit in hits)

    return ask


async def say(system, text, resource, **options):
    where = {"thread": "t", "resource": resource}
    agent = {"memory": {"semanticRecall": {}, **options}}
    result, _ = await system.run(NOTED, text=text, agent=agent, memory=where)
    assert result.status == "finished", result.error


async def texts_in(system, resource):
    page = await system.client.memory.messages("t", resource)
    return [message["content"]["parts"][0]["text"] for message in page["messages"]]


@pytest.mark.parametrize(("save", "stored"), [("eager", ["question"]), ("end", [])])
async def test_eager_saving_stores_the_question_before_the_model_is_asked(system, resource, save, stored):
    gate, model = system.gate(), system.script(NOTED)
    agent = {
        "model": model,
        "memory": {"save": save},
        "inputProcessors": [gate.processor("processInputStep")],
    }
    handle = await system.start(text="question", agent=agent, memory={"thread": "t", "resource": resource})
    await gate.reached()
    assert await texts_in(system, resource) == stored
    assert system.requests(model) == []
    await gate.open()
    assert (await finished(handle))[0].status == "finished"
    assert await texts_in(system, resource) == ["question", "noted"]


@pytest.mark.parametrize("mark", [True, False])
async def test_a_cancelled_run_stores_what_there_was_of_its_answer(system, resource, mark):
    handle = await system.start(
        {"chunks": ["part ", *["more "] * 500], "chunk_delay_ms": 20}, text="question",
        agent={"memory": {"markPartial": mark}}, memory={"thread": "t", "resource": resource},
    )  # fmt: skip
    async for chunk in handle:
        if chunk["type"] == "text-delta":
            break
    await handle.cancel()
    assert (await finished(handle))[0].status == "cancelled"
    question, answer = (await system.client.memory.messages("t", resource))["messages"]
    assert question["content"]["parts"][0]["text"] == "question"
    assert answer["content"]["parts"][0]["text"].startswith("part ")
    assert answer["content"].get("metadata", {}).get("partial", False) is mark


async def test_retention_removes_messages_and_their_embeddings(system, resource, embedded_messages):
    for text in ("one", "two", "three"):
        await say(system, text, resource, retention={"maxMessages": 4})
    assert await texts_in(system, resource) == ["two", "noted", "three", "noted"]
    assert await embedded_messages() == ["noted", "noted", "three", "two"]


async def test_deleting_a_thread_removes_its_embeddings_and_no_others(system, resource, embedded_messages):
    await say(system, "one", resource)
    await system.client.memory.save("other", resource, ["stays"])
    assert await embedded_messages() == ["noted", "one", "stays"]
    await system.client.memory.delete("t", resource)
    assert await embedded_messages() == ["stays"]


async def test_importing_a_thread_brings_its_embeddings_back(system, resource, embedded_messages):
    memory = system.client.memory
    await say(system, "one", resource)
    pages = [page async for page in memory.export("t", resource)]
    await memory.delete("t", resource)
    assert await embedded_messages() == []
    for _ in range(2):
        for page in pages:
            await memory.import_page(page)
    assert await embedded_messages() == ["noted", "one"]


async def test_threads_of_mastra_come_as_they_are(system, resource):
    [bring] = re.findall(r"^async def bring.*?(?=^```)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(bring, names)
    thread = {"id": "t", "resourceId": resource, "title": "Ulm", "metadata": {"a": 1}}
    messages = [{**each, "resourceId": resource} for each in OF_MASTRA]
    memory = system.client.memory
    await names["bring"](memory, {"thread": thread, "messages": messages})
    assert (await memory.messages("t", resource))["messages"] == messages
    told = await memory.thread("t", resource)
    assert (told["title"], told["metadata"]) == ("Ulm", {"a": 1})


async def test_a_thread_of_more_messages_than_a_request_may_have_is_imported_in_parts(system, resource):
    memory = system.client.memory
    texts = [f"{number}" for number in range(2500)]
    page = {"thread": {"id": "t", "resource": resource}, "messages": texts}
    assert len(await memory.import_page(page)) == 2500
    told = [
        m for n in range(3) for m in (await memory.messages("t", resource, page=n, per_page=1000))["messages"]
    ]
    assert [message["content"]["parts"][0]["text"] for message in told] == texts
