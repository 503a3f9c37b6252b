"""Runs on one thread take turns: in the order in which they were asked for, whoever dies, and nobody waits for ever."""

import asyncio
import itertools
import json
from contextlib import asynccontextmanager
from functools import partial

import nats
import pytest
import pytest_asyncio

from procession.client.handle import RunHandle
from procession_schemas import subjects
from procession_services.runtime.store import DEADLINES, line_key, run_key
from tests.support.system import SERVICES, finished, running_system
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="session"),
]

_names = map("r{}".format, itertools.count())
SAID = {"chunks": ["noted"]}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory, monkeypatch_module):
    """All services, two replicas of the orchestrator."""
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with (
        running_system(servers, tmp_path_factory.mktemp("logs")) as system,
        system.inside(*SERVICES, "orchestrator", work_ack_wait=2.0),
    ):
        yield system


@pytest.fixture
def talk(system):
    return Talk(system, next(_names))


class Talk:
    """A thread, and runs on it that one after another stand at gates."""

    def __init__(self, system, resource):
        self.system, self.resource = system, resource
        self.line = line_key(system.client.tenant, resource, "t")

    async def start(self, text, *, gate=None, agent=None, model=None, memory=None, **options):
        fields = {"memory": {}, **(agent or {})}
        if gate:
            fields["inputProcessors"] = [gate.processor("processInput")]
        fields["model"] = model or self.system.script(SAID)
        memory = {"thread": "t", "resource": self.resource, **(memory or {})}
        return await self.system.start(text=text, agent=fields, memory=memory, **options)

    async def held(self, text="one", **options):
        """A run that is at work until the gate opens."""
        gate = self.system.gate()
        handle = await self.start(text, gate=gate, **options)
        await gate.reached()
        return handle, gate

    async def joined(self, number):
        """Waits until so many runs are in the line."""
        async with asyncio.timeout(20):
            while await self.system.redis.llen(self.line) != number:  # noqa: ASYNC110 - Redis has no event
                await asyncio.sleep(0.01)

    async def is_accepted(self, run):
        return await self.system.redis.exists(run_key(self.system.client.tenant, run.run_id))

    async def saved(self):
        page = await self.system.client.memory.messages("t", self.resource, per_page=1000)
        return [message["content"]["parts"][0]["text"] for message in page["messages"]]


@asynccontextmanager
async def late(system, talk, **memory):
    """Runs of which the orchestrators get all but the last one's request, which somebody else took before.

    Gives the runs, and what has that request accepted in the end.
    """
    async with await nats.connect(system.servers.nats_url) as connection:
        requests = await connection.jetstream().pull_subscribe_bind("orchestrator-runs", "RUNS")
        taking, runs = asyncio.create_task(requests.fetch(1, timeout=20)), list[RunHandle]()

        async def somebody_has_it():
            return taking.done() or await talk.is_accepted(runs[-1])

        while not taking.done():
            runs.append(await talk.start(f"early {len(runs)}", memory=memory))
            await eventually(somebody_has_it)
        (message,) = await taking
        yield runs, message.nak


async def test_a_run_waits_for_the_one_before_it_and_sees_what_it_said(system, talk):
    one, gate = await talk.held()
    model = system.script(SAID)
    two = await talk.start("two", model=model)
    await talk.joined(2)
    assert system.requests(model) == []
    await gate.open()
    results = [(await finished(each))[0].status for each in (one, two)]
    assert results == ["finished", "finished"]
    assert [m["content"] for m in system.requests(model)[0]["messages"]] == ["one", "noted", "two"]
    assert await talk.saved() == ["one", "noted", "two", "noted"]
    assert await system.redis.exists(talk.line) == 0


async def test_what_a_run_that_waited_was_asked_counts_as_said_when_its_turn_came(system, talk):
    one, gate = await talk.held()
    early = {"role": "user", "content": "two", "createdAt": "2020-01-01T00:00:00.000Z"}
    two = await talk.start(early)
    await talk.joined(2)
    await gate.open()
    for each in (one, two):
        await finished(each)
    assert await talk.saved() == ["one", "noted", "two", "noted"]


async def test_ten_runs_at_once_lose_nothing_and_keep_their_order(system, talk):
    models = {f"q{n}": system.script({"chunks": [f"a{n}"]}) for n in range(10)}
    handles = await asyncio.gather(
        *(talk.start(text, model=model, memory={"lastMessages": 40}) for text, model in models.items())
    )
    ends = await asyncio.gather(*(finished(handle) for handle in handles))
    assert {result.status for result, _ in ends} == {"finished"}
    saved = await talk.saved()
    questions = saved[::2]
    assert sorted(questions) == sorted(models)
    assert saved[1::2] == [f"a{text[1:]}" for text in questions]
    for place, text in enumerate(questions):  # each saw all that was said before, and nothing else
        (asked,) = system.requests(models[text])
        assert [m["content"] for m in asked["messages"]] == saved[: 2 * place + 1]


