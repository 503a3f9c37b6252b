"""Memory over the bus, with a real Redis and a real Chroma: recall, working memory, isolation, faults."""

import asyncio
import itertools
import json

import pytest
import pytest_asyncio

from procession.client import MemoryRequestError, Procession
from procession_schemas.agent import Agent
from procession_services.runtime.store import run_key
from tests.support.servers import own_chroma, own_servers
from tests.support.system import SERVICES, all_but, running_system
from tests.support.tiny_model import write_tiny_model
from tests.support.waiting import eventually, indexed, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="session"),
]

_names = map("n{}".format, itertools.count())
DONE = {"chunks": ["noted"]}
RECALL = {"memory": {"lastMessages": 2, "semanticRecall": {"messageRange": 1}}}


def call(name, /, **arguments):
    return {"tool_calls": [{"id": f"c-{name}", "name": name, "arguments": arguments}]}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "unused")
        async with running_system(servers, tmp_path_factory.mktemp("logs")) as system:
            chroma = tmp_path_factory.mktemp("chroma")
            async with system.inside(*SERVICES, chroma_path=chroma, embedder="lexical"):
                yield system


@pytest.fixture
def resource():
    return next(_names)


async def say(system, text, agent, thread, resource, *calls):
    """One run; gives its result and the texts that the model was shown first."""
    model = system.script(*(calls or (DONE,)))
    memory = {"thread": thread, "resource": resource}
    result, _ = await system.run(text=text, agent={**agent, "model": model}, memory=memory)
    assert result.status == "finished", result.error
    return result, [str(m["content"]) for m in system.requests(model)[0]["messages"]]


# --- semantic recall ---------------------------------------------------------------------------


async def test_an_answer_that_is_too_long_for_a_message_says_so(system):
    memory = system.client.memory
    for _ in range(3):
        await memory.save("long", "long", [{"role": "user", "content": "x" * 3_000_000}])
    with pytest.raises(MemoryRequestError, match="smaller page") as refused:
        await memory.messages("long", "long")
    assert refused.value.failure.code == "ANSWER_TOO_LONG"
    page = await memory.messages("long", "long", per_page=1)
    assert page["total"] == 3


async def test_what_was_said_in_another_thread_is_recalled(system, resource):
    await say(system, "my dog is called Rex", RECALL, "t1", resource)
    await indexed(system.client.memory)
    _, shown = await say(system, "what is my dog called", RECALL, "t2", resource)
    (told,) = [text for text in shown if "remembered_from_other_conversation" in text]
    assert "User: my dog is called Rex\n" in told
    assert "Assistant: noted" in told, "its neighbour comes with it"
    assert "</remembered_from_other_conversation>" in told


async def test_a_message_of_another_thread_is_recalled_whatever_its_id(system, resource):
    first = {"id": "m1", "role": "user", "content": "my dog is called Rex"}
    await say(system, first, RECALL, "t1", resource)
    await indexed(system.client.memory)
    question = {"id": "m1", "role": "user", "content": "what is my dog called"}
    _, shown = await say(system, question, RECALL, "t2", resource)
    assert any("User: my dog is called Rex" in text for text in shown)


async def test_recall_in_the_thread_itself_brings_messages(system, resource):
    await say(system, "my dog is called Rex", RECALL, "t", resource)
    for text in ("one", "two"):
        await say(system, text, RECALL, "t", resource)
    await indexed(system.client.memory)
    _, shown = await say(system, "how is my dog called", RECALL, "t", resource)
    assert [text for text in shown if "Rex" in text] == ["my dog is called Rex"]


async def test_nothing_of_another_resource_or_tenant_is_recalled(system, resource):
    await say(system, "my dog is called Rex", RECALL, "t1", resource)
    await indexed(system.client.memory)
    _, shown = await say(system, "what is my dog called", RECALL, "t1", f"{resource}-other")
    assert not any("Rex" in text for text in shown)


async def test_deleting_a_thread_removes_its_embeddings(system, resource):
    await say(system, "my dog is called Rex", RECALL, "t1", resource)
    await indexed(system.client.memory)
    await system.client.memory.delete("t1", resource)
    await indexed(system.client.memory)
    await system.client.memory.create("t1", resource)  # so that only embeddings could bring it back
    _, shown = await say(system, "what is my dog called", RECALL, "t2", resource)
    assert not any("Rex" in text for text in shown)


