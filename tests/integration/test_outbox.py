"""Chunks that are ready together go together, and numbers are not lost."""

import asyncio
import json
import secrets
from typing import Any

import pytest
import pytest_asyncio

from procession.client import ChunkOrder
from procession.errors import ProcessorError
from procession_schemas import subjects
from procession_services.bus import Bus, unconfirmed
from procession_services.bus.unconfirmed import AGAIN
from procession_services.processor_host.outbox import Outbox, Shown, last_sent
from procession_services.runs.numbering import fence_of
from procession_services.runtime.embedded import EmbeddedServers
from procession_services.runtime.tasks import ended
from tests.support.waiting import nothing_more

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session")
async def servers(tmp_path):
    async with EmbeddedServers(tmp_path, redis=False) as servers:
        yield servers


@pytest_asyncio.fixture(loop_scope="session")
async def bus(servers):
    bus = await Bus.connect(servers.endpoints.nats_url, "test")
    yield bus
    await bus.close()


@pytest_asyncio.fixture(loop_scope="session")
async def batches(bus):
    """What clients of the run get, as it comes."""
    heard: asyncio.Queue[Any] = asyncio.Queue()

    def hear(_subject, body, _reply):
        heard.put_nowait(json.loads(body))

    await bus.subscribe(subjects.chunk("acme", "r1"), hear)
    await bus.flush()
    return heard


def outbox(bus):
    return Outbox(bus, "acme", "r1", 5, live=True)


def named(*names):
    return [{"type": "text-delta", "payload": {"text": name}} for name in names]


def told(batch):
    return batch["seq"], [chunk["payload"].get("text", "")[:5] for chunk in batch["chunks"]]


async def test_an_operation_that_does_not_wait_shares_its_message_with_what_was_ready(bus, batches):
    box = outbox(bus)
    box.put(*named("one"))
    async with box.flushing():
        box.put(*named("two"))
    await box.flush()
    assert told(await batches.get()) == (5, ["one", "two"])


async def test_what_is_ready_does_not_wait_for_an_operation_that_waits(bus, batches):
    box = outbox(bus)
    box.put(*named("one"))
    async with box.flushing():
        assert told(await batches.get()) == (5, ["one"])
        box.put(*named("two"))
    await box.flush()
    assert told(await batches.get()) == (6, ["two"])


async def test_what_cannot_be_sent_while_an_operation_waits_is_an_error_of_that_operation(bus):
    box = outbox(bus)
    box.put({"type": "data-bad", "data": object()})
    with pytest.raises(ProcessorError, match="data-bad"):
        async with box.flushing():
            await asyncio.sleep(0)


@pytest.mark.parametrize("bad", [object(), "x" * 9_000_000], ids=["no-json", "too-long"])
async def test_chunks_before_one_that_cannot_be_sent_are_sent_and_its_number_is_given_again(
    bus, batches, bad
):
    box = outbox(bus)
    for chunk in [*named("one", "two"), {"type": "data-bad", "data": bad}, *named("four")]:
        box.put(chunk)
    with pytest.raises(ProcessorError, match="data-bad"):
        await box.flush()
    got: list[tuple[int, str]] = []
    while len(got) < 2:
        first, names = told(await batches.get())
        got += list(enumerate(names, first))
    assert got == [(5, "one"), (6, "two")]
    box.put(*named("instead"))
    await box.flush()
    assert told(await batches.get()) == (7, ["inste"])


async def test_who_is_cancelled_while_nats_stands_still_loses_no_chunk(servers, bus, batches, monkeypatch):
    monkeypatch.setattr(unconfirmed, "_KEPT", 1)
    box = outbox(bus)
    servers.freeze_nats()
    box.put(*named("one"))
    await box.flush()
    box.put(*named("two"))
    flushing = asyncio.create_task(box.flush())
    await nothing_more()
    assert not flushing.done()
    await ended(flushing)
    servers.thaw_nats()
    box.put(*named("three"))
    await box.flush(end=True)
    got: list[tuple[int, str]] = []
    async with asyncio.timeout(20):
        while len(got) < 3:
            first, names = told(await batches.get())
            got += list(enumerate(names, first))
    assert got == [(5, "one"), (6, "two"), (7, "three")]


