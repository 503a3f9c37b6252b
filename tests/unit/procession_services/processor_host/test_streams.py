"""The sender's side of leases: where nobody has to answer them, and at replicas that a test plays."""

import asyncio
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from procession.args import AbortSignal
from procession.errors import ProcessorError
from procession.testing.environment import DictStore
from procession_schemas import subjects
from procession_schemas.agent import ProcessorRef
from procession_services.bus import Bus, Hold, LostError, NoResponderError, RequestTimeoutError
from procession_services.processor_host import stream_session, streams
from procession_services.processor_host.errors import Cancelled
from procession_services.processor_host.stream_session import MOST_DEATHS, WINDOW, GivenBackError, Session
from procession_services.processor_host.streams import SERVICE, StreamClient
from procession_services.runtime.tasks import ended
from tests.chaos.proxy import Proxy
from tests.support.waiting import nothing_more, until

STORE: Any = SimpleNamespace(life=5)


def _lost():
    hold = Hold()
    hold.lose()
    return hold


async def _lease():
    return {}


@pytest.fixture
async def client(servers):
    bus = await Bus.connect(servers.nats_url, "test")
    yield StreamClient(bus, STORE, "llm_gateway", "here")
    await bus.close()


async def test_who_has_lost_the_command_meanwhile_asks_nobody_more(client, monkeypatch):
    hold, asked = Hold(), []

    async def nobody(subject, _body, _seconds):
        asked.append(subject)
        if len(asked) == 4:
            hold.lose()
        raise NoResponderError(subject)

    monkeypatch.setattr(client._bus, "request", nobody)
    session = Session("s", [], _lease, DictStore(), hold=hold)
    async with asyncio.timeout(10):
        with pytest.raises(LostError):
            await client._lease(session, None)
    assert len(asked) == 4


async def test_a_stream_that_could_not_be_opened_is_forgotten(client, monkeypatch):
    async def sent():
        pass

    async def nobody(subject, _body, _seconds):
        raise NoResponderError(subject)

    monkeypatch.setattr(client._bus, "request", nobody)
    environment = SimpleNamespace(store=lambda _tenant: DictStore())
    job: Any = SimpleNamespace(
        outbox=SimpleNamespace(flush=sent, hold=_lost()),
        abort_signal=AbortSignal(),
        calls=SimpleNamespace(environment=environment),
        command=SimpleNamespace(tenant="t"),
    )
    monkeypatch.setattr("procession_services.processor_host.streams.lease_of", lambda *_, **__: _lease())
    async with asyncio.timeout(10):
        with pytest.raises(LostError):
            await client.open(job, [])
    assert (client._sessions, client._bus.on_bounce) == ({}, {})


@pytest.mark.parametrize("opening", [True, False])
async def test_what_a_replica_ends_before_another_one_is_leased_is_not_done_anew(
    client, monkeypatch, opening
):
    asked = []
    session = Session("s", [], _lease, DictStore(), ended=True)
    client._sessions[session.id] = session

    async def late(subject, _body, _seconds):
        asked.append(subject)
        if len(asked) == 1:
            raise RequestTimeoutError(subject)
        client._on_answer(f"{client._address}.s", b'{"l": 1, "done": {"outSeq": 5}}', "")
        return b'{"replica": "other", "inbox": "there"}'

    monkeypatch.setattr(client._bus, "request", late)
    if opening:
        await client._lease(session, None)
    else:
        session.attempt = 1
        await client._fail_over(session, gone=False)
    assert session.outcome == {"outSeq": 5}
    assert (session.attempt, session.inbox) == (1, "")
    assert asked[-1] == subjects.offer("output_processors")


