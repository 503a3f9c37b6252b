"""What a slow processor keeps from running, and what ends before its time."""

import asyncio
import socket
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
import pytest_asyncio
from nats.errors import OutboundBufferLimitError
from redis.exceptions import ConnectionError as RedisConnectionError

from procession.awaiting import awaited
from procession.errors import ProcessorError
from procession_schemas import subjects
from procession_schemas.work import WorkCommand
from procession_services.bus import Bus
from procession_services.output_processors import feeding, sessions
from procession_services.output_processors.sessions import SessionServer
from procession_services.processor_host.outbox import Outbox as RealOutbox
from procession_services.processor_host.stream_session import WINDOW_BYTES
from procession_services.runtime import redis_client
from procession_services.runtime.tasks import ended
from tests.support.waiting import nothing_more, until

COMMAND = WorkCommand(
    run="r", tenant="t", agent="a", seq=1, service="s", version=0, out_seq=0, message_id="m", ops=[]
)


@pytest_asyncio.fixture
async def bus(servers: Any) -> Any:
    bus = await Bus.connect(servers.nats_url, "test")
    yield bus
    await bus.close()


def server_on(bus: Bus) -> SessionServer:
    settings = SimpleNamespace(replica="here", drain_timeout=1)
    host: Any = SimpleNamespace(
        bus=bus, store=None, service="output_processors", settings=settings, subscribe=bus.subscribe
    )
    nothing: Any = SimpleNamespace(forget=lambda *_: None, bus=bus)
    return SessionServer(host, nothing, nothing)