async def test_who_does_it_again_uses_no_number_that_a_client_may_have_although_the_stream_lost_it(
    bus, batches
):
    first = outbox(bus)
    first.put(*named("one"))
    await first.flush()
    await batches.get()
    await bus.flush()
    # A client got number 6 as well, and NATS was killed before it was stored.
    again = Outbox(bus, "acme", "r1", 5, live=True, fence=1)
    await again.renew(2)
    again.put(*named("uno"))
    await again.flush()
    back = ChunkOrder(after=7)
    for _ in range(2):
        back.add(await batches.get())
    reset, chunk = back.pop(), back.pop()
    assert reset is not None
    assert chunk is not None
    assert (reset["type"], reset["payload"]["from"], chunk["payload"]["text"]) == ("reset", 5, "uno")


async def test_whoever_has_the_greater_fence_has_the_greater_numbers(bus, batches):
    firsts = []
    for attempt, stream in ((1, 0), (1, 2), (1, 3), (2, 0), (2, 2), (3, 0)):
        box = Outbox(bus, "acme", "r1", 5, live=True, fence=fence_of(1, attempt, stream))
        if attempt > 1:
            await box.renew(attempt)
        if stream:
            await box.renew(stream=stream)
        box.put(*named("one"))
        await box.flush()
        firsts.append(box.next_seq)
    assert firsts == sorted(set(firsts))


async def test_a_stream_says_what_the_command_replaces_and_the_command_does_not_say_it_again(bus, batches):
    box = outbox(bus)
    await box.renew(2)
    assert box.reset == 5
    stream = Outbox(bus, "acme", "r1", box.next_seq, live=True, reset=box.reset)
    stream.put(*named("one"))
    await stream.flush()
    box.go_on_behind(stream.next_seq, stream.fence)
    box.put(*named("two"))
    await box.flush(end=True)
    told = [await batches.get() for _ in range(3)]
    assert [(len(batch["chunks"]), batch.get("reset")) for batch in told] == [(0, 5), (1, 5), (1, None)]
    client = ChunkOrder(after=5)
    for batch in told:
        client.add(batch)
    got = []
    while chunk := client.pop():
        got.append(chunk["payload"]["text"])
    assert got == ["one", "two"]


async def test_who_follows_again_replaces_what_came_late_of_whoever_it_followed(bus, batches):
    """A run is ended at its deadline, twice, while the replica that streams has not heard of it."""
    run = secrets.token_hex(6)
    await bus.subscribe(subjects.chunk("acme", run), lambda _subject, body, _reply: heard.put_nowait(body))
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    await bus.flush()

    def box(fence):
        return Outbox(bus, "acme", run, 0, live=True, fence=fence)

    async def says(box, name):
        box.put(*named(name))
        await box.flush()
        await bus.flush()

    streaming, first, second = box(fence_of(1, 1)), box(fence_of(2, 1)), box(fence_of(2, 2))
    await says(streaming, "text")
    await first.follow()
    await says(first, "end")
    await says(streaming, "late")
    await second.follow(again=True)
    await says(second, "end again")
    client, got = ChunkOrder(after=0), list[str]()
    async with asyncio.timeout(10):
        while got[-1:] != ["end again"]:
            client.add(json.loads(await heard.get()))
            while chunk := client.pop():
                got.append(chunk["payload"].get("text", chunk["type"]))
    assert got == ["text", "end", "reset", "end again"]


async def test_what_clients_have_is_told_by_what_was_sent_last_not_by_what_was_stored_last(bus):
    """In a cluster, what is lost between servers is sent again, behind what came after it."""
    subject = subjects.chunk("acme", "r1")
    for seq, headers in ((0, None), (2, None), (1, {AGAIN: "1"})):
        batch = {"run": "r1", "seq": seq, "fence": 7, "chunks": named("one")}
        await bus.client.store(subject, json.dumps(batch).encode(), seconds=5, headers=headers or {})
    assert await last_sent(bus, "acme", "r1") == Shown(fence=7, last=2, chunk=named("one")[0])
    assert await last_sent(bus, "acme", "r1", 8) == Shown()