async def test_imported_and_saved_messages_are_found_by_meaning(system, resource):
    memory = system.client.memory
    page = {"thread": {"id": "t1", "resource": resource}, "messages": ["the code of the safe is 4711"]}
    await memory.import_page(page)
    await memory.save("t2", resource, ["the key of the cellar is under the mat"])
    await indexed(system.client.memory)
    for question, answer in (("which code has the safe", "4711"), ("where is the key of the cellar", "mat")):
        _, shown = await say(system, question, RECALL, "t3", resource)
        assert any(answer in text for text in shown)


async def test_imported_messages_are_found_by_an_agent_with_an_embedder_of_its_own(system, resource):
    recall = {"embedder": "openai/text-embedding-3-small", "indexName": f"own-{resource}"}
    agent = {"memory": {"lastMessages": 2, "semanticRecall": recall}}
    await say(system, "hello", agent, "t0", resource)
    page = {"thread": {"id": "t1", "resource": resource}, "messages": ["the code of the safe is 4711"]}
    await system.client.memory.import_page(page)
    await indexed(system.client.memory)
    _, shown = await say(system, "which code has the safe", agent, "t2", resource)
    assert any("4711" in text for text in shown)


async def test_a_note_that_every_thread_is_told_does_not_crowd_out_what_was_said(system, resource):
    recall = {"topK": 2, "messageRange": 0}
    agent = {"memory": {"workingMemory": {"useStateSignals": True}, "semanticRecall": recall}}
    await system.client.memory.set_note("- Ann has a boat, where her mother lies in the sun", resource)
    await say(system, "my boat lies at pier 7", agent, "t0", resource)
    for thread in ("t1", "t2", "t3"):
        await say(system, "hello", agent, thread, resource)
    await indexed(system.client.memory)
    _, shown = await say(system, "where does the boat of Ann lie", agent, "t4", resource)
    assert any("pier 7" in text for text in shown)


async def test_reindex_makes_the_index_anew(system, resource):
    agent = {"memory": {"lastMessages": 2, "semanticRecall": {"indexName": f"anew-{resource}"}}}
    await system.client.memory.save("t1", resource, ["the code of the safe is 4711"])
    await indexed(system.client.memory)
    _, shown = await say(system, "which code has the safe", agent, "t2", resource)
    assert not any("4711" in text for text in shown), "this index did not exist when it was saved"
    await system.client.memory.reindex()
    await indexed(system.client.memory)
    _, shown = await say(system, "which code has the safe", agent, "t3", resource)
    assert any("4711" in text for text in shown)


# --- working memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("signals", [False, True])
async def test_the_model_changes_its_note_and_sees_it_in_another_thread(system, resource, signals):
    name = "setWorkingMemory" if signals else "updateWorkingMemory"
    agent = {"memory": {"workingMemory": {"template": "# Me\n- Name:", "useStateSignals": signals}}}
    await say(system, "I am Ann", agent, "t1", resource, call(name, memory="# Me\n- Name: Ann"), DONE)
    assert await system.client.memory.note(resource) == "# Me\n- Name: Ann"
    _, shown = await say(system, "who am I", agent, "t2", resource)
    assert any("- Name: Ann" in text for text in shown)
    _, shown = await say(system, "who am I", agent, "t2", f"{resource}-other")
    assert not any("- Name: Ann" in text for text in shown)


async def test_a_schema_is_merged_and_refused_arguments_are_told(system, resource):
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    agent = {"memory": {"workingMemory": {"schema": schema, "scope": "thread"}}}
    calls = [
        call("updateWorkingMemory", memory={"name": "Ann", "age": None}),
        call("updateWorkingMemory", memory={"age": "many"}),
        call("updateWorkingMemory", memory={"age": 7}),
    ]
    result, _ = await say(system, "hi", agent, "t1", resource, *calls, DONE)
    assert await system.client.memory.note(resource, "t1") == '{"name":"Ann","age":7}'
    assert [each["output"] for each in result.tool_results] == [{"success": True}] * 2
    assert await system.client.memory.note(resource) is None


@pytest.mark.parametrize("merges", [True, False])
async def test_what_the_model_is_told_of_fields_that_it_leaves_out_is_so(system, resource, merges):
    fields = {"name": {"type": "string"}, "likes": {"type": "string"}}
    schema = {"type": "object", "properties": fields}
    form = {"schema": schema} if merges else {"template": {"format": "json", "content": schema}}
    agent = {"memory": {"workingMemory": form}}
    for note in ({"name": "Ann", "likes": "tea"}, {"name": "Anna"}):
        memory = note if merges else json.dumps(note)
        changes = call("updateWorkingMemory", memory=memory)
        _, shown = await say(system, "I am Ann", agent, "t", resource, changes, DONE)
        assert ("Fields that you leave out stay." in shown[0]) is merges
    kept = json.loads(await system.client.memory.note(resource))
    assert kept == ({"name": "Anna", "likes": "tea"} if merges else {"name": "Anna"})