async def test_runs_begin_in_the_order_in_which_they_were_accepted(system, talk):
    one, gate = await talk.held()
    others = []
    for number, text in enumerate(("two", "three", "four"), 2):
        others.append(await talk.start(text))
        await talk.joined(number)
    await gate.open()
    for each in (one, *others):
        await finished(each)
    assert (await talk.saved())[::2] == ["one", "two", "three", "four"]


async def test_a_run_that_is_accepted_late_waits_before_those_that_were_asked_for_after_it(system, talk):
    one, gate = await talk.held()
    async with late(system, talk) as (others, accept):
        others.append(await talk.start("next"))
        others.append(await talk.start("last"))
        await talk.joined(len(others))
        await accept()
        await talk.joined(len(others) + 1)
    line = [key.decode() for key in await system.redis.lrange(talk.line, 0, -1)]
    assert line == [run_key(system.client.tenant, run.run_id) for run in (one, *others)]
    await gate.open()
    assert {(await finished(each))[0].status for each in (one, *others)} == {"finished"}


async def test_a_run_that_is_accepted_late_does_not_stop_the_one_that_interrupts_it(system, talk):
    async with late(system, talk, concurrency="interrupt") as (others, accept):
        last = await talk.start("last", memory={"concurrency": "interrupt"})
        await eventually(partial(talk.is_accepted, last))
        await accept()
        result, chunks = await finished(others[-1])
        assert (result.status, result.error) == ("cancelled", None)
        assert [chunk["type"] for chunk in chunks] == ["start", "abort", "finish"]
    assert (await finished(last))[0].status == "finished"


async def test_reject_answers_at_once_and_leaves_nothing(system, talk):
    one, gate = await talk.held()
    two = await talk.start("two", memory={"concurrency": "reject"}, run_id=f"two-{talk.resource}")
    result, chunks = await finished(two)
    assert (result.status, result.error.code, result.error.field) == (
        "failed", "THREAD_BUSY", "memory.concurrency",
    )  # fmt: skip
    assert f"run {one.run_id} is using the thread" in result.error.message
    assert [chunk["type"] for chunk in chunks] == ["error"]
    await gate.open()
    await finished(one)
    three, _ = await finished(await talk.start("three", memory={"concurrency": "reject"}))
    assert three.status == "finished"
    assert (await talk.saved())[::2] == ["one", "three"]


async def test_interrupt_cancels_who_is_at_work_and_who_waits(system, talk):
    one, gate = await talk.held()
    two = await talk.start("two")
    await talk.joined(2)
    three = await talk.start("three", memory={"concurrency": "interrupt"})
    assert (await finished(two))[0].status == "cancelled", "it waited, and nobody has to stop working"
    await eventually(lambda: system.redis.hexists(run_key(system.client.tenant, one.run_id), "cancelled"))
    await gate.open()
    assert (await finished(one))[0].status == "cancelled"
    assert (await finished(three))[0].status == "finished"


async def test_a_run_that_is_cancelled_many_times_at_once_is_cancelled(system, talk):
    """Each of them takes its end from the others, and nobody's counts for an attempt that came to nothing."""
    one, gate = await talk.held()
    two = await talk.start("two")
    await talk.joined(2)
    cancel, body = subjects.control(system.client.tenant, two.run_id), b'{"type": "cancel"}'
    async with await nats.connect(system.servers.nats_url) as connection:
        await asyncio.gather(*(connection.jetstream().publish(cancel, body) for _ in range(20)))
    result, _ = await finished(two)
    assert (result.status, result.error) == ("cancelled", None)
    await gate.open()
    assert (await finished(one))[0].status == "finished"


async def test_of_many_runs_that_interrupt_the_last_one_goes_on(system, talk):
    handles = [await talk.start(str(n), memory={"concurrency": "interrupt"}) for n in range(20)]
    *others, last = [await finished(handle) for handle in handles]
    assert {result.status for result, _ in others} <= {"cancelled", "finished"}
    assert last[0].status == "finished"


