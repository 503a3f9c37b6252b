"""What runs may hold in memory."""

import asyncio
import gc

import pytest

from procession_services.output_processors.parts import RunParts
from tests.support.system import text_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

CHUNK = 50_000
CHUNKS = 2000


async def test_a_processor_that_waits_keeps_the_provider_waiting(system):
    gate, chunks = system.gate(), system.models.stats.chunks
    answer = {"chunks": ["x" * CHUNK] * CHUNKS}
    handle = await system.start(answer, agent={"outputProcessors": [gate.processor("processOutputStream")]})
    await gate.reached()
    sent = await _all_that_is_sent(system, chunks)
    await handle.cancel()
    await gate.open()
    assert (await handle.result(timeout=30)).status in {"cancelled", "failed"}
    assert CHUNK < sent < 30_000_000


async def test_a_chunk_of_a_provider_that_is_too_long_ends_the_run_with_an_error(system):
    result, _ = await system.run({"chunks": ["x" * 9_000_000]}, agent={"outputProcessors": ["upper"]})
    assert (result.status, result.error.code) == ("failed", "CHUNK_NOT_SENDABLE")


async def test_a_chunk_that_is_held_back_and_too_long_in_the_end_ends_the_run_with_an_error(system):
    agent = {"inputProcessors": ["swell"], "outputProcessors": ["swell"]}
    result, _ = await system.run({"chunks": ["a"]}, agent=agent)
    assert (result.status, result.error.code) == ("failed", "CHUNK_NOT_SENDABLE")


async def test_a_run_that_is_over_leaves_no_stream_parts(system):
    before = {id(each) for each in _stream_parts()}
    call = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
    for agent in ({"outputProcessors": ["upper"]}, {"outputProcessors": ["upper"], "tools": ["echo"]}):
        calls = [call, {"chunks": ["done"]}] if "tools" in agent else [{"chunks": ["done"]}]
        result, _ = await system.run(*calls, agent=agent)
        assert result.text == "DONE"
    async with asyncio.timeout(10):
        while {id(each) for each in _stream_parts()} - before:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.05)


async def test_an_answer_whose_outcome_is_longer_than_a_message_comes_whole(system):
    answer = {"chunks": ["x" * 1_000_000] * 5}
    result, chunks = await system.run(answer, agent={"outputProcessors": ["upper"]})
    assert result.status == "finished", result.error
    assert text_of(chunks) == "X" * 5_000_000


@pytest.mark.parametrize("processors", [[], ["upper"]], ids=["direct", "through a processor"])
@pytest.mark.parametrize("lengths", [(9,), (5, 5)], ids=["one step", "two steps"])
async def test_the_ends_of_steps_and_runs_do_not_tell_a_text_that_no_chunk_can_hold(
    system, lengths, processors
):
    """Which the deltas had; it is as with `stream: false`."""
    call = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
    *first, last = ({"chunks": ["X" * 1_000_000] * length} for length in lengths)
    agent = {"outputProcessors": processors, "tools": ["echo"]}
    result, chunks = await system.run(*({**answer, **call} for answer in first), last, agent=agent)
    assert (result.status, result.response) == ("finished", {"shortened": True}), result.error
    assert text_of(chunks) == "X" * 1_000_000 * sum(lengths)
    outputs = [chunk["payload"]["output"] for chunk in chunks if chunk["type"] in ("step-finish", "finish")]
    told = [1_000_000 * length if length < 8 else 200_000 for length in lengths]
    assert [len(output["text"]) for output in outputs] == [*told, 200_000]
    assert [output.get("shortened") for output in outputs] == [n == 200_000 or None for n in (*told, 200_000)]
    assert len(result.text) == 200_000


def _stream_parts():
    return [each for each in gc.get_objects() if isinstance(each, RunParts)]


async def _all_that_is_sent(system, before):
    """The bytes that the model server has sent when it can send no more."""
    sent, still = -1, 0
    async with asyncio.timeout(60):
        while still < 4:
            now = (system.models.stats.chunks - before) * CHUNK
            still = still + 1 if now == sent else 0
            sent = now
            await asyncio.sleep(0.5)
    return sent