async def test_notes_of_concurrent_runs_all_count(system, resource):
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in "abcdefgh"}}
    agent = {"memory": {"workingMemory": {"schema": schema}}}
    await asyncio.gather(
        *(
            say(
                system,
                "hi",
                agent,
                f"t-{name}",
                resource,
                call("updateWorkingMemory", memory={name: name}),
                DONE,
            )
            for name in "abcdefgh"
        )
    )
    note = await system.client.memory.note(resource)
    assert all(f'"{name}":"{name}"' in note for name in "abcdefgh")


# --- requests ----------------------------------------------------------------------------------


async def test_another_tenant_cannot_tell_a_thread_from_a_missing_one(system, resource):
    own = system.client.memory
    await own.create("t", resource, title="mine", metadata={"a": 1})
    await own.save("t", resource, ["secret"])
    await own.set_note("note", resource)
    await own.set_note("note", resource, "t")
    assert (await own.thread("t", resource))["metadata"] == {"a": 1}
    async with Procession(system.servers.nats_url, tenant="stranger") as stranger:
        other = stranger.memory
        for thread in ("t", "no-such-thread"):
            for asked in (
                other.thread(thread, resource),
                other.rename(thread, resource, "x"),
                other.delete(thread, resource),
                other.messages(thread, resource),
                anext(other.export(thread, resource)),
            ):
                with pytest.raises(MemoryRequestError) as caught:
                    await asked
                assert caught.value.failure.code == "UNKNOWN_THREAD"
        assert (await other.threads(resource))["threads"] == []
        assert (await other.note(resource), await other.note(resource, "t")) == (None, None)
        await other.set_note("stolen", resource)
        await other.save("t", resource, ["planted"])
        await other.delete("t", resource)
        asked = system.script(DONE)
        agent = Agent.model_validate({"name": "test", "model": asked, **RECALL})
        memory = {"thread": "t", "resource": resource}
        await stranger.generate("what is the secret", agent=agent, memory=memory, raise_on_error=True)
        shown = [str(m["content"]) for m in system.requests(asked)[0]["messages"]]
        assert shown == ["what is the secret"]
        await other.reindex()
        await indexed(system.client.memory)
    assert (await own.thread("t", resource))["title"] == "mine"
    assert len((await own.messages("t", resource))["messages"]) == 1
    assert (await own.note(resource), await own.note(resource, "t")) == ("note", "note")
    _, shown = await say(system, "what is the secret", RECALL, "t2", resource)
    assert any("secret" in text and "remembered" in text for text in shown), "its index is still there"


# --- Chroma away, embedders ------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="session")
async def chroma_server(tmp_path):
    """A Chroma server that can be killed and started again."""
    async with own_chroma(tmp_path / "data") as server:
        yield server


async def test_runs_go_on_without_chroma_and_the_index_catches_up(chroma_server, tmp_path, resource):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "unused")
        async with (
            own_servers(tmp_path / "own") as own,
            running_system(own.endpoints, tmp_path) as system,
        ):
            settings = {"chroma_url": chroma_server.url, "embedder": "lexical", "recall_timeout": 2}
            async with system.inside(*SERVICES, **settings):
                await say(system, "my cat is called Tom", RECALL, "t1", resource)
                await indexed(system.client.memory)
                await chroma_server.kill()
                result, shown = await say(system, "my dog is called Rex", RECALL, "t2", resource)
                assert not any("Tom" in text for text in shown)
                warned = [r.warnings for r in result.processors if r.processor == "semantic-recall"]
                assert sum(warned) == 1
                assert await system.client.memory.index_waiting() == 1
                await chroma_server.start()
                await indexed(system.client.memory)
                _, shown = await say(system, "what is my dog called, what my cat", RECALL, "t3", resource)
                assert any("Rex" in text for text in shown)
                assert any("Tom" in text for text in shown)