async def test_a_run_that_is_cancelled_while_it_waits_ends_at_once_and_leaves_nothing(system, talk):
    one, gate = await talk.held()
    model = system.script(SAID)
    two = await talk.start("two", model=model)
    await talk.joined(2)
    three = await talk.start("three")
    await talk.joined(3)
    await two.cancel()
    result, chunks = await finished(two)
    assert (result.status, result.finish_reason) == ("cancelled", "aborted")
    assert [chunk["type"] for chunk in chunks] == ["start", "abort", "finish"]
    await talk.joined(2)
    await gate.open()
    for each in (one, three):
        assert (await finished(each))[0].status == "finished"
    assert await talk.saved() == ["one", "noted", "three", "noted"]
    assert system.requests(model) == []


async def test_the_deadline_of_a_run_passes_while_it_waits(system, talk):
    one, gate = await talk.held()
    two = await talk.start("two", timeout=1)
    three = await talk.start("three")
    result, _ = await finished(two)
    assert result.error.code == "DEADLINE_EXCEEDED"
    assert "waited for its turn" in result.error.message
    await gate.open()
    for each in (one, three):
        assert (await finished(each))[0].status == "finished"
    assert (await talk.saved())[::2] == ["one", "three"]


async def test_the_same_request_again_does_not_jump_the_line(system, talk):
    one, gate = await talk.held()
    model, run = system.script(SAID), f"again-{talk.resource}"
    agent = {"name": "test", "model": model, "memory": {}}
    body = {
        "runId": run,
        "input": "two",
        "agent": agent,
        "memory": {"thread": "t", "resource": talk.resource},
    }
    connection = await nats.connect(system.servers.nats_url)
    told = await connection.subscribe(subjects.event(system.client.tenant, run, "run.accepted"))
    for _ in range(3):  # without a message id, so that the stream takes each
        await connection.jetstream().publish(
            subjects.run(system.client.tenant, "test"), json.dumps(body).encode()
        )
    for _ in range(3):
        await told.next_msg(timeout=10)
    await connection.close()
    assert system.requests(model) == []
    two = await system.client.attach(run)
    await gate.open()
    for each in (one, two):
        assert (await finished(each))[0].status == "finished"
    assert len(system.requests(model)) == 1


async def test_runs_that_only_read_and_runs_elsewhere_wait_for_nobody(system, talk):
    one, gate = await talk.held()
    for memory in ({"readOnly": True}, {"thread": "other"}, {"resource": f"{talk.resource}-other"}):
        result, _ = await finished(await talk.start("two", memory=memory))
        assert result.status == "finished"
    await gate.open()
    await finished(one)
    assert await talk.saved() == ["one", "noted"]


async def test_a_run_that_waits_for_a_person_lets_others_pass_and_is_waited_for_again(system, talk):
    gate = system.gate()
    model = system.script(
        {"tool_calls": [{"id": "c1", "name": "gated", "arguments": {}}]}, {"chunks": ["through"]}
    )
    agent = {"tools": [{"id": "gated", "options": gate.options}], "requireToolApproval": True}
    one = await talk.start("one", model=model, agent=agent)
    assert (await one.result()).status == "suspended"
    assert (await finished(await talk.start("two")))[0].status == "finished"
    await one.approve("c1")
    await gate.reached()
    last = system.script(SAID)
    three = await talk.start("three", model=last)
    await talk.joined(2)
    assert system.requests(last) == []
    await gate.open()
    assert (await finished(three))[0].status == "finished"
    assert (await one.result()).status == "finished"
    shown = [m["content"] for m in system.requests(last)[0]["messages"]]
    assert [text for text in shown if text in ("one", "two", "three")] == ["one", "two", "three"]
    await one.close()


async def test_a_run_that_nobody_works_on_any_more_keeps_the_thread_only_until_its_deadline(system, talk):
    one, _ = await talk.held(timeout=5)  # its gate stays shut
    two = await talk.start("two")
    assert (await finished(one))[0].error.code == "DEADLINE_EXCEEDED"
    assert (await finished(two))[0].status == "finished"


async def test_a_run_whose_state_cannot_be_read_keeps_no_other_from_its_end(system, talk):
    unread = run_key(system.client.tenant, "unread")
    await system.redis.hset(unread, mapping={"state_v": 1, "state": "{"})
    await system.redis.zadd(DEADLINES, {f"{system.client.tenant} unread": 1})
    one, _ = await talk.held(timeout=5)  # its gate stays shut
    assert (await finished(one))[0].error.code == "DEADLINE_EXCEEDED"
    await system.redis.delete(unread)


async def test_a_run_that_redis_has_forgotten_keeps_nobody(system, talk):
    await system.redis.rpush(talk.line, run_key(system.client.tenant, "gone"))
    assert (await finished(await talk.start("one")))[0].status == "finished"
