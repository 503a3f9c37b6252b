"""Redis is killed and comes back as it was a moment ago: it had answered, and not written yet."""

import nats
import pytest
import pytest_asyncio

from procession_schemas import subjects
from procession_services.runtime.admission import PLACED
from procession_services.runtime.embedded import EmbeddedServers
from procession_services.runtime.redis_client import connect
from procession_services.runtime.store import run_key
from tests.chaos.forgetful import Forgetful
from tests.support.handing import LONG
from tests.support.system import SERVICES, Gate, finished, kept, numbered, running_system, text_of
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

WORDS = [f"word{number} " for number in range(40)]
TEXT = "".join(WORDS)
CALL = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
SLOW = {"chunks": WORDS, "chunk_delay_ms": 40}
THREAD = {"thread": "t", "resource": "r"}
ASKED = ["start", "step-start", "tool-call", "tool-call-approval", "tool-result", "step-finish"]
ANSWERED = ["step-start", "text-start", "text-delta", "text-end", "step-finish", "finish"]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own(tmp_path_factory):
    directory = tmp_path_factory.mktemp("servers")
    async with EmbeddedServers(directory) as own:
        yield own, Forgetful(own, directory)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(own, tmp_path_factory, monkeypatch_module):
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with (
        running_system(own[0].endpoints, tmp_path_factory.mktemp("logs")) as system,
        system.inside(*SERVICES),
    ):
        yield system


@pytest.fixture
def forgetful(own):
    return own[1]


@pytest_asyncio.fixture(loop_scope="session")
async def gate(servers):
    """A gate that Redis does not forget: it is in another one."""
    async with connect(servers.redis_url) as redis:
        yield Gate(redis, servers.redis_url)


@pytest.fixture(params=[[], ["upper"]], ids=["straight", "upper"])
def chain(request):
    return request.param


def shown(chain):
    return TEXT.upper() if chain else TEXT


async def texts(handle, count):
    """The first chunks, until so many have text."""
    chunks = []
    async for chunk in numbered(handle):
        chunks.append(chunk)
        count -= chunk["type"] == "text-delta"
        if not count:
            break
    return chunks


async def events(system, run, kind):
    """How many events of a kind there are."""
    connection = await nats.connect(system.servers.nats_url)
    wanted = subjects.event(system.client.tenant, run, kind)
    info = await connection.jetstream().stream_info("EVENTS", subjects_filter=wanted)
    await connection.close()
    return sum((info.state.subjects or {}).values())


async def told(system, run):
    """Waits until the id of a run that has ended is not for reuse."""
    await eventually(lambda: system.redis.exists(f"{run_key(system.client.tenant, run)}:told"))


async def waits_again(system, run):
    """Waits until a run that had waited for a person does so again."""

    async def told_again():
        return await events(system, run, "run.suspended") == 2

    await eventually(told_again)


async def nobody_is_left(system):
    """Waits until no run has a place any more."""

    async def no_place():
        return not await system.redis.exists(PLACED)

    await eventually(no_place)


async def test_a_run_whose_request_was_forgotten_is_accepted_again(system, forgetful, chain):
    forgetful.remember()
    handle = await system.start(SLOW, SLOW, agent={"outputProcessors": chain})
    before = await texts(handle, 5)
    await forgetful.forget()
    result, after = await finished(handle)
    assert (result.status, result.text, text_of(before + after)) == ("finished", shown(chain), shown(chain))


async def test_a_request_stays_in_nats_until_redis_has_surely_written_what_became_of_it(system):
    connection = await nats.connect(system.servers.nats_url)
    runs = connection.jetstream()

    async def empty():
        return (await runs.stream_info("RUNS")).state.messages == 0

    await eventually(empty)
    await system.run({"chunks": ["one"]})
    assert not await empty()
    await eventually(empty)
    await connection.close()


async def test_a_run_that_has_ended_is_not_begun_again_when_its_request_was_forgotten(system, forgetful):
    forgetful.remember()
    model = system.script({"chunks": ["one"]}, {"chunks": ["two"]})
    result, _ = await system.run(agent={"model": model})
    await told(system, result.run_id)
    await forgetful.forget()
    await told(system, result.run_id)
    late = await system.client.attach(result.run_id)
    again, chunks = await finished(late)
    assert (again.text, text_of(chunks), len(system.requests(model))) == ("one", "one", 1)


async def test_a_step_that_was_forgotten_is_done_again(system, forgetful, gate, chain):
    model = system.script(CALL, SLOW, SLOW)
    agent = {
        "model": model,
        "tools": ["echo"],
        "outputProcessors": [*chain, gate.processor("processOutputStep")],
    }
    handle = await system.start(agent=agent)
    await gate.reached()
    forgetful.remember()
    await gate.open()
    before = await texts(handle, 5)
    await forgetful.forget()
    result, after = await finished(handle)
    assert (result.status, result.text, text_of(before + after)) == ("finished", shown(chain), shown(chain))
    late = await system.client.attach(result.run_id)
    _, all_of_it = await finished(late)
    assert text_of(all_of_it) == shown(chain)


