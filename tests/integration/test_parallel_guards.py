"""Input guardrails beside the model call: nothing of the answer goes anywhere before they have agreed."""

import json
from functools import partial

import pytest

from tests.integration.test_guardrails import CLEAN, HATE, guard, report
from tests.support.system import finished, text_of
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

ANSWER = {"chunks": ["Well ", "well ", "well"]}
SLOW = {"chunks": ["word "] * 500, "chunk_delay_ms": 20}
CALL = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}


def beside(gate=None, then="pass", **fields):
    """A guard that waits at the gate, then does that."""
    return {"id": "beside", "options": {"then": then, **(gate.options if gate else {})}, **fields}


def kinds(chunks):
    return [chunk["type"] for chunk in chunks]


async def stored(system, run):
    """The types of all chunks in the stream CHUNKS."""
    return [chunk["type"] for batch in await system.batches(run) for chunk in batch["chunks"]]


async def test_an_answer_waits_for_the_verdict_and_then_flows(system):
    gate, model, ended = system.gate(), system.script(ANSWER), system.models.stats.chunks
    handle = await system.start(agent={"model": model, "inputProcessors": [beside(gate)]})
    await gate.reached()
    await until(lambda: system.models.stats.chunks == ended + 3 and system.models.stats.open == 0)
    assert await stored(system, handle.run_id) == ["start"]  # the model has said all
    await gate.open()
    result, chunks = await finished(handle)
    assert (result.status, result.text, text_of(chunks)) == ("finished", "Well well well", "Well well well")
    assert report(result, "beside", "processInput").calls == 1


async def test_a_guard_that_is_faster_than_the_model_delays_nothing(system):
    model = system.script({**ANSWER, "delay_ms": 150})
    result, chunks = await system.run(agent={"model": model, "inputProcessors": [beside()]})
    alone, others = await system.run({**ANSWER, "delay_ms": 150})
    assert (result.text, kinds(chunks)) == (alone.text, kinds(others))


async def test_nothing_of_a_blocked_answer_is_shown_or_stored(system):
    gate, model, cancelled = system.gate(), system.script(SLOW), system.models.stats.cancelled
    said = system.models.stats.chunks
    handle = await system.start(agent={"model": model, "inputProcessors": [beside(gate, "block")]})
    await gate.reached()
    await until(lambda: system.models.stats.chunks > said + 5)
    await gate.open()
    result, chunks = await finished(handle)
    await until(lambda: system.models.stats.cancelled == cancelled + 1)  # the connection is closed
    assert kinds(chunks) == ["start", "tripwire"] == await stored(system, result.run_id)
    assert chunks[1]["payload"] == {
        "reason": "no such thing",
        "processorId": "beside",
        "metadata": {"why": "test"},
    }
    assert "word" not in json.dumps([chunks, result.model_dump()])
    assert [(each.model, each.calls) for each in result.models] == [(model, 1)]
    assert report(result, "beside", "processInput").aborts == 1


def complete(stats, said):
    return stats.chunks == said + 3 and stats.open == 0


async def test_a_block_ends_the_run_as_one_before_the_model_does(system):
    ends = []
    for parallel in (True, False):
        gate, said = system.gate(), system.models.stats.chunks
        options = {"then": "retry", "parallel": parallel, **(gate.options if parallel else {})}
        agent = {"inputProcessors": [{"id": "beside", "options": options}], "maxProcessorRetries": 2}
        handle = await system.start(ANSWER, agent=agent)
        if parallel:  # the answer is complete, and its price known, when the verdict comes
            await gate.reached()
            await until(partial(complete, system.models.stats, said))
            await gate.open()
        result, chunks = await finished(handle)
        untold = {"run_id", "models", "usage", "total_usage", "response", "duration_ms", "processors"}
        told = result.model_dump(exclude=untold)
        for message in told["messages"]:
            message["id"], message["createdAt"] = "", ""
        counts = report(result, "beside", "processInput").but(micros=0.0)
        ends.append((told, counts, [chunk["payload"] for chunk in chunks if chunk["type"] == "tripwire"]))
        calls = [(each.calls, each.usage["totalTokens"]) for each in result.models]
        assert (calls, result.usage.get("totalTokens")) == (([(1, 15)], 15) if parallel else ([], None))
    assert ends[0] == ends[1]
    assert ends[0][0]["tripwire"]["retry"]


async def test_a_tool_does_not_run_before_the_verdict(system):
    gates = [system.gate() for _ in range(2)]
    tool = {"id": "gated", "options": {"redis": gates[1].options["redis"], "key": gates[1].key}}
    call = {"tool_calls": [{"id": "c1", "name": "gated", "arguments": {}}]}
    agent = {"tools": [tool], "inputProcessors": [beside(gates[0], "block")]}
    handle = await system.start(call, ANSWER, agent=agent)
    await gates[0].reached()
    await until(lambda: system.models.stats.open == 0)
    await gates[0].open()
    result, _ = await finished(handle)
    assert (result.status, await gates[1].passes()) == ("blocked", 0)


