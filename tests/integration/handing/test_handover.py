"""Services of one process hand a run's next command to each other, and it survives what a message would."""

import asyncio
from contextlib import AsyncExitStack

import nats as nats_client
import pytest
import pytest_asyncio

from procession_schemas import subjects
from procession_services.processor_host.executor import Executor
from procession_services.runtime.store import run_key
from tests.support.handing import AGENT, CALL, DELAYED, LEASE, LONG, SLOW, SOONER, TEXT, begun
from tests.support.system import SERVICES, finished, text_of
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]
SHORT = "hi"
"""What is asked: in hand until the run is over."""


@pytest_asyncio.fixture(loop_scope="session")
async def start(system):
    """Starts processes with all services."""
    async with AsyncExitStack() as stack:

        async def started(**settings):
            process = system.process(*SERVICES, work_ack_wait=LEASE, log_level="INFO", **settings)
            stack.push_async_callback(process.stop)
            await (await process.start()).ready()
            return process

        yield started


@pytest.mark.parametrize(("text", "told"), [(SHORT, []), (LONG, ["input_processors"])])
async def test_where_all_services_are_one_process_only_what_may_not_stay_in_hand_is_a_message(
    servers, system, start, text, told
):
    await start()
    connection = await nats_client.connect(servers.endpoints.nats_url)
    sent = []

    async def hear(message):
        if not message.subject.startswith("$"):
            sent.append(subjects.parse(message.subject)[1])

    await connection.subscribe(f"{subjects.ROOT}.work.>", cb=hear)
    await connection.flush()
    result, chunks = await system.run(CALL, {"chunks": ["do", "ne"]}, agent=AGENT, text=text)
    await connection.flush()
    await connection.close()
    assert result.text == text_of(chunks) == "DONE"
    assert len(result.steps) == 2
    assert sent == told


@pytest.mark.parametrize("text", [SHORT, LONG])
async def test_another_process_goes_on_long_before_the_message_would_come_again(system, start, text):
    dying = await start()
    model = system.script({"chunks": ["lost "] * 9000, **DELAYED}, SLOW)
    handle = await system.start(agent={**AGENT, "model": model}, text=text)
    await begun(handle)
    await start()
    dying.kill()
    async with asyncio.timeout(SOONER):
        result, _ = await finished(handle)
    assert (result.status, result.text) == ("finished", "".join(TEXT).upper())
    assert len(system.requests(model)) == 2


async def test_a_process_that_ends_leaves_what_comes_next_to_others(system, start):
    ending = await start()
    model = system.script({**CALL, **SLOW}, {"chunks": ["end"]})
    handle = await system.start(agent={**AGENT, "model": model})
    await begun(handle)
    assert await ending.terminate() == 0
    assert " ERROR " not in ending.logged()
    assert len(system.requests(model)) == 1
    await start()
    result, chunks = await finished(handle)
    assert (result.status, result.text) == ("finished", "".join(TEXT).upper() + "END")
    assert "reset" not in [chunk["type"] for chunk in chunks]
    assert len(system.requests(model)) == 2


@pytest.mark.parametrize("text", [SHORT, LONG])
@pytest.mark.parametrize("restarted", ["restart_nats", "restart_redis"])
async def test_what_was_handed_over_goes_on_when_a_server_was_restarted(
    servers, system, start, restarted, text
):
    """NATS does not have it, and Redis may have forgotten that somebody has."""
    await start()
    model = system.script({"chunks": TEXT * 5, "chunk_delay_ms": 20})
    handle = await system.start(agent={**AGENT, "model": model}, text=text)
    await begun(handle)
    await getattr(servers, restarted)()
    result, chunks = await finished(handle)
    assert (result.status, result.text) == ("finished", "".join(TEXT * 5).upper())
    assert "reset" not in [chunk["type"] for chunk in chunks]
    assert len(system.requests(model)) == 1


@pytest.mark.parametrize("text", [SHORT, LONG])
async def test_what_is_cancelled_in_its_first_command_ends_at_once(system, start, text):
    await start()
    gate = system.gate()
    agent = {"inputProcessors": [gate.processor("processInput")]}
    handle = await system.start({"chunks": ["never"]}, agent=agent, text=text)
    await gate.reached()
    await handle.cancel()
    result, _ = await finished(handle)
    assert result.status == "cancelled"


@pytest.mark.parametrize("processors", [[], ["unicode-normalizer"]])
async def test_what_was_cancelled_before_it_was_asked_for_ends_at_once(system, processors):
    """Its end is another command than the first one, which is claimed before anybody knows of the cancellation."""
    model = system.script({"chunks": ["never"]})
    async with system.inside(*SERVICES, together=True):
        await system.client.cancel("early-bird")
        run = run_key(system.client.tenant, "early-bird")
        await eventually(lambda: system.redis.hexists(run, "cancelled"))
        async with asyncio.timeout(SOONER):
            agent = {"model": model, "inputProcessors": processors}
            result, chunks = await system.run(agent=agent, run_id="early-bird")
    assert result.status == "cancelled"
    assert [chunk["type"] for chunk in chunks] == ["start", "abort", "finish"]
    assert system.requests(model) == []


async def test_a_first_command_that_fails_is_done_again(servers, system, monkeypatch, caplog):
    failing, follow = [RuntimeError("Redis has lost its mind")], Executor.follow

    async def once(self, claimed, delivery):
        if failing:
            raise failing.pop()
        return await follow(self, claimed, delivery)

    monkeypatch.setattr(Executor, "follow", once)
    async with system.inside(*SERVICES, together=True):
        result, chunks = await system.run({"chunks": ["do", "ne"]}, agent=AGENT)
    assert result.text == text_of(chunks) == "DONE"
    assert "delivery 1 of " in caplog.text
