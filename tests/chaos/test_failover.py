"""One stream and the death of its output replica."""

import asyncio
import json

import nats
import pytest
import pytest_asyncio

from procession_schemas import subjects
from procession_services.runtime.embedded import EmbeddedServers
from tests.support.system import all_but, finished, numbered, running_system, text_of
from tests.support.waiting import eventually, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

WORDS = [f"word{number} " for number in range(60)]
BATCHES = {"id": "batch-parts", "options": {"batchSize": 200, "maxWaitTime": 20}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def system(servers, tmp_path_factory, monkeypatch_module):
    """Every service but the output processors."""
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with (
        running_system(servers, tmp_path_factory.mktemp("logs")) as system,
        system.inside(*all_but("output_processors"), work_ack_wait=2.0),
    ):
        yield system


@pytest.mark.parametrize("chance", ["a timer", "a task", "an error", "a whim"])
async def test_chunks_that_chance_has_made_are_taken_back_and_made_anew(system, chance, tmp_path):
    whim = {"path": str(tmp_path / "first"), "raises": chance == "an error"}
    by_chance = {"a timer": BATCHES, "a task": "ticking"}.get(chance) or {
        "id": "whim",
        "options": whim,
        "onError": "skip",
    }
    process = await system.process("output_processors").start()
    try:
        await process.ready()
        model = system.script({"chunks": WORDS, "chunk_delay_ms": 30})
        handle = await system.start(agent={"model": model, "outputProcessors": [by_chance, "upper"]})
        chunks, texts = [], 0
        async for chunk in numbered(handle):
            chunks.append(chunk)
            texts += chunk["type"] == "text-delta"
            if texts == 10:
                break
        async with system.inside("output_processors"):
            process.kill()
            result, more = await finished(handle)
            late = await system.client.attach(result.run_id)
            _, again = await finished(late)
    finally:
        await process.stop()
    dropped = {"an error": 4, "a whim": 4}.get(chance)
    expected = "".join(word for number, word in enumerate(WORDS) if number != dropped).upper()
    assert (result.status, result.text, text_of(chunks + more)) == ("finished", expected, expected)
    assert "reset" in [chunk["type"] for chunk in more]
    assert any(batch.get("timed") for batch in await system.batches(result.run_id))
    assert text_of(again) == expected
    assert len(system.requests(model)) == 1


async def test_what_models_told_the_processors_of_a_dead_replica_is_not_asked_again(system):
    process = await system.process("output_processors").start()
    try:
        await process.ready()
        model = system.script({"chunks": WORDS, "chunk_delay_ms": 30})
        rates = [f"rated{number} " for number in range(20)]
        rater = system.script(*({"chunks": [rate]} for rate in rates))
        chain = [{"id": "rated", "options": {"model": rater}}, "upper"]
        handle = await system.start(agent={"model": model, "outputProcessors": chain})
        said = (chunk["payload"]["text"] async for chunk in handle if chunk["type"] == "text-delta")
        texts = [await anext(said)]
        async with system.inside("output_processors"):
            texts += [await anext(said) for _ in range(31)]
            process.kill()  # before it asks again
            result, more = await finished(handle)
    finally:
        await process.stop()
    expected = "".join(
        word + (rates[number // 10 - 1] if number % 10 == 0 else "") for number, word in enumerate(WORDS, 1)
    ).upper()
    assert (result.text, "".join(texts) + text_of(more)) == (expected, expected)
    assert "reset" not in [chunk["type"] for chunk in more]
    assert len(system.requests(rater)) == 6
    assert sum(report.model_calls for report in result.processors) == 6


async def test_a_gateway_that_ends_answers_what_its_own_streams_wait_for(tmp_path, monkeypatch):
    """The only one; a processor of the stream asks a model through it."""
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with (
        EmbeddedServers(tmp_path) as servers,
        running_system(servers.endpoints, tmp_path) as system,
        system.inside(*all_but("llm_gateway")),
    ):
        process = await system.process("llm_gateway").start()
        try:
            await process.ready()
            model, rater = (
                system.script({"chunks": WORDS, "chunk_delay_ms": 30}),
                system.script(*({"chunks": ["rated "]} for _ in range(6))),
            )
            chain = [{"id": "rated", "options": {"model": rater}}]
            handle = await system.start(agent={"model": model, "outputProcessors": chain})
            chunks = handle.chunks(idle_timeout=20)
            while (await anext(chunks))["type"] != "text-delta":
                pass
            ending = asyncio.create_task(process.terminate())
            result = await handle.result(timeout=20)
            assert await ending == 0
        finally:
            await process.stop()
    assert result.status == "finished"
    assert (len(system.requests(model)), len(system.requests(rater))) == (1, 6)


async def test_what_a_dead_replica_was_sent_is_shown_before_the_model_says_more(system):
    process = await system.process("output_processors").start()
    try:
        await process.ready()
        model = system.script({"chunks": WORDS[:3], "chunk_delay_ms": 4000})
        handle = await system.start(agent={"model": model, "outputProcessors": ["upper"]})
        before = system.models.stats.chunks
        texts = (chunk["payload"]["text"] async for chunk in handle if chunk["type"] == "text-delta")
        async with asyncio.timeout(20):
            await anext(texts)
            await _acknowledged(system)
            process.kill()
            async with system.inside("output_processors"):
                said = [system.models.stats.chunks - before async for _ in texts]
    finally:
        await process.stop()
    assert said == [2, 3]


async def test_another_replica_ends_the_run_when_the_one_that_was_about_to_dies(system):
    process = await system.process("output_processors").start()
    try:
        await process.ready()
        gate, model = system.gate(), system.script({"chunks": WORDS})
        chain = ["upper", gate.processor("processOutputResult")]
        handle = await system.start(agent={"model": model, "outputProcessors": chain})
        assert await gate.reached() == process.process.pid
        async with system.inside("output_processors"):
            process.kill()
            result, chunks = await finished(handle)
    finally:
        await process.stop()
    expected = "".join(WORDS).upper()
    assert (result.status, result.text, text_of(chunks)) == ("finished", expected, expected)
    assert (await gate.passes(), len(system.requests(model))) == (2, 1)
    assert [chunk["type"] for chunk in chunks].count("step-finish") == 1


@pytest.mark.parametrize("processors", [["upper"], [BATCHES, "upper"]])
async def test_a_stream_waits_while_there_is_no_replica(system, processors):
    model = system.script({"chunks": WORDS[:10]})
    handle = await system.start(agent={"model": model, "outputProcessors": processors})
    await until(lambda: system.requests(model))
    async with system.inside("output_processors"):
        result, chunks = await finished(handle)
    assert result.text == text_of(chunks) == "".join(WORDS[:10]).upper()


async def test_a_replica_that_took_a_stream_and_did_not_say_so_is_behind_the_next_one(system):
    bus = await nats.connect(system.servers.nats_url)
    silent = await bus.subscribe(subjects.lease("output_processors"), queue="replicas")
    await bus.flush()
    handle = await system.start(
        {"chunks": WORDS[:6], "chunk_delay_ms": 100}, agent={"outputProcessors": ["upper"]}
    )
    lost = await silent.next_msg(timeout=20)
    await silent.unsubscribe()
    fence = json.loads(lost.data)["fence"]

    async def said():
        batches = await system.batches(handle.run_id)
        return [
            c for b in batches if b.get("fence") == fence for c in b["chunks"] if c["type"] == "text-delta"
        ]

    async with system.inside("output_processors"):
        result, chunks = await finished(handle)
        assert await said() == []
        await bus.publish(lost.subject, lost.data, reply=bus.new_inbox())  # it goes on where it stood
        await eventually(said)
        _, seen = await finished(await system.client.attach(result.run_id))
    await bus.close()
    expected = "".join(WORDS[:6]).upper()
    assert (result.text, text_of(chunks), text_of(seen)) == (expected, expected, expected)


async def _acknowledged(system):
    """Waits until a replica says what it has processed."""
    connection = await nats.connect(system.servers.nats_url)
    answers = await connection.subscribe(subjects.answers("*", "*.*"))
    await answers.next_msg(timeout=10)
    await connection.close()
