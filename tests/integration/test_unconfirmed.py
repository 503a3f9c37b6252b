"""What is published into a stream without waiting gets there, whatever becomes of the stream meanwhile."""

import asyncio
import dataclasses

import pytest
import pytest_asyncio
from nats.js.api import DiscardPolicy
from nats.js.errors import NotFoundError

from procession_schemas import subjects
from procession_services.bus import Bus, unconfirmed
from procession_services.bus.streams import Streams, stream_configs
from procession_services.processor_host.service import hosted
from procession_services.runtime.embedded import EmbeddedServers
from procession_services.runtime.settings import Settings
from procession_services.tools import app as tools
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

SUBJECT = subjects.chunk("acme", "r1")
(CHUNKS,) = [config for config in stream_configs() if config.name == "CHUNKS"]


@pytest_asyncio.fixture(loop_scope="session")
async def servers(tmp_path):
    async with EmbeddedServers(tmp_path, redis=False) as servers:
        yield servers


async def stored(bus):
    """All bodies that the stream holds."""
    info = await bus.js.stream_info("CHUNKS")
    numbers = range(info.state.first_seq, info.state.last_seq + 1) if info.state.messages else ()
    return [(await bus.js.get_msg("CHUNKS", seq=number)).data for number in numbers]


async def until_stored(bus, *bodies):
    async with asyncio.timeout(20):
        while not set(bodies) <= set(await stored(bus)):  # noqa: ASYNC110 - a stream tells nobody
            await asyncio.sleep(0.05)


async def published(bus, body):
    await bus.room_to_keep()
    await bus.publish_kept(SUBJECT, body)


async def test_where_there_are_several_servers_each_message_is_sent_until_the_stream_has_it(servers):
    url = servers.endpoints.nats_url
    bus = await Bus.connect(f"{url},{url.replace('127.0.0.1', 'localhost')}", "test")
    await bus.publish_kept(SUBJECT, b"1")
    await until_stored(bus, b"1")
    await bus.js.delete_stream("CHUNKS")  # as if it had no leader: nobody answers
    with pytest.raises(NotFoundError):
        await stored(bus)
    await bus.publish_kept(SUBJECT, b"2")
    await bus.publish_kept(SUBJECT, b"3")
    await bus.flush()
    await bus.js.add_stream(CHUNKS)
    await bus.publish_kept(SUBJECT, b"4")  # its confirmation says nothing of those before
    await until_stored(bus, b"2", b"3", b"4")
    assert b"1" not in await stored(bus)  # it had been confirmed
    await bus.close()


async def test_where_there_are_several_servers_what_is_lost_is_sent_again_when_the_stream_has_what_came_behind(
    servers, monkeypatch
):
    monkeypatch.setattr(unconfirmed, "_AGAIN_SECONDS", 60.0)
    url = servers.endpoints.nats_url
    bus = await Bus.connect(f"{url},{url.replace('127.0.0.1', 'localhost')}", "test")
    publish, sent = bus.client.publish, []

    async def lossy(subject, body, **options):
        sent.append(body)
        if body not in (b"1", b"2") or sent.count(body) > 1:
            await publish(subject, body, **options)

    monkeypatch.setattr(bus.client, "publish", lossy)
    for body in (b"0", b"1", b"2", b"3"):
        await bus.publish_kept(SUBJECT, body)
    await until_stored(bus, b"0", b"1", b"2", b"3")
    assert await stored(bus) == [b"0", b"3", b"1", b"2"]
    assert await bus.stored.latest("CHUNKS", SUBJECT) == [
        b"0",
        b"3",
        b"1",
        b"2",
    ]  # the newest is not the last one
    await bus.publish_kept(SUBJECT, b"4")
    await until_stored(bus, b"4")
    assert await bus.stored.latest("CHUNKS", SUBJECT) == [b"4"]
    await bus.close()