async def test_what_came_of_a_whole_stream_comes_with_the_reply_to_its_lease(client, monkeypatch):
    asked = []

    async def at_once(_subject, body, _seconds):
        asked.append(orjson.loads(body))
        return b'{"replica": "one", "inbox": "there", "taken": 1, "l": 1, "a": 1, "done": {"outSeq": 5}}'

    monkeypatch.setattr(client._bus, "request", at_once)
    session = Session("s", [], _lease, DictStore(), ended=True, well=True)
    session.add([{"type": "text-delta"}])
    await client._lease(session, None)
    assert (session.outcome, session.acked, session.due) == ({"outSeq": 5}, 1, False)
    assert asked == [{"attempt": 1, "chunks": [{"type": "text-delta"}], "whole": True, "e": True, "g": True}]


@pytest.mark.parametrize("room", [-1, 100])
async def test_a_lease_that_no_broker_takes_is_asked_of_nobody(client, monkeypatch, room):
    """Also one that fits alone, since headers go with it."""
    asked = []

    async def lease():
        return {"long": "x" * (client._bus.max_payload - room)}

    async def request(subject, *_):
        asked.append(subject)

    monkeypatch.setattr(client._bus, "request", request)
    session = Session("s", [], lease, DictStore())
    with pytest.raises(ProcessorError, match="the lease of a stream has") as raised:
        await client._lease(session, None)
    assert (raised.value.code, asked) == ("COMMAND_TOO_LONG", [])


@pytest.mark.parametrize("ended", [True, False])
async def test_only_a_stream_that_goes_on_is_ended_early(client, ended):
    session = Session("s", [], _lease, DictStore(), ended=ended, attempt=1)
    client._sessions[session.id] = session
    client._on_answer(f"{client._address}.s", b'{"l": 1, "done": {"outSeq": 5}}', "")
    assert (session.outcome, session.ended_early.done()) == ({"outSeq": 5}, not ended)


@pytest.mark.parametrize(
    ("listens", "times", "stalls"), [(True, [2, 2, 4, 8, 16], 4), (False, [2, 2, 2, 2, 2], 1)]
)
async def test_a_stream_that_goes_from_one_silent_replica_to_the_next_gives_each_more_time(
    client, monkeypatch, listens, times, stalls
):
    """But one that is gone was not slow: who was asked first among all is not known, and taken for slow."""
    given: list[float] = []

    async def silent(subject, _body, seconds):
        if subject == subjects.offer("output_processors"):
            return b'{"replica": "one"}'
        if subject == subjects.inbox("one"):
            raise RequestTimeoutError(subject) if listens else NoResponderError(subject)
        given.append(seconds)
        if len(given) < 5:
            raise RequestTimeoutError(subject)
        return b'{"replica": "one", "inbox": "there", "l": 5}'

    monkeypatch.setattr(client._bus, "request", silent)
    monkeypatch.setattr(streams, "_AGAIN_SECONDS", 0.0)
    session = Session("s", [], _lease, DictStore(), ended=True, well=True)
    session.add([{"type": "text-delta"}])
    await client._lease(session, None)
    assert given == times
    assert (session.stalls, session.deaths) == (stalls, 4)


async def _leased(client, monkeypatch, chunks):
    """A stream of so many chunks that a replica has; every replica takes it at once."""

    async def taken(_subject, body, _seconds):
        count = len(orjson.loads(body).get("chunks", ()))
        return orjson.dumps({"replica": "one", "inbox": "there", "taken": count})

    monkeypatch.setattr(client._bus, "request", taken)
    monkeypatch.setattr(stream_session, "apart", lambda longest: longest * 0.001)
    session = Session("s", [ProcessorRef(id="upper")], _lease, DictStore())
    session.add([{"type": "text-delta"}] * chunks)
    await client._lease(session, None)
    return session


async def test_what_was_lost_with_the_connection_is_sent_again_though_the_provider_says_nothing(
    client, monkeypatch
):
    session = await _leased(client, monkeypatch, chunks=0)
    client._sessions[session.id] = session
    frames: asyncio.Queue[list[int]] = asyncio.Queue()

    async def publish(_subject, body, **_):
        frame = orjson.loads(body)
        frames.put_nowait([frame["n"], len(frame["c"])])

    monkeypatch.setattr(client._bus, "publish", publish)
    await client.send(session, [{"type": "text-delta"}] * 2)
    assert await frames.get() == [0, 2]
    client._reconnected()
    async with asyncio.timeout(10):
        assert await frames.get() == [0, 2]
        client._on_answer(f"{client._address}.s", b'{"l": 1, "a": 0, "again": 1}', "")
        assert await frames.get() == [1, 1]
    assert frames.empty()


