"""Streams that NATS does not make: the log says why, and how to mend it."""

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Any

import nats
import pytest

from procession_services.bus import Bus, connection, streams
from procession_services.deploy.check import check_deployment
from procession_services.runtime.embedded import EmbeddedServers
from procession_services.runtime.server_programs import Nats
from procession_services.runtime.settings import Settings
from procession_services.runtime.tasks import ended
from tests.support.waiting import until

pytestmark = [pytest.mark.integration]

ACCOUNT = """
accounts { procession { jetstream { max_streams: 6 }, users: [{ user: services, password: x }] } }
no_auth_user: services
"""
WITHOUT_JETSTREAM = (
    "accounts { procession { users: [{ user: services, password: x }] } }\nno_auth_user: services\n"
)


@pytest.fixture
async def nats_with(tmp_path, monkeypatch):
    """Starts NATS with a configuration of its own; gives its address."""
    started: list[EmbeddedServers] = []

    async def start(more: str = "", *, jetstream: bool = True) -> str:
        config = Nats.config

        def changed(self: Nats, data: Any, ports: Any) -> str:
            made = config(self, data, ports)
            return (made if jetstream else made.partition("jetstream {")[0]) + more

        async def answers(_self: Nats, reader: asyncio.StreamReader, *_: Any) -> bool:
            return (await reader.readline()).startswith(b"INFO")

        monkeypatch.setattr(Nats, "config", changed)
        monkeypatch.setattr(Nats, "answers", answers)
        servers = EmbeddedServers(tmp_path, redis=False)
        await servers.__aenter__()
        started.append(servers)
        return servers.endpoints.nats_url

    yield start
    for servers in started:
        await servers.__aexit__(None, None, None)


TROUBLE = {
    "no JetStream": ("", False, 1, "JetStream is not available: start nats-server with `jetstream`"),
    "none for the account": (WITHOUT_JETSTREAM, True, 1, "enable `jetstream` for this NATS account"),
    "no cluster": ("", True, 3, "PROCESSION_STREAM_REPLICAS is above 1"),
    "too few": (ACCOUNT.replace("6", "2"), True, 1, "allow the NATS account more streams"),
}


@pytest.mark.parametrize("trouble", TROUBLE)
async def test_whoever_starts_says_why_there_are_no_streams(nats_with, caplog, trouble):
    more, jetstream, replicas, why = TROUBLE[trouble]
    url = await nats_with(more, jetstream=jetstream)
    connecting = asyncio.create_task(Bus.connect(url, "test", replicas=replicas))
    await until(lambda: connecting.done() or "trying again" in caplog.text)
    assert not connecting.done(), "it may be mended any time"
    assert "NATS request failed (the streams), trying again: " in caplog.text
    assert why in caplog.text
    await ended(connecting)


async def test_a_stream_of_somebody_else_with_one_of_our_names_stays_as_it_is(nats_with, caplog):
    url = await nats_with()
    async with await nats.connect(url) as client:
        js = client.jetstream()
        theirs = (await js.add_stream(name="EVENTS", subjects=["orders.>"])).config
        connecting = asyncio.create_task(Bus.connect(url, "test"))
        await until(lambda: connecting.done() or "trying again" in caplog.text)
        assert (await js.stream_info("EVENTS")).config == theirs
        assert (
            "the stream EVENTS does not belong to Procession (its subjects: orders.>) (10058); give"
            in caplog.text
        )
        found = await check_deployment(Settings(nats_url=url))
        assert any("stream EVENTS: does not belong to Procession" in str(each) for each in found.problems)
        await js.delete_stream("EVENTS")
        await (await connecting).close()


async def test_why_a_stream_cannot_be_made_anew_is_told_once_and_that_it_was(nats_with, caplog, monkeypatch):
    monkeypatch.setattr(connection, "_LOOK_SECONDS", 0.01)
    caplog.set_level(logging.WARNING, "procession_services")
    async with AsyncExitStack() as stack:
        bus = await Bus.connect(await nats_with(ACCOUNT), "test")
        stack.push_async_callback(bus.close)
        await bus.js.delete_stream("DEAD")
        await bus.js.add_stream(name="MINE", subjects=["mine"])
        keeping = asyncio.create_task(bus.keep_streams())
        stack.push_async_callback(ended, keeping)
        await until(lambda: "more streams (max_streams)" in caplog.text)
        asked, stream_info = 0, bus.js.stream_info

        async def counted(name: str) -> Any:
            nonlocal asked
            asked += name == "DEAD"
            return await stream_info(name)

        monkeypatch.setattr(bus.js, "stream_info", counted)
        await until(lambda: asked > 3)
        await bus.js.delete_stream("MINE")
        await until(lambda: "were recreated" in caplog.text)
    told = [
        each.getMessage() for each in caplog.records if each.name in {connection.__name__, streams.__name__}
    ]
    assert [each.partition(":")[0] for each in told] == [
        "cannot check or create the streams, trying again",
        "missing streams were recreated, their messages are lost",
    ]
    assert told[1].endswith(": DEAD")
