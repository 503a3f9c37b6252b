"""NATS is away for longer, or for good: nothing is lost, memory has an end, and whoever is to end does."""

import asyncio
from functools import partial

import pytest
from nats.errors import ConnectionClosedError

from procession_services.bus import Bus, RequestTimeoutError, connection, unconfirmed
from procession_services.processor_host import service
from procession_services.processor_host.service import hosted
from procession_services.runtime.embedded import EmbeddedServers
from procession_services.runtime.settings import Settings
from tests.support.system import SERVICES, finished, running_system, text_of
from tests.support.waiting import until

pytestmark = [pytest.mark.integration]


@pytest.fixture
async def own(tmp_path):
    async with EmbeddedServers(tmp_path) as servers:
        yield servers


async def cut_off(own, bus):
    own.kill_nats()
    await until(lambda: not bus.client.is_connected)


@pytest.fixture
async def small(own, monkeypatch):
    """A connection with room for little, and what it hears of itself."""
    monkeypatch.setattr(connection, "_BUFFER_BYTES", 1_000)
    bus = await Bus.connect(own.endpoints.nats_url, "test")
    heard = []
    await bus.subscribe("test.away", lambda _subject, body, _reply: heard.append(body))
    yield bus, heard
    await bus.close()


async def test_who_publishes_more_than_a_connection_keeps_waits_until_nats_is_back(own, small):
    bus, heard = small
    bodies = [b"%d" % number + b"x" * 300 for number in range(10)]

    async def publish():
        for body in bodies:
            await bus.publish("test.away", body)

    await cut_off(own, bus)
    publishing = asyncio.create_task(publish())
    await until(lambda: bus.client.pending_data_size > 700)
    done, _ = await asyncio.wait([publishing], timeout=0.1)
    assert not done
    assert bus.client.pending_data_size < 1_500
    await own.restart_nats()
    async with asyncio.timeout(20):
        await publishing
    await until(lambda: heard == bodies)


async def test_a_question_for_which_a_connection_has_no_room_gets_no_answer(own, small):
    bus, _ = small
    await cut_off(own, bus)
    with pytest.raises(RequestTimeoutError):
        await bus.request("test.asked", b"x" * 2_000, 0.1)
    async with bus.inbox() as inbox:
        await inbox.ask("test.asked", b"x" * 2_000)
        with pytest.raises(RequestTimeoutError):
            await inbox.heard(0.1)


async def test_who_waits_for_a_connection_is_told_that_it_was_closed(own, small):
    bus, _ = small
    await cut_off(own, bus)
    publishing = asyncio.create_task(bus.publish("test.away", b"x" * 2_000))
    await asyncio.wait([publishing], timeout=0.05)
    await bus.close()
    with pytest.raises(ConnectionClosedError):
        await publishing


async def test_a_bus_that_could_not_be_had_leaves_no_connection(own, monkeypatch):
    buses = []

    async def never(bus, *_):
        buses.append(bus)
        await asyncio.Event().wait()

    monkeypatch.setattr(Bus, "_retried", never)
    connecting = asyncio.create_task(Bus.connect(own.endpoints.nats_url, "test"))
    await until(lambda: buses)
    connecting.cancel()
    await asyncio.wait([connecting])
    assert buses[0].client.is_closed


async def test_each_step_of_an_end_is_done_whatever_becomes_of_the_others(own, monkeypatch, caplog):
    monkeypatch.setattr(service, "_CLOSE_SECONDS", 1.0)
    done = []

    async def note(what):
        done.append(what)

    async def fails():
        raise ZeroDivisionError("of a step")

    async def hangs():
        await asyncio.Event().wait()

    async def start(host):
        host.on_drain += [fails, hangs]
        host.on_stop += [partial(note, "last"), fails, partial(note, "first")]
        closes = host.redis.aclose
        host.redis.aclose = lambda: asyncio.gather(closes(), note("redis"))

    settings = Settings(nats_url=own.endpoints.nats_url, redis_url=own.endpoints.redis_url, drain_timeout=0.1)
    async with asyncio.timeout(20), hosted("test", settings, start) as host:
        await cut_off(own, host.bus)
    assert done == ["first", "last", "redis"]
    assert host.bus.client.is_closed
    assert "of a step" in caplog.text
    assert "could not stop cleanly in time" in caplog.text


async def test_a_service_that_is_told_to_stop_while_nats_and_redis_are_away_does(own, tmp_path):
    async with running_system(own.endpoints, tmp_path) as system:
        process = await system.process("output_processors").start()
        await process.ready()
        own.kill_nats()
        own.kill_redis()
        assert await process.terminate() == 0
        assert "Traceback" not in process.logged()


@pytest.mark.parametrize("processors", [[], ["upper"]])
async def test_what_nats_could_not_take_for_seconds_costs_no_model_call(
    own, tmp_path, monkeypatch, processors
):
    """The bounds of 32 MB stand for 100 kB here, and one answer of 400 kB for the many that share a process."""
    monkeypatch.setattr(connection, "_BUFFER_BYTES", 100_000)
    monkeypatch.setattr(unconfirmed, "_KEPT_BYTES", 100_000)
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with running_system(own.endpoints, tmp_path) as system, system.inside(*SERVICES, work_ack_wait=6):
        texts = ["go ", *["x" * 10_000] * 40]
        model = system.script({"chunks": texts, "chunk_delay_ms": 20})
        handle = await system.start(agent={"model": model, "outputProcessors": processors})
        reading = asyncio.create_task(finished(handle))
        await until(lambda: system.requests(model))
        own.kill_nats()
        await asyncio.sleep(1.5)  # more than the model needs for all of it
        await own.restart_nats()
        async with asyncio.timeout(30):
            result, chunks = await reading
        expected = "".join(texts).upper() if processors else "".join(texts)
        assert (result.status, result.error) == ("finished", None)
        assert text_of(chunks) == expected
        assert len(system.requests(model)) == 1


async def test_who_starts_while_nats_stands_still_waits_for_it(own, monkeypatch, caplog):
    monkeypatch.setattr(connection, "_FLUSH_SECONDS", 0.1)
    bus = await Bus.connect(own.endpoints.nats_url, "starts")
    own.freeze_nats()
    try:
        flushing = asyncio.create_task(bus.flush())
        await until(lambda: "NATS request failed (flush)" in caplog.text)
    finally:
        own.thaw_nats()
    async with asyncio.timeout(20):
        await flushing
    await bus.close()