async def _moves(client, session):
    client._lose(session, gone=True)
    await session.moving


async def test_a_stream_that_ends_one_replica_after_the_other_fails_and_leaves_the_others_alone(
    client, monkeypatch
):
    session = await _leased(client, monkeypatch, chunks=9)
    for _ in range(MOST_DEATHS - 1):
        await _moves(client, session)
        session.acknowledge(0)
    with pytest.raises(ProcessorError, match="one of upper may end or block") as raised:
        await _moves(client, session)
    assert raised.value.code == "WORK_FAILED"
    with pytest.raises(ProcessorError, match="may end or block"):  # so the sender is told
        await client.send(session, [])


async def test_a_stream_whose_last_hooks_end_one_replica_after_the_other_fails(client, monkeypatch):
    """They have time to say that they have all of it: what they get no further with is behind that."""
    session = await _leased(client, monkeypatch, chunks=9)
    session.ended = True
    for _ in range(MOST_DEATHS - 1):
        session.acknowledge(9)
        await _moves(client, session)
    session.acknowledge(9)
    with pytest.raises(ProcessorError, match="one of upper may end or block"):
        await _moves(client, session)


async def test_a_whole_stream_that_ends_each_replica_that_takes_it_fails(client, monkeypatch):
    async def ends(subject, _body, _seconds):
        if subject == subjects.offer("output_processors"):
            return b'{"replica": "one"}'
        raise RequestTimeoutError(subject)

    monkeypatch.setattr(client._bus, "request", ends)
    monkeypatch.setattr(streams, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(stream_session, "apart", lambda _longest: 0.0)
    session = Session("s", [ProcessorRef(id="upper")], _lease, DictStore(), ended=True, well=True)
    session.add([{"type": "text-delta"}])
    with pytest.raises(ProcessorError, match="one of upper may end or block"):
        await client._lease(session, None)
    assert session.attempt == MOST_DEATHS


@pytest.mark.parametrize("opening", [True, False])
async def test_a_stream_that_is_given_back_again_and_again_is_no_failure_of_its_processors(
    client, monkeypatch, opening
):
    """Its sender's work is delivered again, as where Redis is away for the sender."""
    session = await _leased(client, monkeypatch, chunks=9)
    client._sessions[session.id] = session
    pauses, away, attempts = [], b'"unknown": true, "away": "ConnectionError: no Redis"', []

    async def sleep(seconds):
        pauses.append(seconds)

    async def refused(subject, body, _seconds):
        if subject != subjects.offer("output_processors"):
            attempts.append(orjson.loads(body))
        return b'{"replica": "one", "inbox": "there", %s}' % away

    monkeypatch.setattr(streams, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    if opening:
        monkeypatch.setattr(client._bus, "request", refused)
        with pytest.raises(GivenBackError, match="no Redis"):
            await client._lease(session, None)
        assert len(attempts) == MOST_DEATHS
        assert max(pauses) <= 1  # what was away is nobody's doing, and soon back
        assert all(attempt["resume"] for attempt in attempts[1:])
        return
    for _ in range(MOST_DEATHS - 1):
        client._on_answer(f"{client._address}.s", b'{"l": %d, %s}' % (session.attempt, away), "")
        await session.moving
    client._on_answer(f"{client._address}.s", b'{"l": %d, %s}' % (session.attempt, away), "")
    with pytest.raises(GivenBackError, match="no Redis"):
        await client.send(session, [])
    assert pauses == [streams._AWAY_SECONDS] * (MOST_DEATHS - 1)


@pytest.mark.parametrize("arriving", [True, False])
async def test_a_stream_whose_replicas_end_while_it_gets_further_goes_on(client, monkeypatch, arriving):
    session = await _leased(client, monkeypatch, chunks=9)
    for number in range(3 * MOST_DEATHS):
        if arriving:
            session.add([{"type": "text-delta"}] * 2)
            session.acknowledge(number + 1)
        else:
            session.acknowledge(9)
        await _moves(client, session)
    assert session.attempt == 3 * MOST_DEATHS + 1


async def test_streams_part_whose_leases_end_the_same_replicas(client, monkeypatch):
    """As they ask again at one time, the one that does no harm would be lost each time with the one that does."""
    pauses: dict[str | None, list[float]] = {"one": [], "other": []}

    async def ends(subject, _body, _seconds):
        if subject == subjects.offer("output_processors"):
            return b'{"replica": "one"}'
        raise RequestTimeoutError(subject)

    async def sleep(seconds):
        task = asyncio.current_task()
        assert task
        pauses[task.get_name()].append(seconds)

    async def lease(name):
        session = Session(name, [ProcessorRef(id="upper")], _lease, DictStore(), ended=True, well=True)
        with pytest.raises(ProcessorError, match="one of upper may end or block"):
            await client._lease(session, None)

    monkeypatch.setattr(client._bus, "request", ends)
    monkeypatch.setattr(streams, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    await asyncio.gather(*(asyncio.create_task(lease(name), name=name) for name in pauses))
    one, other = pauses.values()
    assert [a == b for a, b in zip(one, other, strict=True)] == [True] + [False] * (MOST_DEATHS - 3)


async def test_a_stream_waits_the_longer_for_a_replica_the_more_of_them_have_ended_over_it(monkeypatch):
    monkeypatch.setattr(stream_session, "apart", lambda longest: longest)
    session = Session("s", [], _lease, DictStore())
    session.add([{"type": "text-delta"}] * 3)
    pauses = []
    for session.deaths in range(1, MOST_DEATHS):
        pauses.append(session.pause())
    assert pauses == [0, 0, 0.25, 0.5, 1, 2, 4, 4, 4]
    session.acknowledge(3)
    assert session.pause() == 0


async def test_nothing_is_sent_while_a_stream_moves_that_moved_a_moment_ago(client, monkeypatch):
    """A bounce in the very turn in which the move before is over."""
    first, never, sent = asyncio.Event(), asyncio.Event(), []

    async def before():
        await first.wait()

    async def publish(subject, _body, *, reply=""):
        sent.append(subject)

    async def second(session, **_):
        session.inbox = ""
        await never.wait()

    monkeypatch.setattr(client._bus, "publish", publish)
    monkeypatch.setattr(client, "_fail_over", second)
    session = Session("s", [], _lease, DictStore(), inbox="there")
    session.add([{"type": "text-delta"}])
    session.moving = asyncio.create_task(before())
    pushing = asyncio.create_task(client._push(session, lambda: False))
    await asyncio.sleep(0)
    session.moving.add_done_callback(lambda _: client._lose(session, gone=True))
    first.set()
    await until(lambda: session.inbox == "")
    await asyncio.sleep(0)
    assert sent == []
    await ended(pushing, session.moving)


async def test_who_stops_fetches_nothing_more(client, monkeypatch):
    begun = asyncio.Event()

    async def never(*_):
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(streams, "unpacked", never)
    await client.start()
    session = Session("s", [], _lease, DictStore(), attempt=1)
    client._take(session, {"l": 1, "doneKey": "x"})
    await begun.wait()
    await client.stop()
    assert client._beside == set()


async def test_silence_tells_of_a_replica_while_nats_is_there_and_not_while_it_is_away(servers, monkeypatch):
    monkeypatch.setattr(streams, "STALLED_SECONDS", 0.2)
    monkeypatch.setattr(streams, "_LOOK_SECONDS", 0.02)
    lost: asyncio.Queue[Session] = asyncio.Queue()

    def lose(session, *, gone):
        lost.put_nowait(session)

    async with Proxy(int(servers.nats_url.rpartition(":")[2])) as proxy:
        bus = await Bus.connect(f"nats://127.0.0.1:{proxy.port}", "test")
        client = StreamClient(bus, STORE, "llm_gateway", "here")
        monkeypatch.setattr(client, "_lose", lose)
        await client.start()
        session = Session("s", [], _lease, DictStore(), inbox="there", ended=True)
        proxy.freeze()
        proxy.abort()
        await until(lambda: not bus.client.is_connected)
        client._sessions[session.id] = session
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lost.get(), 0.6)
        proxy.thaw()
        assert await asyncio.wait_for(lost.get(), 10) is session
        await client.stop()
        await bus.close()


ANY, OFFER = subjects.lease(SERVICE), subjects.offer(SERVICE)


class Played:
    """NATS, and the replicas behind it: leases are given to one after the other, whose names are numbers from 1 on."""

    def __init__(self):
        self.client = SimpleNamespace(is_connected=True)
        self.on_bounce, self.on_reconnect, self.disconnects = {}, [], 0
        self.max_payload = 1_000_000
        self.asked, self.frames, self.forgotten = [], [], []
        self.leases = self.taken = 0
        self.nobody = self.nearby = False
        self.failing = []

    def fits(self, body):
        return len(body) <= self.max_payload

    def is_nearby(self, subject):
        return self.nearby

    async def subscribe(self, _subject, heard, **_):
        self.tell = heard

    async def request(self, subject, body, _seconds):
        self.asked.append((subject, orjson.loads(body or b"null")))
        if self.nobody:
            raise NoResponderError(subject)
        if subject == OFFER:
            return orjson.dumps({"replica": str(self.leases + 1)})
        self.leases += 1
        name = str(self.leases)
        failing = self.failing.pop() if self.failing else ""
        if failing == "silent":
            raise RequestTimeoutError(subject)
        if failing == "away":
            return orjson.dumps({"replica": name, "unknown": True, "away": "Redis"})
        if failing == "anew":
            self.says(orjson.loads(body)["attempt"], t=True, unknown=True)
        return orjson.dumps({"replica": name, "inbox": f"inbox.{name}", "taken": self.taken})

    async def publish(self, inbox, body, *, reply):
        self.frames.append((inbox, orjson.loads(body)))
        assert len(body) <= self.max_payload
        self.address = reply

    def post(self, reply, _body):
        self.forgotten.append(reply)

    def says(self, attempt, **what):
        """Has a replica say something to its sender, where that can tell it that it has forgotten the stream."""
        self.tell(self.address, orjson.dumps({"l": attempt, **what}), "whom")

    def took(self):
        """What was sent since this was asked last: to whom, in which attempt, from which number on, which texts."""
        frames, self.frames = self.frames, []
        return [
            (inbox, frame["l"], frame["n"], "".join(c["text"] for c in frame["c"]), frame.get("e", False))
            for inbox, frame in frames
        ]


def texts(*all_of_them):
    return [{"type": "text-delta", "text": text} for text in all_of_them]


@pytest.fixture
async def stream(monkeypatch):
    """A stream that was leased to replica 1: its sender, its session, and what plays the others."""
    monkeypatch.setattr(streams, "_AGAIN_SECONDS", 0)
    bus: Any = Played()
    client = StreamClient(bus, STORE, "llm_gateway", "here")
    await client.start()
    session = Session("s", [], _lease, DictStore())
    client._sessions[session.id] = session
    bus.address = f"{client._address}.s"
    bus.on_bounce[bus.address] = lambda: client._lose(session, gone=True)
    await client._lease(session, None)
    bus.asked.clear()
    yield client, session, bus
    await client.stop()


async def test_frames_say_where_they_begin_and_the_last_one_that_the_stream_has_ended(stream):
    client, session, bus = stream
    await client.send(session, texts("a", "b"))
    await client.send(session, texts("c"))
    finishing = asyncio.ensure_future(client.finish(session, well=True))
    await until(lambda: len(bus.frames) == 3)
    assert bus.frames[-1][1] == {"s": "s", "l": 1, "n": 3, "c": [], "e": True, "g": True}
    assert bus.took() == [
        ("inbox.1", 1, 0, "ab", False),
        ("inbox.1", 1, 2, "c", False),
        ("inbox.1", 1, 3, "", True),
    ]
    bus.says(1, a=3, done={"outSeq": 9})
    assert await finishing == {"outSeq": 9}
    assert not await client.send(session, texts("d"))
    assert bus.took() == []


@pytest.mark.parametrize("first", [texts(*"x" * WINDOW), texts("x" * 1000)], ids=["chunks", "bytes"])
async def test_who_sends_waits_while_as_much_as_may_be_is_unacknowledged(stream, monkeypatch, first):
    monkeypatch.setattr(stream_session, "WINDOW_BYTES", 1000 if len(first) == 1 else 1_000_000)
    client, session, bus = stream
    await client.send(session, first)
    more = asyncio.ensure_future(client.send(session, texts("y")))
    bus.says(1, a=0)
    await nothing_more()
    assert not more.done()
    bus.took()
    bus.says(1, a=1)
    assert await more
    assert bus.took() == [("inbox.1", 1, len(first), "y", False)]


async def test_a_replica_is_silent_from_when_it_has_something_to_do_whatever_else_it_gets(stream):
    client, session, _ = stream
    session.heard -= 60
    await client.send(session, texts("a"))
    await client._watch_replicas()
    assert session.moving is None
    session.heard -= 60
    await client.send(session, texts("b"))
    await client._watch_replicas()
    assert session.moving is not None


async def test_what_is_too_long_for_a_frame_goes_in_parts_and_a_chunk_that_is_fails(stream):
    client, session, bus = stream
    bus.max_payload = 150
    await client.send(session, texts("a" * 30, "b" * 30, "c" * 30), end=True)
    assert [(start, text[:1], end) for _, _, start, text, end in bus.took()] == [
        (0, "a", False),
        (1, "b", False),
        (2, "c", True),
    ]
    bus.max_payload = 60
    with pytest.raises(ProcessorError) as failed:
        await client._frame(session, 1, 2)
    assert failed.value.code == "CHUNK_NOT_SENDABLE"


async def test_later_leases_say_in_which_life_of_redis_the_stream_began(stream, monkeypatch):
    client, _, bus = stream
    monkeypatch.setattr(streams, "lease_of", lambda *_, **__: _lease())
    monkeypatch.setattr(streams, "store_of", lambda _job: DictStore())

    async def flushed():
        pass

    outbox = SimpleNamespace(flush=flushed, hold=Hold())
    session = await client.open(SimpleNamespace(outbox=outbox, abort_signal=AbortSignal()), [])
    session.left()
    await client._lease(session, None)
    assert [lease.get("life") for _, lease in bus.asked] == [None, STORE.life]
    client.close(session)


async def test_where_a_replica_is_gone_another_one_gets_all_of_the_stream_at_once(stream):
    client, session, bus = stream
    await client.send(session, texts("a", "b"))
    bus.says(1, a=1)
    bus.took()
    bus.on_bounce[bus.address]()
    bus.on_bounce[bus.address]()  # of another frame to it
    await until(lambda: bool(bus.frames))
    assert bus.took() == [("inbox.2", 2, 0, "ab", False)]
    ((subject, lease),) = bus.asked
    assert subject == ANY
    assert (lease["attempt"], lease["resume"], lease["after"]) == (2, True, 0)
    assert [chunk["text"] for chunk in lease["chunks"]] == ["a", "b"]
    bus.says(1, a=2, done={"outSeq": 5})  # it was only away
    assert (session.outcome, session.acked, bus.forgotten) == (None, 0, ["whom"])
    await client.send(session, texts("c"))
    assert bus.took() == [("inbox.2", 2, 2, "c", False)]
    assert session.stalls == 0


async def test_a_stream_that_is_given_back_before_the_reply_to_its_lease_is_heard_is_leased_anew_at_once(
    stream,
):
    client, session, bus = stream
    await client.send(session, texts("a"))
    bus.failing.append("anew")
    bus.on_bounce[bus.address]()
    await session.moving
    assert (session.attempt, session.replica) == (3, "3")
    assert [lease["anew"] for subject, lease in bus.asked if subject != OFFER] == [False, True]


async def test_where_a_replica_stands_still_one_that_says_that_it_lives_is_asked(stream):
    client, session, bus = stream
    bus.taken = 1
    await client.send(session, texts("a"))
    client._lose(session, gone=False)
    await session.moving
    assert [subject for subject, _ in bus.asked] == [OFFER, subjects.lease(SERVICE, "2")]
    assert (session.stalls, session.replica) == (1, "2")
    bus.took()
    await client.send(session, texts("b"))
    assert bus.took() == [("inbox.2", 2, 1, "b", False)]


async def test_what_was_lost_behind_what_a_replica_waits_for_is_sent_again(stream):
    client, session, bus = stream
    await client.send(session, texts("a", "b"))
    bus.says(1, a=1, r=1)
    await nothing_more()
    bus.took()
    bus.says(1, a=1, r=1)
    await until(lambda: bool(bus.frames))
    assert bus.took() == [("inbox.1", 1, 1, "b", False)]
    bus.says(1, a=1, r=1)  # that has just been sent
    await nothing_more()
    assert bus.took() == []


async def test_what_was_lost_with_the_connection_is_sent_once_where_somebody_waits_for_the_end(stream):
    client, session, bus = stream
    await client.send(session, texts("a"))
    finishing = asyncio.ensure_future(client.finish(session))
    await until(lambda: len(bus.frames) == 2)
    bus.took()
    client._reconnected()
    await nothing_more()
    assert bus.took() == [("inbox.1", 1, 0, "a", True)]
    bus.says(1, a=1, done={"outSeq": 9})
    await finishing


async def test_where_there_is_no_replica_a_run_can_be_cancelled(stream):
    client, session, bus = stream
    bus.nobody = True
    session.signal.abort()
    async with asyncio.timeout(10):
        with pytest.raises(Cancelled):
            await client._lease(session, None)
    assert [subject for subject, _ in bus.asked] == [ANY, OFFER]


@pytest.mark.parametrize("gone", [False, True])
async def test_who_has_lost_the_command_sends_nothing_and_looks_for_no_other_replica(stream, gone):
    client, session, bus = stream
    session.hold = Hold()
    session.hold.lose()
    if gone:
        client._lose(session, gone=True)
    with pytest.raises(LostError):
        await client.send(session, texts("a"))
    assert (bus.took(), bus.asked) == ([], [])


@pytest.mark.parametrize(
    ("nearby", "replica", "whom"), [(True, None, "here"), (True, "7", "7"), (False, None, None)]
)
async def test_the_replica_of_this_process_is_asked_first_where_none_is_named(stream, nearby, replica, whom):
    client, _, bus = stream
    bus.nearby = nearby
    session = Session("t", [], _lease, DictStore())
    await client._lease(session, replica)
    await client._lease(session, None)
    assert [subject for subject, _ in bus.asked] == [subjects.lease(SERVICE, whom), ANY]


@pytest.mark.parametrize(
    ("failing", "chunks", "ended", "resumed"),
    [
        ("silent", "a", False, True),
        ("silent", "", True, True),
        ("silent", "", False, False),  # it has nothing to say to anybody
        ("away", "", False, True),
    ],
)
async def test_the_next_lease_resumes_what_somebody_may_have_taken(stream, failing, chunks, ended, resumed):
    client, _, bus = stream
    bus.failing = [failing]
    session = Session("t", [], _lease, DictStore(), ended=ended)
    session.add(texts(*chunks))
    await client._lease(session, None)
    assert [subject for subject, _ in bus.asked] == [ANY, OFFER, subjects.lease(SERVICE, "3")]
    assert bus.asked[-1][1].get("resume", False) is resumed
    assert session.stalls == (failing == "silent" and resumed)
    assert (session.attempt, session.inbox) == (2, "inbox.3")