@pytest.mark.parametrize("cluster", [False, True])
async def test_a_service_that_is_told_to_stop_waits_until_the_streams_have_what_it_sent(
    servers, tmp_path, monkeypatch, cluster
):
    settled, waits = Bus.settled, asyncio.Event()

    async def noted(self):
        waits.set()
        await settled(self)

    monkeypatch.setattr(Bus, "settled", noted)
    url = servers.endpoints.nats_url
    urls = f"{url},{url.replace('127.0.0.1', 'localhost')}" if cluster else url
    other = await Bus.connect(url, "test")
    async with EmbeddedServers(tmp_path / "redis", nats=False) as more, asyncio.timeout(30):
        settings = Settings(nats_url=urls, redis_url=more.endpoints.redis_url)
        hosting = hosted("tools", settings, tools.start)
        host = await hosting.__aenter__()
        if cluster:
            await other.js.delete_stream("CHUNKS")  # as if it had no leader: nobody answers
        else:
            servers.kill_nats()
        for body in (b"1", b"2"):
            await host.bus.publish_kept(SUBJECT, body)
        leaving = asyncio.create_task(hosting.__aexit__(None, None, None))
        await waits.wait()
        await (other.js.add_stream(CHUNKS) if cluster else servers.restart_nats())
        await leaving
        assert {b"1", b"2"} <= set(await stored(other))
        await other.close()


async def test_what_one_server_has_not_confirmed_is_sent_again_when_it_is_back(servers):
    bus = await Bus.connect(servers.endpoints.nats_url, "test")
    servers.kill_nats()
    await bus.publish_kept(SUBJECT, b"1")
    await servers.restart_nats()
    await until_stored(bus, b"1")
    await bus.close()


async def test_what_is_kept_while_nats_is_away_goes_out_once(servers):
    bus = await Bus.connect(servers.endpoints.nats_url, "test")
    servers.kill_nats()
    await until(lambda: not bus.client.is_connected)
    bodies = [b"%d" % number for number in range(100)]
    for body in bodies:
        await bus.publish_kept(SUBJECT, body)
    await servers.restart_nats()
    await until_stored(bus, bodies[-1])
    assert await stored(bus) == bodies
    await bus.close()


@pytest.mark.parametrize("limit", ["_KEPT", "_KEPT_BYTES"])
async def test_who_wants_to_publish_more_than_can_be_kept_waits_until_nats_is_back(
    servers, monkeypatch, limit
):
    monkeypatch.setattr(unconfirmed, limit, 5)
    bus = await Bus.connect(servers.endpoints.nats_url, "test")
    servers.kill_nats()
    await until(lambda: not bus.client.is_connected)
    taken = []

    async def publish(numbers):
        for number in numbers:
            await published(bus, b"%d" % number)
            taken.append(number)

    publishing = [
        asyncio.create_task(publish(range(0, 12, 2))),
        asyncio.create_task(publish(range(1, 12, 2))),
    ]
    await until(lambda: len(taken) == 5)
    done, _ = await asyncio.wait(publishing, timeout=0.2)
    assert not done
    assert len(taken) == 5
    await servers.restart_nats()
    async with asyncio.timeout(20):
        await asyncio.gather(*publishing)
    await until_stored(bus, *(b"%d" % number for number in range(12)))
    await bus.close()


async def test_while_nats_is_there_who_wants_to_publish_more_than_can_be_kept_goes_on(servers, monkeypatch):
    """As where a stream takes nothing, and clients hear it nevertheless."""
    monkeypatch.setattr(unconfirmed, "_KEPT", 5)
    bus = await Bus.connect(servers.endpoints.nats_url, "test")
    await bus.js.delete_stream("CHUNKS")
    async with asyncio.timeout(20):
        for number in range(20):
            await published(bus, b"%d" % number)
    await bus.close()


@pytest.mark.parametrize("goes_on", [True, False], ids=["is thawed", "is killed"])
async def test_who_wants_to_publish_more_than_can_be_kept_waits_where_nats_stands_still(
    servers, monkeypatch, goes_on
):
    """It is connected, and has nothing yet."""
    monkeypatch.setattr(unconfirmed, "_KEPT", 5)
    bus = await Bus.connect(servers.endpoints.nats_url, "test")
    await bus.kept(await bus.publish_kept(SUBJECT, b"0", ask=True))
    servers.freeze_nats()

    async def publish():
        for number in range(1, 20):
            await published(bus, b"%d" % number)

    publishing = asyncio.create_task(publish())
    done, _ = await asyncio.wait([publishing], timeout=0.3)
    assert not done
    if goes_on:
        servers.thaw_nats()
    else:
        await servers.restart_nats()
    async with asyncio.timeout(20):
        await publishing
        await until_stored(bus, *(b"%d" % number for number in range(20)))
    await bus.close()


