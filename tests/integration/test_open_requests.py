"""A service answers so many requests at once, and tells whoever comes on top; what it cannot answer is logged."""

import asyncio

import pytest

from procession_services.bus import Bus
from procession_services.processor_host import service
from procession_services.processor_host.service import hosted
from procession_services.runtime.settings import Settings

pytestmark = pytest.mark.integration


async def test_requests_above_the_bound_are_answered_with_busy(servers, monkeypatch):
    monkeypatch.setattr(service, "_OPEN_REQUESTS", 2)
    free = asyncio.Event()

    async def slow(_subject: str, body: bytes) -> bytes:
        await free.wait()
        return body

    async def start(host):
        await host.answer("test.busy", slow, busy=b"busy")

    settings = Settings(nats_url=servers.nats_url, redis_url=servers.redis_url)
    async with hosted("test", settings, start):
        bus = await Bus.connect(servers.nats_url, "asks")
        first, second = (asyncio.create_task(bus.request("test.busy", b"%d" % n, 10)) for n in (1, 2))
        await asyncio.sleep(0)
        await bus.flush()
        assert await bus.request("test.busy", b"3", 10) == b"busy"
        free.set()
        assert [await first, await second] == [b"1", b"2"]
        assert await bus.request("test.busy", b"4", 10) == b"4"
        await bus.close()


async def test_a_request_that_cannot_be_answered_is_logged_and_the_next_one_is_answered(servers, caplog):
    async def fragile(_subject: str, body: bytes) -> bytes:
        if body == b"bad":
            raise TimeoutError
        return body

    async def start(host):
        await host.answer("test.fragile", fragile)

    settings = Settings(nats_url=servers.nats_url, redis_url=servers.redis_url)
    async with hosted("test", settings, start):
        bus = await Bus.connect(servers.nats_url, "asks")
        await bus.publish("test.fragile", b"bad")
        assert await bus.request("test.fragile", b"good", 10) == b"good"
        await bus.close()
    assert [(r.levelname, r.getMessage()) for r in caplog.records if "test.fragile" in r.getMessage()] == [
        ("ERROR", "a request on test.fragile failed and was not answered; the sender asks again")
    ]


async def test_a_request_that_outlasts_the_end_of_the_service_is_let_go(servers):
    asked, let_go = asyncio.Event(), asyncio.Event()

    async def endless(_subject: str, _body: bytes) -> bytes:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            let_go.set()
        raise AssertionError("never")

    async def start(host):
        await host.answer("test.endless", endless)

    settings = Settings(nats_url=servers.nats_url, redis_url=servers.redis_url, drain_timeout=0.1)
    async with hosted("test", settings, start):
        bus = await Bus.connect(servers.nats_url, "asks")
        asking = asyncio.create_task(bus.request("test.endless", b"", 10))
        await asked.wait()
    assert let_go.is_set()
    asking.cancel()
    await bus.close()


async def test_who_wants_no_answer_gets_none_and_nothing_is_wrong_with_that(servers, caplog):
    heard = asyncio.Queue[bytes]()

    async def echo(_subject: str, body: bytes) -> bytes:
        heard.put_nowait(body)
        return body

    async def start(host):
        await host.answer("test.silent", echo)

    settings = Settings(nats_url=servers.nats_url, redis_url=servers.redis_url)
    async with hosted("test", settings, start):
        bus = await Bus.connect(servers.nats_url, "tells")
        await bus.publish("test.silent", b"told")
        assert await bus.request("test.silent", b"asked", 10) == b"asked"
        await bus.close()
    assert [heard.get_nowait(), heard.get_nowait()] == [b"told", b"asked"]
    assert not [record for record in caplog.records if "test.silent" in record.getMessage()]
