"""What is sent again, and what an answer says of it; tests/integration has the same at servers that die."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from procession_services.bus import unconfirmed
from procession_services.bus.unconfirmed import AGAIN, Unconfirmed
from tests.support.waiting import nothing_more, until

FULL = b'{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"CHUNKS","seq":0}'
ON_ITS_WAY = (
    b'{"error":{"code":503,"err_code":10158,"description":"duplicate in process"},"stream":"CHUNKS","seq":0}'
)
NOBODY = b""


class Client:
    """A connection that keeps what is published: body, number of the question or None, and whether it comes again."""

    def __init__(self, servers):
        self.servers, self.is_connected = [None] * servers, True
        self.sent = []

    def new_inbox(self):
        return "_INBOX.x"

    async def listen(self, subject, heard):
        self.heard = heard

    async def publish(self, subject, body, *, reply, headers=None):
        self.sent.append((body.decode(), reply.removeprefix("_INBOX.x.") or None, AGAIN in (headers or {})))

    def take(self):
        sent, self.sent = self.sent, []
        return sent

    def answer(self, question, data=b'{"stream":"CHUNKS","seq":7}'):
        self.heard(SimpleNamespace(subject=f"_INBOX.x.{question}", data=data))


@pytest.fixture
async def made():
    """Makes what is tested, at so many servers, with a clock that stands still: its client, it, and the clock."""
    every = []

    async def make(servers=1):
        client: Any = Client(servers)
        now = SimpleNamespace(seconds=100.0, restored=0)

        def restore():
            now.restored += 1

        kept = Unconfirmed(client, restore)
        kept._clock = lambda: now.seconds
        await kept.start()
        every.append(kept)
        return client, kept, now

    yield make
    for kept in every:
        kept.stop()


async def published(kept, *bodies, ask=False):
    return [await kept.publish("c", body.encode(), ask=ask) for body in bodies]


async def is_stored(kept, number):
    """Whether who waits for a message goes on at once."""
    waiting = asyncio.ensure_future(kept.stored(number))
    await nothing_more()
    return waiting.done() or not waiting.cancel()


async def test_one_server_is_asked_now_and_then_and_when_somebody_wants_to_know(made):
    client, kept, now = await made()
    await published(kept, "a", "b")
    await published(kept, "c", ask=True)
    now.seconds += 1
    await published(kept, "d", "e")
    assert [asked for _, asked, _ in client.take()] == ["0.1", None, "0.3", "0.4", None]


async def test_the_answer_of_one_server_speaks_for_all_before_and_none_behind(made):
    client, kept, _ = await made()
    await published(kept, "a", "b")
    _, last = await published(kept, "c", "d", ask=True)
    client.answer("0.3")
    assert await is_stored(kept, 3)
    assert not await is_stored(kept, last)
    client.take()
    await kept.again()
    assert client.take() == [("d", "1.4", False)]


async def test_what_a_connection_that_is_gone_has_answered_says_nothing(made):
    client, kept, _ = await made()
    await published(kept, "a", "b", ask=True)
    kept.lost()
    client.answer("0.2")
    client.take()
    await kept.again()
    assert client.take() == [("a", None, False), ("b", "1.2", False)]
    client.answer("0.2")
    assert not await is_stored(kept, 2)
    client.answer("1.2")
    assert await is_stored(kept, 2)
    await kept.again()
    assert client.take() == []


async def test_what_is_published_while_nats_is_away_goes_when_it_is_back(made):
    client, kept, now = await made()
    client.is_connected = False
    await published(kept, "a", "b")
    settling = asyncio.ensure_future(kept.settled())
    await until(lambda: kept._awaited)
    now.seconds += 60
    await kept._look()
    assert client.take() == []
    client.is_connected = True
    await kept.again()
    assert client.take() == [("a", None, False), ("b", "1.2", False)]
    client.answer("1.2")
    async with asyncio.timeout(5):
        await settling


async def test_in_a_cluster_each_message_is_asked_for_and_speaks_for_itself(made):
    client, kept, now = await made(servers=2)
    for now.seconds in range(4):
        await published(kept, "abcd"[now.seconds])
    assert [asked for _, asked, _ in client.take()] == ["0.1", "0.2", "0.3", "0.4"]
    now.seconds = 5
    await kept._repeat([2])
    client.take()
    client.answer("0.4")  # which was sent before `b` was sent again
    await nothing_more()
    assert client.take() == [("a", "0.1", True), ("c", "0.3", True)]
    client.answer("0.1")
    assert await is_stored(kept, 1)
    client.answer("0.3")
    assert not await is_stored(kept, 4)  # since `b` is not
    client.answer("0.2")
    assert await is_stored(kept, 4)
    client.answer("0.2")  # the copy
    for now.seconds in (6, 7):
        await published(kept, "ef"[now.seconds - 6])
    client.take()
    client.answer("0.6")
    await nothing_more()
    assert client.take() == [("e", "0.5", True)]


@pytest.mark.parametrize(
    ("servers", "answer"), [(1, FULL), (2, FULL), (1, NOBODY)], ids=["full", "full, of a cluster", "gone"]
)
async def test_who_waits_for_what_a_stream_refuses_goes_on_and_it_is_sent_again(
    made, monkeypatch, servers, answer
):
    monkeypatch.setattr(unconfirmed, "_AGAIN_SECONDS", 0.01)
    client, kept, now = await made(servers)
    await published(kept, "a", "b", ask=True)
    if servers > 1:
        client.answer("0.1")
    client.take()
    for times in (1, 2):
        waiting = asyncio.ensure_future(kept.stored(2))
        await until(lambda: kept._awaited)
        client.answer("0.2", answer)
        client.answer("0.2", answer)  # one attempt at a time
        async with asyncio.timeout(5):
            await waiting
        assert client.take() == []
        await kept._trying
        assert [body for body, _, _ in client.take()] == (["a", "b"] if servers == 1 else ["b"])
        assert now.restored == times


@pytest.mark.parametrize(
    ("servers", "answer"),
    [(1, ON_ITS_WAY), (2, ON_ITS_WAY), (2, NOBODY)],
    ids=["open", "open, of a cluster", "no leader"],
)
async def test_a_stream_that_may_store_it_yet_has_said_nothing(made, servers, answer):
    client, kept, _ = await made(servers)
    await published(kept, "a", ask=True)
    waiting = asyncio.ensure_future(kept.stored(1))
    await until(lambda: kept._awaited)
    client.answer("0.1", answer)
    await nothing_more()
    assert not waiting.done()
    assert kept._trying is None or answer == NOBODY
    client.answer("0.1")
    async with asyncio.timeout(5):
        await waiting


@pytest.mark.parametrize("servers", [1, 2])
async def test_what_is_not_confirmed_in_time_is_sent_again_ever_less_often(made, servers):
    client, kept, now = await made(servers)
    await published(kept, "a", ask=True)
    client.take()
    times = []
    for now.seconds in range(100, 170):
        await kept._look()
        times += [now.seconds - 100 for _ in client.take()]
    assert times == [3, 8, 17, 34, 65]
    client.answer("0.1")
    await kept._look()
    assert (client.take(), now.restored) == ([], 5)
    await published(kept, "b", ask=True)
    client.take()
    now.seconds += 3
    await kept._look()
    assert [body for body, _, _ in client.take()] == ["b"]


async def test_what_nobody_has_asked_for_is_not_missed(made):
    client, kept, now = await made()
    await published(kept, "a", ask=True)
    await published(kept, "b")
    client.answer("0.1")
    client.take()
    now.seconds += 60
    await kept._look()
    assert client.take() == []
    await kept.again()
    client.take()
    now.seconds += 60
    await kept._look()
    assert client.take() == [("b", "1.2", False)]


async def test_who_ends_has_the_last_one_asked_for_and_waits_for_all(made):
    client, kept, _ = await made()
    await published(kept, "a", "b")
    client.take()
    settling = asyncio.ensure_future(kept.settled())
    await until(lambda: kept._awaited)
    assert client.take() == [("b", "0.2", False)]
    client.answer("0.1")
    await nothing_more()
    assert not settling.done()
    await published(kept, "c", ask=True)
    client.take()
    client.answer("0.2")
    await nothing_more()
    assert client.take() == []  # for which somebody has asked
    client.answer("0.3")
    async with asyncio.timeout(5):
        await settling


@pytest.mark.parametrize("limit", ["_KEPT", "_KEPT_BYTES"])
async def test_who_wants_to_publish_more_than_can_be_kept_waits_for_an_answer(made, monkeypatch, limit):
    monkeypatch.setattr(unconfirmed, limit, 2)
    client, kept, _ = await made()
    await published(kept, "a")
    client.answer("0.1")
    await published(kept, "b")
    await kept.make_room()
    await published(kept, "c")
    client.take()
    more = asyncio.ensure_future(kept.make_room())
    await until(lambda: kept._awaited)
    assert client.take() == [("c", "0.3", False)]  # for which nobody had asked
    client.answer("0.3")
    async with asyncio.timeout(5):
        await more


async def test_who_publishes_has_published_although_no_more_can_be_kept(made, monkeypatch):
    """Who is cancelled while it waits would have lost what it has numbered."""
    monkeypatch.setattr(unconfirmed, "_KEPT", 1)
    client, kept, _ = await made()
    await published(kept, "a")
    async with asyncio.timeout(5):
        await published(kept, "b")
    assert [body for body, _, _ in client.take()] == ["a", "b"]


async def test_where_a_stream_refuses_and_no_more_can_be_kept_the_oldest_is_let_go(made, monkeypatch):
    monkeypatch.setattr(unconfirmed, "_KEPT", 2)
    client, kept, _ = await made()
    await published(kept, "a", "b")
    client.answer("0.1", FULL)
    async with asyncio.timeout(5):
        await kept.make_room()
    await published(kept, "c")
    client.take()
    await kept.again()
    assert [body for body, _, _ in client.take()] == ["b", "c"]
    client.answer("1.2")  # it takes what it gets again
    await published(kept, "d")
    more = asyncio.ensure_future(kept.make_room())
    await until(lambda: kept._awaited)
    assert not more.done()
    client.answer("1.4")
    async with asyncio.timeout(5):
        await more