async def test_who_waits_for_a_message_goes_on_when_the_stream_has_it(servers):
    bus = await Bus.connect(servers.endpoints.nats_url, "test")
    await bus.kept(await bus.publish_kept(SUBJECT, b"1", ask=True))
    assert await stored(bus) == [b"1"]
    servers.kill_nats()
    numbers = [await bus.publish_kept(SUBJECT, body, ask=True) for body in (b"2", b"3")]
    waiting = [asyncio.create_task(bus.kept(number)) for number in (*numbers, *numbers)]
    done, _ = await asyncio.wait(waiting, timeout=0.2)
    assert not done
    await servers.restart_nats()
    async with asyncio.timeout(20):
        await asyncio.gather(*waiting)
    assert await stored(bus) == [b"1", b"2", b"3"]
    await bus.close()


async def test_in_a_cluster_who_waits_for_a_message_waits_for_all_before_and_for_a_leader(servers, caplog):
    url = servers.endpoints.nats_url
    bus = await Bus.connect(f"{url},{url.replace('127.0.0.1', 'localhost')}", "test")
    await bus.js.delete_stream("CHUNKS")  # as if it had no leader: nobody answers
    numbers = [await bus.publish_kept(SUBJECT, body) for body in (b"1", b"2")]
    waiting = asyncio.create_task(bus.kept(numbers[-1]))
    await until(lambda: "does not store" in caplog.text)
    assert not waiting.done()
    await bus.js.add_stream(CHUNKS)
    async with asyncio.timeout(20):
        await waiting
    assert set(await stored(bus)) == {b"1", b"2"}  # either may have been sent again
    await bus.close()


async def test_who_waits_for_a_message_that_the_stream_does_not_take_goes_on(servers):
    bus = await Bus.connect(servers.endpoints.nats_url, "test")
    await bus.js.delete_stream("CHUNKS")
    async with asyncio.timeout(20):
        await bus.kept(await bus.publish_kept(SUBJECT, b"1", ask=True))
    await bus.close()


async def test_what_a_stream_may_store_yet_is_waited_for_and_kept(servers, monkeypatch):
    """As where its leader has too much to do: that is no refusal."""
    monkeypatch.setattr(unconfirmed, "_KEPT", 5)
    monkeypatch.setattr(unconfirmed, "_AGAIN_SECONDS", 0.2)
    monkeypatch.setattr(Streams, "restore", lambda _: None)
    url = servers.endpoints.nats_url
    bus = await Bus.connect(f"{url},{url.replace('127.0.0.1', 'localhost')}", "test")
    leader = await Bus.connect(url, "test")
    await bus.js.delete_stream("CHUNKS")
    told = (
        b'{"error":{"code":429,"err_code":10167,"description":"too many requests"},"stream":"CHUNKS","seq":0}'
    )
    asked = []

    def not_yet(_subject, body, reply):
        asked.append(body)
        leader.post(reply, told)

    busy = await leader.subscribe(SUBJECT, not_yet)
    await leader.flush()
    waiting = asyncio.create_task(bus.kept(await bus.publish_kept(SUBJECT, b"0", ask=True)))
    await until(lambda: asked.count(b"0") > 2)
    assert not waiting.done()
    bodies = [b"%d" % number for number in range(1, 12)]

    async def publish():
        for body in bodies:
            await published(bus, body)

    publishing = asyncio.create_task(publish())
    await until(lambda: asked.count(b"4") > 1)
    assert not publishing.done()
    await leader.unsubscribe(busy)
    await bus.js.add_stream(CHUNKS)
    async with asyncio.timeout(20):
        await asyncio.gather(waiting, publishing)
        await until_stored(bus, b"0", *bodies)
    await leader.close()
    await bus.close()


async def test_what_a_stream_refuses_is_not_confirmed_and_is_sent_again(servers):
    bus = await Bus.connect(servers.endpoints.nats_url, "test")
    full = dataclasses.replace(CHUNKS, max_bytes=200, discard=DiscardPolicy.NEW)
    await bus.js.update_stream(full)
    await bus.publish_kept(SUBJECT, b"1" * 400)
    async with asyncio.timeout(20):
        await bus.kept(await bus.publish_kept(SUBJECT, b"2" * 400, ask=True))  # nobody waits for ever
    assert await stored(bus) == []
    await bus.js.update_stream(CHUNKS)
    await until_stored(bus, b"1" * 400, b"2" * 400)
    await bus.close()