async def test_the_guard_speaks_once_in_a_run(system):
    gate = system.gate()
    await gate.open()
    rude = {"chunks": ["rude"]}
    agent = {
        "tools": ["echo"],
        "inputProcessors": [beside(gate)],
        "outputProcessors": [{"id": "block", "options": {"word": "rude", "retry": True}}, "upper", "beside"],
        "maxProcessorRetries": 1,
    }
    result, chunks = await system.run(rude, CALL, ANSWER, agent=agent)
    assert (result.status, result.retries, text_of(chunks)) == ("finished", 1, "WELL WELL WELL")
    assert await gate.passes() == 1
    assert "asked 1" in json.dumps(result.messages)  # its state is the run's


async def test_a_guard_that_fails_follows_its_policy(system):
    for policy, status in (("fail", "failed"), ("skip", "finished")):
        agent = {"inputProcessors": [beside(then="fail", onError=policy)]}
        result, chunks = await system.run(ANSWER, agent=agent)
        assert (result.status, text_of(chunks)) == (status, "" if policy == "fail" else "Well well well")
        assert report(result, "beside", "processInput").errors == 1
        if policy == "fail":
            error = result.error
            assert (error.message, error.processor_id, error.hook) == (
                "out of order",
                "beside",
                "processInput",
            )
            assert kinds(chunks) == ["start", "error"]


@pytest.mark.parametrize("then", ["change", "remember"])
async def test_a_guard_must_not_change_what_the_model_reads(system, then):
    result, chunks = await system.run(ANSWER, agent={"inputProcessors": [beside(then=then)]})
    assert (result.status, kinds(chunks)) == ("failed", ["start", "error"])
    assert result.error.code == "PARALLEL_PROCESSOR_CHANGED_INPUT"
    assert "parallel: false" in result.error.message


async def test_a_guard_that_takes_too_long_fails_the_run(system):
    gate = system.gate()
    handle = await system.start(ANSWER, agent={"inputProcessors": [beside(gate, timeout=0.1)]})
    result, chunks = await finished(handle)
    await gate.open()
    assert (result.status, result.error.code) == ("failed", "PROCESSOR_TIMEOUT")
    assert kinds(chunks) == ["start", "error"] == await stored(system, result.run_id)


async def test_a_model_that_fails_waits_for_the_verdict_too(system):
    broken = {"error": {"status": 400, "message": "no"}}
    for then, status in (("block", "blocked"), ("pass", "finished")):
        agent = {"inputProcessors": [beside(then=then)], "errorProcessors": ["retry"]}
        result, _ = await system.run(broken, ANSWER, agent=agent)
        assert (result.status, result.retries) == (status, 0 if then == "block" else 1)


async def test_a_run_can_be_cancelled_while_the_guard_thinks(system):
    gate, said = system.gate(), system.models.stats.chunks
    agent = {"inputProcessors": [beside(gate)], "outputProcessors": ["upper"]}
    handle = await system.start(ANSWER, agent=agent)
    await gate.reached()
    await until(lambda: system.models.stats.chunks == said + 3)
    await handle.cancel()
    result, chunks = await finished(handle)
    await gate.open()
    assert (result.status, kinds(chunks), result.text) == ("cancelled", ["start", "abort", "finish"], "")


async def test_what_the_provider_has_said_by_then_is_counted(system):
    """R-US-4: the answer is complete, and its price known, when the run is cancelled."""
    gate, said = system.gate(), system.models.stats.chunks
    handle = await system.start(ANSWER, agent={"inputProcessors": [beside(gate)]})
    await gate.reached()
    await until(partial(complete, system.models.stats, said))
    await handle.cancel()
    result, _ = await finished(handle)
    await gate.open()
    assert (result.status, result.text, result.usage["totalTokens"]) == ("cancelled", "", 15)
    assert [(each.calls, each.usage["totalTokens"]) for each in result.models] == [(1, 15)]


async def test_of_several_guards_the_first_one_that_objects_ends_the_run(system):
    gate = system.gate()
    agent = {"inputProcessors": [beside(gate, "block", **{"as": "first"}), beside(then="block")]}
    handle = await system.start(ANSWER, agent=agent)
    await gate.reached()
    await gate.open()
    result, _ = await finished(handle)
    assert result.tripwire.processor_id == "first"


async def test_a_detector_judges_while_the_model_answers(system):
    for verdict, status in ((HATE, "blocked"), (CLEAN, "finished")):
        judge, model = system.script(verdict), system.script(ANSWER)
        agent = {"model": model, "inputProcessors": [guard(judge, parallel=True)]}
        result, chunks = await system.run(agent=agent)
        assert (result.status, len(system.requests(judge))) == (status, 1)
        assert text_of(chunks) == ("" if status == "blocked" else "Well well well")
        assert report(result, "moderation", "processInput").model_calls == 1
