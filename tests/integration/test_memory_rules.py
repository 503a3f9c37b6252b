"""What a run leaves in memory, and what it does not, with every kind of memory (builtins.md 17, R-AB-16)."""

import pytest
import pytest_asyncio

from procession.client import MemoryRequestError
from tests.support.system import SERVICES, running_system
from tests.support.waiting import indexed

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

CALL = {"tool_calls": [{"id": "c", "name": "echo", "arguments": {"text": "dogs"}}]}
DONE = {"chunks": ["noted"]}
HISTORY = {"workingMemory": {"template": "# Me"}, "semanticRecall": True}
OBSERVING = {"observationalMemory": {"observation": {"messageTokens": 4, "bufferTokens": 1}}}
PLACES = (
    ("inputProcessors", "processInput"),
    ("inputProcessors", "processInputStep"),
    ("inputProcessors", "processLLMRequest"),
    ("outputProcessors", "processOutputStream"),
    ("outputProcessors", "processOutputStep"),
    ("outputProcessors", "processToolResult"),
    ("outputProcessors", "processOutputResult"),
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "unused")
        async with running_system(servers, tmp_path_factory.mktemp("logs")) as system:
            chroma = tmp_path_factory.mktemp("chroma")
            async with system.inside(*SERVICES, chroma_path=chroma, embedder="lexical"):
                yield system


async def saved(system, resource):
    """The texts of the thread; nothing where there is none."""
    try:
        page = await system.client.memory.messages("t", resource)
    except MemoryRequestError:
        return []
    return [part["text"] for m in page["messages"] for part in m["content"]["parts"] if part.get("text")]


async def left(system, resource):
    """The keys of a resource that hold something that was said, and what waits for the index."""
    base = f"procession:{system.client.tenant}:memory:{resource}:"
    keys = [key.decode().removeprefix(base) async for key in system.redis.scan_iter(f"{base}*")]
    queued = [
        str(entry)
        for queue in ("procession:memory:index", "procession:memory:observe")
        for entry in await system.redis.xrange(f"{queue}:of:{system.client.tenant}")
    ]
    return [key for key in keys if key not in ("updated", "created")], [
        each for each in queued if f'"{resource}"' in each
    ]


@pytest.mark.parametrize("memory", [HISTORY, OBSERVING], ids=["history", "observational"])
@pytest.mark.parametrize(("array", "hook"), PLACES, ids=[hook for _, hook in PLACES])
async def test_nothing_is_stored_of_a_run_that_a_processor_blocks(system, array, hook, memory):
    resource = f"blocked-{hook}-{'o' if memory is OBSERVING else 'h'}"
    agent = {
        "memory": memory, "tools": ["echo"],
        array: [{"id": "quoting", "options": {"hooks": [hook], "abort": True}}],
    }  # fmt: skip
    where = {"thread": "t", "resource": resource}
    result, _ = await system.run(CALL, DONE, text="I like dogs", agent=agent, memory=where)
    assert result.status == "blocked", result.error
    assert await saved(system, resource) == []
    assert await left(system, resource) == ([], [])


@pytest.mark.parametrize("memory", [HISTORY, OBSERVING], ids=["history", "observational"])
async def test_read_only_memory_recalls_and_leaves_everything_as_it_was(system, memory):
    resource = f"read-only-{'o' if memory is OBSERVING else 'h'}"
    await system.client.memory.save("t", resource, ["my dog is called Rex"])
    await indexed(system.client.memory)
    before = await left(system, resource)
    model = system.script(DONE)
    result, _ = await system.run(
        text="how is he called", agent={"model": model, "memory": memory},
        memory={"thread": "t", "resource": resource, "readOnly": True},
    )  # fmt: skip
    assert result.status == "finished", result.error
    (request,) = system.requests(model)
    assert "my dog is called Rex" in str(request["messages"])
    assert "updateWorkingMemory" not in str(request.get("tools"))
    assert await saved(system, resource) == ["my dog is called Rex"]
    assert await left(system, resource) == before


async def test_a_processor_placed_by_hand_takes_the_place_of_the_automatic_one_in_its_array_only(system):
    """R-WIRE-5."""
    own = {"id": "message-history", "options": {"lastMessages": 2}}
    agent = {"memory": {"lastMessages": 10}, "inputProcessors": [own]}
    where = {"thread": "t", "resource": "by-hand"}
    for text in ("one", "two"):
        await system.run(DONE, text=text, agent=agent, memory=where)
    model = system.script(DONE)
    await system.run(text="three", agent={**agent, "model": model}, memory=where)
    assert [m["content"] for m in system.requests(model)[0]["messages"]] == ["two", "noted", "three"]
    assert await saved(system, "by-hand") == ["one", "noted", "two", "noted", "three", "noted"]


async def test_calls_without_an_end_and_bookkeeping_are_not_stored(system):
    """R-ME-5: calls of the tool of working memory leave no trace, finished calls stay."""
    note = {
        "tool_calls": [{"id": "n", "name": "updateWorkingMemory", "arguments": {"memory": "# Me\n- Ann"}}]
    }
    agent = {"memory": HISTORY, "tools": ["echo"]}
    where = {"thread": "t", "resource": "calls"}
    result, _ = await system.run(note, CALL, DONE, text="I am Ann", agent=agent, memory=where)
    assert result.status == "finished", result.error
    page = await system.client.memory.messages("t", "calls")
    names = [
        part["toolInvocation"]["toolName"]
        for m in page["messages"]
        for part in m["content"]["parts"]
        if "toolInvocation" in part
    ]
    assert names == ["echo"]
    assert await system.client.memory.note("calls") == "# Me\n- Ann"