class Chain:
    wakes_at = None

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Has nothing to wait for."""


def session_of(attempt: int = 1) -> Any:
    return SimpleNamespace(
        id="s", attempt=attempt, answer="answers", reply="", task=None, frames=asyncio.Queue(), first=None,
        processed=1, received=1, waits=True, acked=0, unacked_bytes=0, missing=-1, taken=0, replying=None, job=None,
        command=COMMAND, chain=Chain(), ctx=SimpleNamespace(tenant="t", run_id="r"),
        outbox=SimpleNamespace(waiting=0, catching_up=False, differs=False, astray=False),
    )  # fmt: skip


async def test_heartbeats_go_on_after_one_that_could_not_be_sent(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_HEARTBEAT_SECONDS", 0.01)
    publish, failures, heard = bus.publish, [OutboundBufferLimitError()], list[str]()

    async def full_once(subject: str, body: bytes, *, reply: str = "") -> None:
        if failures:
            raise failures.pop()
        await publish(subject, body, reply=reply)

    monkeypatch.setattr(bus, "publish", full_once)
    await bus.subscribe("answers", lambda subject, *_: heard.append(subject))
    server = server_on(bus)
    await server.start()
    server._sessions["s"] = session_of()
    await until(lambda: heard)
    server._sessions.clear()
    await server.drain()
    assert not failures


@pytest.mark.parametrize("attempts", [(1, 2), (2, 1)])
async def test_of_two_leases_of_a_stream_the_later_one_counts_whichever_has_begun_first(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, attempts: tuple[int, int]
) -> None:
    server, gate, begun = server_on(bus), asyncio.Event(), list[int]()

    async def open_(lease: Any, *_: Any) -> Any:
        begun.append(lease["attempt"])
        await gate.wait()
        return session_of(lease["attempt"])

    monkeypatch.setattr(server._opener, "open", open_)
    lease = {"command": COMMAND.to_dict(), "acks": "answers", "session": "s"}
    for attempt in attempts:
        server._spawn(server._take({**lease, "attempt": attempt}, "reply"))
    await until(lambda: begun == [*attempts])
    gate.set()
    await until(lambda: list(bus.on_bounce) == [f"{subjects.inbox('here')}.s.2"])
    await nothing_more()
    assert list(bus.on_bounce) == [f"{subjects.inbox('here')}.s.2"]
    server._on_gone(f"{subjects.inbox('here')}.s.1", b"", "")  # the sender has left the other one
    await nothing_more()
    assert bus.on_bounce
    await server.drain()
    await until(lambda: not bus.on_bounce)


async def test_a_heartbeat_that_is_due_goes_out_before_the_next_chunk_of_a_blocking_processor() -> None:
    """The timer that is due wakes the task that beats, which wakes the one that writes."""
    happened: list[Any] = []
    beat, write = asyncio.Event(), asyncio.Event()

    async def beating() -> None:
        await beat.wait()
        write.set()

    async def writing() -> None:
        await write.wait()
        happened.append("written")

    async def feed(chunk: Any) -> None:
        happened.append(chunk)
        time.sleep(2 * feeding._SLOW_SECONDS)  # noqa: ASYNC251 - what blocks is the subject

    tasks = [asyncio.create_task(beating()), asyncio.create_task(writing())]
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(feeding._SLOW_SECONDS, beat.set)
    results, chain = SimpleNamespace(sent=lambda _chunk: None), SimpleNamespace(feed=feed)
    session: Any = SimpleNamespace(outbox=Outbox(), results=results, chain=chain, processed=0)
    await feeding.feed(session, [{"type": "start"}, {"type": "finish"}])
    assert happened == [{"type": "start"}, "written", {"type": "finish"}]
    await asyncio.gather(*tasks)


class Outbox:
    waiting = catching_up = differs = False

    @asynccontextmanager
    async def flushing(self) -> Any:
        yield

    async def flush(self) -> None:
        """Has nothing to send."""


async def test_chunks_are_taken_once_and_in_order_and_those_that_are_missing_are_asked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "_ACK_CHUNKS", 2)
    fed, told = list[str](), list[dict[str, Any]]()

    async def publish(_subject: str, body: bytes, **_: Any) -> None:
        told.append(orjson.loads(body))

    async def feed(chunk: str) -> None:
        fed.append(chunk)

    async def end() -> None:
        fed.append("end")

    async def flush() -> None:
        session.outbox.waiting = 0
        told.append({"flushed": len(fed)})

    @asynccontextmanager
    async def flushing() -> Any:
        yield

    bus: Any = SimpleNamespace(publish=publish, subscribe=None)
    session = session_of()
    session.processed = session.received = 0
    session.chain = SimpleNamespace(wakes_at=None, feed=feed, end=end)
    session.outbox = SimpleNamespace(
        waiting=1, catching_up=False, differs=False, astray=False, flush=flush, flushing=flushing
    )
    session.results, session.flush_at = SimpleNamespace(sent=lambda _: None), float("inf")
    for start, chunks in ((0, "a"), (2, "c"), (2, "c"), (0, "abc"), (1, "b")):
        session.frames.put_nowait({"n": start, "c": list(chunks)})
    consuming = asyncio.create_task(server_on(bus)._consume(session))
    answers = [{"flushed": 1}, {"l": 1, "again": 1}, {"flushed": 1}, {"l": 1, "a": 3}]
    await until(lambda: told == [*answers, {"flushed": 3}])  # no other chunk is here to go with it
    session.frames.put_nowait({"n": 3, "c": ["d"], "e": True, "g": True})
    await consuming
    assert fed == [*"abcd", "end"]
    assert session.received > session.processed  # so that heartbeats tell that it is at work


@pytest.mark.parametrize("leased", [True, False])
async def test_large_chunks_are_acknowledged_by_their_bytes(
    monkeypatch: pytest.MonkeyPatch, leased: bool
) -> None:
    """The sender's window is full of them long before there are many."""
    acknowledged, fed = list[dict[str, Any]](), list[str]()

    async def publish(_subject: str, body: bytes, **_: Any) -> None:
        answer = orjson.loads(body)
        acknowledged.extend([answer] if "a" in answer else [])

    async def feed(chunk: str) -> None:
        fed.append(chunk[-1:])

    async def open_(*_: Any) -> Any:
        return session

    session: Any = session_of()
    session.processed = session.received = 0
    session.chain = SimpleNamespace(wakes_at=None, feed=feed)
    session.outbox = Outbox()
    session.results, session.flush_at = SimpleNamespace(sent=lambda _: None), float("inf")
    server = server_on(cast("Any", SimpleNamespace(publish=publish, subscribe=None, on_bounce={})))
    monkeypatch.setattr(server._opener, "open", open_)
    monkeypatch.setattr(server, "_serve", server._consume)
    chunks = ["x" * (WINDOW_BYTES // 8) + str(number) for number in range(5)]
    lease = {"command": COMMAND.to_dict(), "acks": "answers", "session": "s", "attempt": 1}
    first = {"chunks": chunks[:1]} if leased else {}
    server._on_lease("", orjson.dumps(lease | first), "reply")
    await until(lambda: server._sessions)
    for number in range(len(chunks))[leased:]:
        frame = {"s": "s", "l": 1, "n": number, "c": [chunks[number]]}
        server._on_frame("", orjson.dumps(frame), "")
    await until(lambda: len(fed) == len(chunks))
    await nothing_more()
    assert acknowledged == [{"l": 1, "a": 2}, {"l": 1, "a": 4}]
    await ended(session.task)


async def test_what_is_written_while_the_last_batch_goes_out_waits_for_nothing() -> None:
    sent, room = list[list[Any]](), asyncio.Event()

    async def publish_kept(_subject: str, body: bytes, **_: Any) -> int:
        sent.append([chunk["data"] for chunk in orjson.loads(body)["chunks"]])
        await room.wait()
        return 0

    async def room_to_keep() -> None: ...

    async def feed(chunk: int) -> None:
        outbox.put({"type": "data-x", "data": chunk})

    bus: Any = SimpleNamespace(
        subscribe=None,
        room_to_keep=room_to_keep,
        publish_kept=publish_kept,
        max_payload=1_000_000,
        clustered=False,
    )
    outbox, session = RealOutbox(bus, "t", "r", 0, live=True), session_of()
    session.processed = session.received = 0
    session.outbox, session.flush_at = outbox, float("inf")
    session.chain = SimpleNamespace(wakes_at=None, feed=feed)
    session.results = SimpleNamespace(sent=lambda _: None)
    session.frames.put_nowait({"n": 0, "c": [1]})
    consuming = asyncio.create_task(server_on(bus)._consume(session))
    await until(lambda: sent == [[1]])
    await feed(2)
    room.set()
    await until(lambda: sent == [[1], [2]])
    await ended(consuming)


@pytest.mark.parametrize(("attempt", "takes"), [(1, True), (2, False)])
async def test_a_frame_of_another_attempt_is_answered_and_dropped(attempt: int, takes: bool) -> None:
    posted = list[tuple[str, Any]]()

    def post(subject: str, body: bytes) -> None:
        posted.append((subject, orjson.loads(body)))

    bus: Any = SimpleNamespace(post=post, subscribe=None)
    server, session = server_on(bus), session_of(1)
    server._sessions["s"] = session
    server._on_frame("", orjson.dumps({"s": "s", "l": attempt, "n": 0, "c": []}), "whom")
    assert session.frames.empty() is not takes
    assert posted == ([] if takes else [("whom", {"l": 2, "unknown": True})])


@pytest.mark.parametrize(
    ("astray", "reply", "told"),
    [
        (False, "", [{"t": True}]),
        (True, "", [{"t": True, "unknown": True}]),
        (True, "lease", [{"t": True, "taken": 0}, {"t": True, "unknown": True}]),
    ],
)
async def test_what_comes_by_chance_is_told_first_and_never_goes_among_what_clients_have(
    astray: bool, reply: str, told: list[dict[str, Any]]
) -> None:
    heard = list[dict[str, Any]]()

    async def publish(_subject: str, body: bytes, **_: Any) -> None:
        heard.append(orjson.loads(body))

    bus: Any = SimpleNamespace(publish=publish, subscribe=None)
    session, server = session_of(), server_on(bus)
    session.timed, session.outbox = False, SimpleNamespace(astray=astray, timed=False)
    session.reply, server._offer = reply, {}
    session.task = asyncio.create_task(asyncio.Event().wait())
    await server._goes_by_chance(session)
    await server._goes_by_chance(session)
    assert heard == [{"l": 1, **each} for each in told]
    assert (session.timed, session.outbox.timed) == (True, True)
    await asyncio.sleep(0)
    assert session.task.done() == astray
    await ended(session.task)


async def test_a_stream_that_a_hook_has_start_over_elsewhere_is_not_cancelled_by_that_hook() -> None:
    async def publish(*_: Any, **__: Any) -> None:
        """To nobody."""

    bus: Any = SimpleNamespace(publish=publish, subscribe=None)
    session, server = session_of(), server_on(bus)
    session.timed, session.outbox = False, SimpleNamespace(astray=True, timed=False)
    session.task = asyncio.create_task(awaited(server._goes_by_chance(session)))
    await asyncio.wait({session.task})
    assert (session.task.cancelled(), session.task.cancelling()) == (True, 1)


async def test_a_redis_that_does_not_answer_is_no_failure_of_the_stream_hook_that_asked_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis_client, "_RETRIES", 0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        redis = redis_client.connect(f"redis://127.0.0.1:{free.getsockname()[1]}")

        async def work() -> None:
            try:
                await redis.get("x")
            except RedisConnectionError as error:
                raise ProcessorError("failed", processor_id="p", hook="processOutputStream") from error

        with pytest.raises(RedisConnectionError):  # for which the stream is given back
            await server_on(cast("Any", SimpleNamespace(subscribe=None)))._tried(session_of(), work())
        await redis.aclose()
