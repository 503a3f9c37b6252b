"""The sender's side of leases, where nobody has to answer them."""

import asyncio

import pytest

from procession.testing.environment import DictStore
from procession_services.bus import Bus, LostError, NoResponderError
from procession_services.processor_host.stream_session import Session
from procession_services.processor_host.streams import StreamClient


@pytest.fixture
async def client(servers):
    bus = await Bus.connect(servers.nats_url, "test")
    yield StreamClient(bus, "llm_gateway", "here")
    await bus.close()


async def test_who_has_lost_the_command_meanwhile_asks_nobody_more(client, monkeypatch):
    held = iter([True, True, False])
    asked = []

    async def lease():
        return {}

    async def nobody(subject, _body, _seconds):
        asked.append(subject)
        raise NoResponderError(subject)

    monkeypatch.setattr(client._bus, "request", nobody)
    session = Session("s", [], lease, DictStore(), held=lambda: next(held))
    async with asyncio.timeout(10):
        with pytest.raises(LostError):
            await client._lease(session, None)
    assert len(asked) == 4