async def test_after_a_change_of_the_embedder_recall_waits_for_a_reindex(tmp_path, resource):
    chroma, weights = tmp_path / "chroma", write_tiny_model(tmp_path / "weights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "unused")
        async with (
            own_servers(tmp_path / "own") as own,
            running_system(own.endpoints, tmp_path) as system,
        ):
            async with system.inside(*SERVICES, chroma_path=chroma, embedder="lexical"):
                await say(system, "the dog is Rex", RECALL, "t1", resource)
                await indexed(system.client.memory)
            async with system.inside(*SERVICES, chroma_path=chroma, embedder="onnx", onnx_path=weights):
                result, shown = await say(system, "Rex the dog", RECALL, "t2", resource)
                assert not any("the dog is Rex" in text for text in shown)
                assert sum(r.warnings for r in result.processors if r.processor == "semantic-recall") == 1
                await indexed(system.client.memory)
                await system.client.memory.reindex()
                await indexed(system.client.memory)
                result, shown = await say(system, "Rex the dog", RECALL, "t3", resource)
                assert any("the dog is Rex" in text for text in shown)
                assert any("Rex the dog" in text for text in shown), "what was said meanwhile, too"
                assert sum(r.warnings for r in result.processors if r.processor == "semantic-recall") == 0


async def test_messages_wait_for_an_embedding_model_that_is_away(tmp_path, resource, caplog):
    settings = {"chroma_path": tmp_path / "chroma", "embedder": "openai/text-embedding-3-small"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "unused")
        async with (
            own_servers(tmp_path / "servers") as servers,  # whose jobs nobody else takes
            running_system(servers.endpoints, tmp_path) as system,
            system.inside(*all_but("llm_gateway"), **settings),
        ):
            async with system.inside("llm_gateway", api_base="http://127.0.0.1:1/v1"):
                await system.client.memory.save("t1", resource, ["my dog is called Rex"])
                await until(lambda: "indexing for semantic recall is paused" in caplog.text)
            async with system.inside("llm_gateway"):
                await indexed(system.client.memory)
                _, shown = await say(system, "what is my dog called", RECALL, "t2", resource)
                assert any("Rex" in text for text in shown)


async def test_embedding_models_are_asked_through_the_gateway(system, resource):
    agent = {"memory": {"semanticRecall": {"embedder": "openai/text-embedding-3-small", "indexName": "api"}}}
    await say(system, "my dog is called Rex", agent, "t1", resource)
    await indexed(system.client.memory)
    _, shown = await say(system, "what is my dog called", agent, "t2", resource)
    assert any("Rex" in text for text in shown)


async def test_old_messages_become_notes_with_their_cost_in_the_report(system, resource):
    observer = system.script({"chunks": ["- 2026-01-01 likes dogs"]})
    observation = {"messageTokens": 12, "bufferTokens": False}
    agent = {"memory": {"observationalMemory": {"model": observer, "observation": observation}}}
    await say(system, "I like dogs very, very, very much", agent, "t", resource)
    result, shown = await say(system, "and cats, a little less than dogs", agent, "t", resource)
    assert "I like dogs very, very, very much" in shown
    (row,) = [
        each
        for each in result.processors
        if (each.processor, each.model_calls) == ("observational-memory", 1)
    ]
    assert row.hook == "processOutputResult"
    _, shown = await say(system, "what do I like", agent, "t", resource)
    assert any("- 2026-01-01 likes dogs" in text for text in shown)
    assert "I like dogs very, very, very much" not in shown


@pytest.mark.parametrize(("policy", "first", "second"), [
    ("queue", "finished", "finished"), ("reject", "finished", "failed"), ("interrupt", "cancelled", "finished"),
])  # fmt: skip
async def test_two_runs_on_one_thread(system, resource, policy, first, second):
    gate = system.gate()
    memory = {"thread": "t", "resource": resource, "concurrency": policy}
    agent = {"memory": {}, "inputProcessors": [gate.processor("processInput")]}
    one = await system.start(DONE, text="one", agent=agent, memory=memory)
    await gate.reached()
    two = await system.start(DONE, text="two", agent={"memory": {}}, memory=memory)
    if policy == "reject":
        assert (await two.result()).error.code == "THREAD_BUSY"
    if policy == "interrupt":
        await eventually(lambda: system.redis.hexists(run_key(system.client.tenant, one.run_id), "cancelled"))
    await gate.open()
    results = [await each.result() for each in (one, two)]
    assert [result.status for result in results] == [first, second], [r.error for r in results]
    saved = [
        m["content"]["parts"][0]["text"]
        for m in (await system.client.memory.messages("t", resource))["messages"]
    ]
    if policy == "queue":
        assert saved == ["one", "noted", "two", "noted"]
    for each in (one, two):
        await each.close()