async def test_who_waits_on_the_thread_begins_although_an_end_was_forgotten(system, forgetful):
    one = await system.start(SLOW, agent={"memory": {}}, memory=THREAD)
    await texts(one, 5)
    two = await system.start({"chunks": ["two"]}, agent={"memory": {}}, memory=THREAD)
    forgetful.remember()
    first, _ = await finished(one)
    await forgetful.forget()
    second, chunks = await finished(two)
    assert (first.text, second.status, second.text, text_of(chunks)) == (TEXT, "finished", "two", "two")
    assert [await events(system, each.run_id, "run.finished") for each in (first, second)] == [1, 1]
    await nobody_is_left(system)


async def test_who_had_begun_to_work_on_the_thread_begins_again(system, forgetful, gate):
    agent = {"memory": {}, "outputProcessors": [gate.processor("processOutputResult")]}
    one = await system.start({"chunks": ["one"]}, agent=agent, memory=THREAD)
    await gate.reached()
    two = await system.start(SLOW, SLOW, agent={"memory": {}, "outputProcessors": ["upper"]}, memory=THREAD)
    forgetful.remember()
    await gate.open()
    await finished(one)
    before = await texts(two, 5)
    await forgetful.forget()
    result, after = await finished(two)
    assert (result.status, result.text, text_of(before + after)) == ("finished", TEXT.upper(), TEXT.upper())
    await nobody_is_left(system)


async def test_a_cancellation_that_was_forgotten_is_taken_again(system, forgetful, gate):
    handle = await system.start(SLOW, agent={"inputProcessors": [gate.processor("processInput")]})
    await gate.reached()
    forgetful.remember()
    await handle.cancel()
    key = run_key(system.client.tenant, handle.run_id)
    await eventually(lambda: system.redis.hexists(key, "cancelled"))
    await forgetful.forget()
    await eventually(lambda: system.redis.hexists(key, "cancelled"))
    await gate.open()
    result, _ = await finished(handle)
    assert result.status == "cancelled"


async def test_a_run_that_waited_for_a_person_waits_again(system, forgetful, gate, chain):
    tools = [{"id": "echo", "requireApproval": True}]
    agent = {"tools": tools, "inputProcessors": [gate.processor("processInput")], "outputProcessors": chain}
    handle = await system.start(CALL, CALL, {"chunks": ["done"]}, agent=agent)
    await gate.reached()
    forgetful.remember()
    await gate.open()
    assert (await handle.result()).status == "suspended"
    await forgetful.forget()
    await waits_again(system, handle.run_id)
    await handle.approve("c1")
    result, chunks = await finished(handle)
    done = "DONE" if chain else "done"
    assert (result.status, result.text, text_of(chunks)) == ("finished", done, done)
    assert [chunk["type"] for chunk in kept(chunks)] == [*ASKED, *ANSWERED]


async def test_a_command_that_is_done_again_takes_back_nothing_of_what_it_streams(system, forgetful, gate):
    """The end of a run that waits is said behind a stream that says what it replaces."""
    asks = gate.processor("processOutputStream", part="tool-call-approval")
    agent = {"tools": [{"id": "echo", "requireApproval": True}], "outputProcessors": [asks]}
    handle = await system.start(CALL, {"chunks": ["done"]}, agent=agent)
    await gate.reached()
    forgetful.remember()
    await gate.open()
    assert (await handle.result()).status == "suspended"
    await forgetful.forget()
    await waits_again(system, handle.run_id)
    await handle.approve("c1")
    result, chunks = await finished(handle)
    assert result.status == "finished"
    assert [chunk["type"] for chunk in kept(chunks)] == [*ASKED, *ANSWERED]


async def test_a_command_that_comes_again_takes_back_what_was_forgotten(system, forgetful, gate):
    """Its acknowledgement was lost, so this is a second attempt; clients have seen what came after the first one."""
    tools = [{"id": "echo", "requireApproval": True}]
    agent = {"tools": tools, "outputProcessors": [gate.processor("processOutputStream")]}
    async with await nats.connect(system.servers.nats_url) as connection:
        everywhere = subjects.work("llm_gateway", system.client.tenant, "any").replace(".any", ".*")
        sent = await connection.subscribe(everywhere)
        asking = {**CALL, "chunks": ["look "]}
        handle = await system.start(asking, SLOW, asking, SLOW, agent=agent, text=LONG)
        await gate.reached()
        forgetful.remember()
        await gate.open()
        assert (await handle.result()).status == "suspended"
        await handle.approve("c1")
        before = await texts(handle, 5)
        await forgetful.forget()
        await system.redis.hdel(run_key(system.client.tenant, handle.run_id), "claim")
        command = await sent.next_msg()
        await connection.jetstream().publish(command.subject, command.data)
    await waits_again(system, handle.run_id)
    between = [chunk async for chunk in numbered(handle)]
    await handle.approve("c1")
    result, after = await finished(handle)
    told = text_of(before + between + after)
    assert (result.status, result.text, told) == ("finished", f"look {TEXT}", f"look {TEXT}")
