"""What a worker says to NATS about the messages that it has in hand."""

import asyncio
import json
import time
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio

from procession_schemas import subjects
from procession_services.bus import AGAIN, Bus, Delivery, Hold, LostError, connection, given_out
from procession_services.bus import worker as worker_module
from procession_services.bus.places import Places
from procession_services.bus.streams import ensure_streams
from procession_services.bus.worker import HopelessError, Worker
from procession_services.runtime.clock import new_token
from tests.chaos.proxy import Proxy
from tests.support.raising import RAISED, raising
from tests.support.servers import own_servers
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.integration

PATIENCE = 20


@pytest_asyncio.fixture
async def bus(servers):
    bus = await connected(servers.nats_url)
    yield bus
    await bus.close()


@asynccontextmanager
async def working(
    bus, handler, *, give_up=None, ack_wait=120.0, max_deliver=3, concurrency=8, kind=Worker, **options
):
    """A worker, and what it says about its messages; it would speak of itself every 40 s only."""
    service = f"worker-{new_token(6)}"
    said: asyncio.Queue[bytes] = asyncio.Queue()
    await bus.client.listen(f"$JS.ACK.WORK.{service}.>", lambda message: said.put_nowait(message.data))

    worker = kind(
        bus, stream="WORK", durable=service, filter_subject=f"{subjects.ROOT}.work.{service}.>", handler=handler,
        give_up=give_up, concurrency=concurrency, ack_wait=ack_wait, max_deliver=max_deliver, **options,
    )  # fmt: skip
    await worker.start()

    async def send(run, body=b"{}", **options):
        subject = subjects.work(service, "t", run)
        await bus.publish_stored(subject, body, message_id=f"{service}:{run}", **options)

    yield worker, send, said


async def connected(url):
    bus = await Bus.connect(url, "worker-test")
    await ensure_streams(bus.client.jetstream())
    return bus


async def test_work_that_was_done_is_acknowledged_before_a_worker_is_gone(bus):
    done = asyncio.Event()

    async def handler(_delivery):
        done.set()

    async with working(bus, handler) as (worker, send, said), asyncio.timeout(PATIENCE):
        await send("one")
        await done.wait()
        await worker.stop(grace=PATIENCE)
        await bus.flush()
        assert said.get_nowait() == b"+ACK"
        assert not worker._soon  # the connection may be closed now


async def test_long_messages_are_not_asked_for_faster_than_they_are_read(bus):
    """The server ends a connection for which it has more than 64 MB, with all that is on the way to it."""
    attempts: list[int] = []

    async def handler(delivery):
        if not attempts:
            time.sleep(1)  # noqa: ASYNC251 - nothing is read meanwhile
        attempts.append(delivery.attempt)

    async with working(bus, handler, concurrency=256) as (worker, send, _), asyncio.timeout(PATIENCE):
        await worker.stop(grace=PATIENCE)
        await asyncio.gather(*(send(f"run-{number}", b"x" * 1_000_000) for number in range(100)))
        worker._stopping = False  # as the next replica
        await worker.start()
        await until(lambda: len(attempts) == 100)
        await worker.stop(grace=PATIENCE)
    assert attempts == [1] * 100
    assert bus.disconnects == 0


async def test_what_somebody_else_has_by_another_message_is_looked_at_again_soon(bus):
    attempts: asyncio.Queue[int] = asyncio.Queue()

    async def handler(delivery):
        attempts.put_nowait(delivery.attempt)
        if delivery.attempt == 1:
            raise LostError(0.05)

    async with working(bus, handler) as (worker, send, _), asyncio.timeout(PATIENCE):  # the lease is longer
        await send("one")
        assert [await attempts.get(), await attempts.get()] == [1, 2]
        await worker.stop(grace=PATIENCE)


async def test_work_has_its_place_where_it_is_done(bus):
    """A message of one worker is worked on in the place of another one."""
    begun: asyncio.Queue[str] = asyncio.Queue()
    free, over = asyncio.Event(), asyncio.Event()

    async def visiting(delivery):
        begun.put_nowait(delivery.subject.rpartition(".")[2])
        if delivery.subject.endswith("first"):
            with host.places.visited_from(guest.places):
                await free.wait()
            over.set()

    async with (
        working(bus, visiting, concurrency=1) as (guest, send_guest, _),
        working(bus, AsyncMock(), concurrency=1) as (host, _, _),
        asyncio.timeout(PATIENCE),
    ):
        assert host.has_room()
        await send_guest("first")
        assert await begun.get() == "first"
        assert (guest.has_room(), host.has_room()) == (True, False)
        await send_guest("second")
        assert await begun.get() == "second"
        free.set()
        await over.wait()
        for worker in (guest, host):
            await worker.stop(grace=PATIENCE)
    assert (guest.has_room(), host.has_room()) == (True, True)


async def test_work_of_which_nobody_says_anything_any_more_is_given_up_with_a_reason(bus, caplog):
    reasons: asyncio.Queue[str] = asyncio.Queue()

    async def handler(_delivery):
        raise LostError

    async def give_up(_delivery, reason):
        reasons.put_nowait(reason)

    async with working(bus, handler, give_up=give_up, ack_wait=0.5, max_deliver=1) as (worker, send, _):
        async with asyncio.timeout(PATIENCE):
            await send("one")
            told = await reasons.get()
            await worker.stop(grace=PATIENCE)
    assert "1 delivery of 0.5 s each" in told
    assert "event loop" in told
    assert f"goes to DEAD: {told}" in caplog.text


async def test_work_that_was_only_given_back_is_given_up_with_a_reason_that_says_so(bus):
    reasons: asyncio.Queue[str] = asyncio.Queue()
    begun = asyncio.Event()

    async def handler(_delivery):
        begun.set()
        await asyncio.Event().wait()

    async def give_up(_delivery, reason):
        reasons.put_nowait(reason)

    async with working(bus, handler, give_up=give_up, max_deliver=1) as (worker, send, _):
        async with asyncio.timeout(PATIENCE):
            await send("one")
            await begun.wait()
            await worker.stop(grace=0)
            worker._stopping = False  # as the next replica
            await worker.start()
            assert "gave it back after PROCESSION_DRAIN_TIMEOUT" in await reasons.get()
            await worker.stop(grace=PATIENCE)


async def test_after_a_reconnect_it_says_at_once_what_is_in_work(bus):
    free = asyncio.Event()

    async def handler(_delivery):
        await free.wait()

    async with working(bus, handler) as (worker, send, said), asyncio.timeout(PATIENCE):
        await send("one")
        await send("two")
        while len(worker._tasks) < 2:
            await bus.flush()
        worker.reconnected()
        assert [await said.get(), await said.get()] == [b"+WPI", b"+WPI"]
        free.set()
        assert [await said.get(), await said.get()] == [b"+ACK", b"+ACK"]
        await worker.stop(grace=PATIENCE)


async def test_what_was_done_while_nats_was_away_is_acknowledged_when_it_is_back(tmp_path):
    free = asyncio.Event()

    async def handler(_delivery):
        await free.wait()

    async with own_servers(tmp_path) as servers:
        bus = await connected(servers.endpoints.nats_url)
        async with working(bus, handler) as (worker, send, _):
            bus.on_reconnect.append(worker.reconnected)
            await send("one")
            await until(lambda: worker._tasks)
            servers.kill_nats()
            await until(lambda: not bus.client.is_connected)
            free.set()
            await until(lambda: worker._settled)
            worker._acknowledge()
            await servers.restart_nats()

            async def settled():
                return (await bus.client.jetstream().stream_info("WORK")).state.messages == 0

            await eventually(settled)
            await worker.stop(grace=PATIENCE)
        await bus.close()


async def test_what_failed_while_nats_was_away_is_delivered_again_when_it_is_back(servers, monkeypatch):
    monkeypatch.setattr(connection, "_BUFFER_BYTES", 1)  # nothing can wait in the connection
    free, attempts = asyncio.Event(), []

    async def handler(delivery):
        attempts.append(delivery.attempt)
        await free.wait()
        if delivery.attempt == 1:
            raise ValueError

    async with Proxy(int(servers.nats_url.rpartition(":")[2])) as proxy:
        bus = await connected(f"nats://127.0.0.1:{proxy.port}")
        async with working(bus, handler) as (worker, send, _):
            bus.on_reconnect.append(worker.reconnected)
            await send("one")
            await until(lambda: attempts)
            proxy.freeze()
            proxy.abort()
            await until(lambda: not bus.client.is_connected)
            free.set()
            await until(lambda: not worker._tasks)
            proxy.thaw()
            await until(lambda: attempts == [1, 2])  # long before its time is up
            await worker.stop(grace=PATIENCE)
        await bus.close()


def iter_of(queue):
    """What is in a queue."""
    while not queue.empty():
        yield queue.get_nowait()


class Known:
    """Says whose a message is, in turn, when it is asked."""

    def __init__(self, *told):
        self._told = iter(told)

    async def __call__(self, _delivery):
        told = next(self._told)
        if isinstance(told, Exception):
            raise told
        return told


class InHand:
    """A handler, and what becomes of the message of its first call."""

    def __init__(self):
        self.begun, self.free, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.outcome = ""

    async def __call__(self, delivery):
        if self.begun.is_set():
            raise LostError
        self.begun.set()
        try:
            await self.free.wait()
            await delivery.hold.keep()
            self.outcome = "kept"
        except (asyncio.CancelledError, LostError):
            self.outcome = "lost"
            raise
        finally:
            self.ended.set()


async def stood_still(servers, handler, still_ours, lease=1.0):
    """What becomes of a message when NATS has been silent for two leases."""
    bus = await connected(servers.endpoints.nats_url)
    async with working(bus, handler, ack_wait=lease, still_ours=still_ours) as (worker, send, _):
        async with asyncio.timeout(PATIENCE):
            await send("one")
            await handler.begun.wait()
            servers.freeze_nats()
            await asyncio.wait([asyncio.create_task(handler.ended.wait())], timeout=2 * lease)
            handler.free.set()
            servers.thaw_nats()
            await handler.ended.wait()
        await worker.stop(grace=PATIENCE)
    await bus.close()


@pytest.mark.parametrize(
    ("told", "outcome"),
    [([True] * 5, "kept"), ([False], "lost"), ([TimeoutError("Redis"), *[True] * 5], "kept")],
)
async def test_what_nats_was_silent_about_is_whose_it_is(tmp_path, told, outcome):
    async with own_servers(tmp_path) as servers:
        handler = InHand()
        await stood_still(servers, handler, Known(*told))
        assert handler.outcome == outcome


async def test_a_process_that_stood_still_has_lost_what_it_held(bus):
    handler = InHand()
    async with working(bus, handler, ack_wait=0.5, still_ours=Known(*[True] * 9)) as (worker, send, _):
        async with asyncio.timeout(PATIENCE):
            await send("one")
            await handler.begun.wait()
            time.sleep(1.5)  # noqa: ASYNC251 - nothing else may run
            await handler.ended.wait()
            assert handler.outcome == "lost"
        await worker.stop(grace=PATIENCE)


async def test_a_process_that_stood_still_and_is_not_connected_then_has_lost_what_it_held(bus, monkeypatch):
    answers = bus.answers
    silent = iter([False])

    async def told(seconds):
        return next(silent, True) and await answers(seconds)

    handler = InHand()
    async with working(bus, handler, ack_wait=0.5, still_ours=Known(*[True] * 9)) as (worker, send, _):
        async with asyncio.timeout(PATIENCE):
            await send("one")
            await handler.begun.wait()
            monkeypatch.setattr(bus, "answers", told)
            time.sleep(1.5)  # noqa: ASYNC251 - nothing else may run
            await handler.ended.wait()
            assert handler.outcome == "lost"
        await worker.stop(grace=PATIENCE)


async def test_what_is_to_be_given_up_is_even_if_its_last_delivery_may_have_waited_for_too_long(
    bus, monkeypatch
):
    told = asyncio.Event()

    async def handler(_delivery):
        holds = iter([Hold(0)])
        monkeypatch.setattr(worker._keeper, "hold", lambda: next(holds, Hold()))
        raise LostError

    async def give_up(_delivery, _reason):
        told.set()

    async with working(bus, handler, give_up=give_up, ack_wait=0.5, max_deliver=1) as (worker, send, said):
        async with asyncio.timeout(PATIENCE):
            await send("one")
            await told.wait()
            await worker.stop(grace=PATIENCE)
    assert any(each.startswith(b"-NAK") for each in iter_of(said))


async def test_what_somebody_else_works_on_is_neither_handled_nor_given_up(bus):
    asked, handled = [], []
    told = asyncio.Event()

    async def elsewhere(delivery):
        asked.append(delivery.attempt)
        if delivery.attempt == 2:
            raise LostError
        return delivery.attempt < 5

    async def handler(delivery):
        handled.append(delivery.attempt)
        raise LostError

    async def give_up(_delivery, _reason):
        told.set()

    options = {"ack_wait": 0.2, "max_deliver": 1, "elsewhere": elsewhere}
    async with working(bus, handler, give_up=give_up, **options) as (worker, send, _):
        async with asyncio.timeout(PATIENCE):
            await send("one")
            await told.wait()
            await worker.stop(grace=PATIENCE)
    assert (handled, asked) == ([1], [2, 3, 4, 5])


async def test_what_only_waited_beside_what_ended_its_process_is_not_given_up(bus, monkeypatch):
    monkeypatch.setattr(worker_module, "_APART", (0.0,))
    handled: list[int] = []
    reasons: asyncio.Queue[str] = asyncio.Queue()

    async def handler(delivery):
        handled.append(delivery.attempt)
        raise LostError

    async def give_up(_delivery, reason):
        reasons.put_nowait(reason)

    async def begun(delivery):
        return 1 if delivery.attempt < 5 else 2

    options = {"ack_wait": 0.2, "max_deliver": 2, "begun": begun}
    async with working(bus, handler, give_up=give_up, **options) as (worker, send, _):
        async with asyncio.timeout(PATIENCE):
            await send("one")
            await reasons.get()
            await worker.stop(grace=PATIENCE)
    assert handled == [1, 2, 3, 4]


class Parting:
    """Notes, as Redis does, which messages have waited for a time of their own."""

    def __init__(self):
        self.noted = set()

    async def __call__(self, message, begun, pause):
        known = (message, begun) in self.noted
        self.noted.add((message, begun))
        return 0.0 if known else pause


async def test_what_was_lost_together_twice_begins_each_at_a_time_of_its_own(bus, monkeypatch):
    """Until then nobody has it in hand, whose death would cost it another lease."""
    pauses = iter([0.0, 1.0])
    monkeypatch.setattr(worker_module, "apart", lambda longest: longest * next(pauses))
    monkeypatch.setattr(worker_module, "_APART", (PATIENCE * 10,))
    monkeypatch.setattr(worker_module, "_FIRST_SECONDS", 0.0)
    begun, told = [], asyncio.Event()

    async def handler(delivery):
        begun.append(delivery.attempt)
        if len(begun) <= 4:
            raise LostError
        told.set()

    async def before(_delivery):
        return 2

    options = {"ack_wait": 0.3, "max_deliver": 5, "begun": before, "parted": Parting()}
    async with working(bus, handler, **options) as (worker, send, _):
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(send("one"), send("two"))
            await told.wait()
            await until(lambda: not worker._tasks)
            await worker.stop(grace=0)
    assert begun == [1, 1, 2, 2, 3]


async def test_a_delivery_that_only_waited_is_no_attempt(bus, monkeypatch):
    monkeypatch.setattr(worker_module, "_APART", (0.02,))
    monkeypatch.setattr(worker_module, "_BACKOFF", (0.0,))
    monkeypatch.setattr(worker_module, "_FIRST_SECONDS", 0.0)
    begun: list[int] = []
    reasons: asyncio.Queue[str] = asyncio.Queue()

    async def handler(delivery):
        begun.append(delivery.attempt)
        raise ValueError("not today")

    async def before(_delivery):
        return len(begun)

    async def give_up(_delivery, reason):
        reasons.put_nowait(reason)

    options = {"max_deliver": 4, "begun": before, "parted": Parting()}
    async with working(bus, handler, give_up=give_up, **options) as (worker, send, _):
        async with asyncio.timeout(PATIENCE):
            await send("one")
            assert "not today" in await reasons.get()
            await worker.stop(grace=PATIENCE)
    assert begun == [1, 2, 4, 6]


async def test_moments_that_have_come_while_nobody_was_there_are_no_longer_apart(bus, monkeypatch):
    monkeypatch.setattr(worker_module, "_APART", (0.0,))
    monkeypatch.setattr(worker_module, "_BACKOFF", (0.0,))
    monkeypatch.setattr(worker_module, "_FIRST_SECONDS", PATIENCE * 10)
    begun: list[int] = []

    async def handler(delivery):
        begun.append(delivery.attempt)
        raise ValueError("not today")

    async def before(_delivery):
        return len(begun)

    options = {"max_deliver": 9, "begun": before, "parted": Parting()}
    async with working(bus, handler, **options) as (worker, send, said):
        async with asyncio.timeout(PATIENCE):
            await send("one")
            for _ in range(6):
                assert (await said.get()).startswith(b"-NAK")
            worker._started -= PATIENCE * 10
            await until(lambda: len(begun) > 2)
            await worker.stop(grace=PATIENCE)
    assert begun[:2] == [1, 2]
    assert begun[2] > 6


class Holding(Worker):
    """Has what comes in its hands, and begins nothing."""

    def _on_message(self, message):
        if message.reply:
            self.__dict__.setdefault("has", []).append(Delivery.of(message, Hold(), 0.0).sequence)

    def die(self):
        self._pulling.cancel()
        self._keeper.stop()


async def test_what_somebody_had_who_is_gone_is_delivered_to_whoever_is_there(bus):
    """Begun or not; what is kept, or in our own hands, is not."""
    heard: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    end = asyncio.Event()

    async def handler(delivery):
        heard.put_nowait((delivery.subject.rpartition(".")[2], delivery.attempt))
        await end.wait()

    async with working(bus, handler, concurrency=1) as (worker, send, _), asyncio.timeout(PATIENCE):
        await send("ours")
        assert await heard.get() == ("ours", 1)
        gone = Holding(
            bus, stream="WORK", durable=worker._durable, filter_subject=worker._filter, handler=handler,
            give_up=AsyncMock(), concurrency=3, ack_wait=120.0, max_deliver=3,
        )  # fmt: skip
        await gone.start()
        for name in ("begun", "waits", "kept"):
            await send(name)
        await until(lambda: len(vars(gone).get("has", [])) == 3)
        gone.die()
        await bus.unsubscribe(gone._subscription)
        worker.places = Places(8, worker._wake.set)
        begun, _, kept = vars(gone)["has"]
        await worker.give_back({begun}, {kept})
        worker._wake.set()
        assert [await heard.get() for _ in range(2)] == [("begun", 2), ("waits", 2)]
        await worker.give_back()
        assert await heard.get() == ("kept", 2)
        end.set()
        await worker.stop(grace=PATIENCE)
    assert heard.empty()


async def test_what_was_lost_is_delivered_however_long_ago_it_was_given_out(bus, monkeypatch):
    monkeypatch.setattr(given_out, "_NEWEST", 0)
    heard: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    async def handler(delivery):
        heard.put_nowait((delivery.sequence, delivery.attempt))
        raise LostError

    async with working(bus, handler) as (worker, send, _), asyncio.timeout(PATIENCE):
        await send("long-ago")
        sequence, _attempt = await heard.get()
        await worker.give_back()
        await worker.give_back({sequence})
        assert await heard.get() == (sequence, 2)
        await worker.stop(grace=PATIENCE)


async def test_what_nobody_can_tell_about_is_handled(bus):
    handled: asyncio.Queue[int] = asyncio.Queue()

    async def handler(delivery):
        handled.put_nowait(delivery.attempt)
        if delivery.attempt == 1:
            raise ValueError

    async with working(bus, handler, elsewhere=Known(ValueError("no command"))) as (worker, send, _):
        async with asyncio.timeout(PATIENCE):
            await send("one")
            assert [await handled.get(), await handled.get()] == [1, 2]
            await worker.stop(grace=PATIENCE)


async def test_what_may_have_waited_here_for_too_long_is_to_come_again_soon(bus):
    handled = asyncio.Event()

    async def handler(_delivery):
        handled.set()

    async with working(bus, handler) as (worker, send, said), asyncio.timeout(PATIENCE):
        worker._keeper._alive -= 200
        await send("one")
        assert (await said.get()).startswith(b"-NAK")
        assert not handled.is_set()
        worker.reconnected()
        await handled.wait()
        await worker.stop(grace=PATIENCE)


async def test_a_worker_ends_while_nats_is_away(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "_BUFFER_BYTES", 1)
    begun = asyncio.Event()

    async def handler(_delivery):
        begun.set()
        await asyncio.Event().wait()

    async with own_servers(tmp_path) as servers:
        bus = await connected(servers.endpoints.nats_url)
        async with working(bus, handler) as (worker, send, _), asyncio.timeout(PATIENCE):
            await send("one")
            await begun.wait()
            servers.kill_nats()
            await until(lambda: not bus.client.is_connected)
            await worker.stop(grace=0.1)
            await bus.close()


@pytest.mark.parametrize("raised", RAISED)
async def test_work_whose_handler_raises_anything_comes_again_soon(bus, raised):
    async with working(bus, raising(raised)) as (worker, send, said), asyncio.timeout(PATIENCE):
        await send("one")
        assert (await said.get()).startswith(b"-NAK")
        await worker.stop(grace=PATIENCE)


async def test_work_whose_handler_cancels_itself_comes_again_soon(bus):
    attempts: asyncio.Queue[int] = asyncio.Queue()

    async def handler(delivery):
        attempts.put_nowait(delivery.attempt)
        if delivery.attempt == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.Event().wait()

    async with working(bus, handler) as (worker, send, _), asyncio.timeout(PATIENCE):  # the lease is longer
        await send("one")
        assert [await attempts.get(), await attempts.get()] == [1, 2]
        await worker.stop(grace=PATIENCE)


async def test_who_waits_for_work_that_was_given_up_is_told_in_the_end(bus, monkeypatch):
    """It was the last delivery, and to tell it may fail: Redis is full."""
    monkeypatch.setattr(worker_module, "_BACKOFF", (0.01,))
    told = []

    async def handler(_delivery):
        raise ValueError("no")

    async def give_up(_delivery, reason):
        told.append(reason)
        if len(told) < 3:
            raise RuntimeError("nobody can be told")

    async with working(bus, handler, give_up=give_up, max_deliver=1) as (worker, send, said):
        async with asyncio.timeout(PATIENCE):
            await send("one")
            assert await said.get() == b"+ACK"
        await worker.stop(grace=PATIENCE)
    assert len(told) == 3


class Untold(Worker):
    """A worker whose server says nothing of requests that it drops."""

    def _on_message(self, message):
        if not (message.headers or {}).get("Status"):
            super()._on_message(message)


async def test_a_worker_finds_out_by_itself_that_its_consumer_is_gone(bus, monkeypatch):
    """Where a stream is deleted, the notice to who waits may be lost with it."""
    monkeypatch.setattr(worker_module, "_PULL_SECONDS", 0.1)
    monkeypatch.setattr(worker_module, "_LATE_SECONDS", 0.1)
    handled = asyncio.Event()

    async def handler(_delivery):
        handled.set()

    async with working(bus, handler, kind=Untold) as (worker, send, _), asyncio.timeout(PATIENCE):
        await bus.js.delete_consumer("WORK", worker._durable)
        await send("one")
        await handled.wait()
        await worker.stop(grace=PATIENCE)


def patient(monkeypatch):
    """Has a worker ask again when there is a reason to, and not because its time is up."""
    monkeypatch.setattr(worker_module, "_PULL_SECONDS", 10 * PATIENCE)


async def test_a_worker_has_as_many_messages_in_hand_as_it_may_and_gets_all(bus, monkeypatch):
    """And looks no more than once whether its consumer is there: requests that have had all say so."""
    patient(monkeypatch)
    looks = AsyncMock(wraps=bus.add_consumer)
    monkeypatch.setattr(bus, "add_consumer", looks)
    monkeypatch.setattr(worker_module, "_HELD_BYTES", 16)  # eight of them
    handled, most, free = [], 0, asyncio.Event()

    async def handler(delivery):
        nonlocal most
        handled.append(delivery.sequence)
        most = max(most, len(worker._tasks))
        if len(handled) > 4:
            await free.wait()

    async with working(bus, handler) as (worker, send, _), asyncio.timeout(PATIENCE):
        for run in range(4):
            await send(str(run))
        await until(lambda: len(handled) == 4 and not worker._tasks)
        for run in range(4, 40):
            await send(str(run))
        await until(lambda: len(worker._tasks) == 8)
        await bus.flush()
        free.set()
        await until(lambda: len(handled) == 40)
        await bus.flush()
        assert not worker._doubtful
        await worker.stop(grace=PATIENCE)
    assert most == 8
    assert len(set(handled)) == 40
    assert looks.await_count == 1


async def test_a_worker_asks_for_nothing_while_it_has_too_much_in_hand(bus, monkeypatch):
    monkeypatch.setattr(worker_module, "_HELD_BYTES", 1)
    free = asyncio.Event()

    async def handler(_delivery):
        await free.wait()

    async with working(bus, handler) as (worker, send, _), asyncio.timeout(PATIENCE):
        assert worker._room() == 8
        await send("one")
        await until(lambda: worker._tasks)
        assert worker._room() == 0
        free.set()
        await until(lambda: not worker._tasks)
        assert worker._room() == 8
        await worker.stop(grace=PATIENCE)


async def test_each_message_is_settled_once(bus):
    done = asyncio.Event()

    async def handler(_delivery):
        done.set()

    async with working(bus, handler) as (worker, send, said), asyncio.timeout(PATIENCE):
        for run in ("one", "two"):
            await send(run)
            await until(done.is_set)
            done.clear()
            assert await said.get() == b"+ACK"
        await worker.stop(grace=PATIENCE)
        await bus.flush()
        assert said.empty()


async def test_what_comes_to_a_worker_that_stops_is_given_back_at_once(bus):
    async def handler(_delivery):
        raise AssertionError

    async with working(bus, handler) as (worker, send, said), asyncio.timeout(PATIENCE):
        worker._stopping = True
        await send("one")
        assert await said.get() == b"-NAK"
        await worker.stop(grace=PATIENCE)


async def test_what_nobody_can_handle_is_given_up_at_once(bus):
    attempts = []
    reasons: asyncio.Queue[str] = asyncio.Queue()

    async def handler(delivery):
        attempts.append(delivery.attempt)
        raise HopelessError("no such thing")

    async def give_up(_delivery, reason):
        reasons.put_nowait(reason)

    async with working(bus, handler, give_up=give_up) as (worker, send, said), asyncio.timeout(PATIENCE):
        await send("one")
        assert await reasons.get() == "no such thing"
        assert await said.get() == b"+ACK"
        await worker.stop(grace=PATIENCE)
    assert attempts == [1]


async def test_what_fails_more_often_than_pauses_are_named_comes_again_all_the_same(bus, monkeypatch):
    monkeypatch.setattr(worker_module, "_BACKOFF", (0.01,))
    attempts, told = [], asyncio.Event()

    async def handler(delivery):
        attempts.append(delivery.attempt)
        raise ValueError

    async def give_up(_delivery, _reason):
        told.set()

    async with working(bus, handler, give_up=give_up) as (worker, send, _), asyncio.timeout(PATIENCE):
        await send("one")
        await told.wait()
        await worker.stop(grace=PATIENCE)
    assert attempts == [1, 2, 3]


async def test_whoever_has_lost_a_message_and_fails_says_nothing_of_it(bus):
    async def handler(delivery):
        delivery.hold.lose()
        raise ValueError

    async with working(bus, handler, max_deliver=1) as (worker, send, said), asyncio.timeout(PATIENCE):
        await send("one")
        await until(lambda: worker._tasks)
        await until(lambda: not worker._tasks)
        await worker.stop(grace=PATIENCE)
        await bus.flush()
        assert said.empty()


async def test_a_worker_goes_on_after_one_time_that_it_could_not_ask(bus, monkeypatch):
    patient(monkeypatch)
    handled = asyncio.Event()

    async def handler(_delivery):
        handled.set()

    async with working(bus, handler) as (worker, send, _), asyncio.timeout(PATIENCE):
        pull, failures = worker._pull, iter([TimeoutError()])

        async def fails_once():
            for failure in failures:
                raise failure
            await pull()

        monkeypatch.setattr(worker, "_pull", fails_once)
        await bus.js.delete_consumer("WORK", worker._durable)  # which ends its requests
        await send("one")
        await handled.wait()
        await worker.stop(grace=PATIENCE)


async def test_a_worker_asks_anew_when_it_is_connected_again(servers, monkeypatch):
    patient(monkeypatch)
    handled = asyncio.Event()

    async def handler(_delivery):
        handled.set()

    async with Proxy(int(servers.nats_url.rpartition(":")[2])) as proxy:
        bus = await connected(f"nats://127.0.0.1:{proxy.port}")
        async with working(bus, handler) as (worker, send, _), asyncio.timeout(PATIENCE):
            bus.on_reconnect.append(worker.reconnected)
            await until(lambda: worker._asked)
            proxy.abort()
            await until(lambda: not bus.client.is_connected)
            await until(lambda: bus.client.is_connected)
            await send("one")
            await handled.wait()
            await worker.stop(grace=PATIENCE)
        await bus.close()


@asynccontextmanager
async def hearing(bus):
    """What is told where somebody waits to hear that what he handed over is not done."""
    told: asyncio.Queue[bytes] = asyncio.Queue()
    reply = f"test.{new_token(10)}"
    subscription = await bus.subscribe(reply, lambda _subject, body, _reply: told.put_nowait(body))
    yield reply, told
    await bus.unsubscribe(subscription)


def hand(worker, reply, handler, run="one"):
    return worker.take_over(
        subjects.work("tools", "t", run), b"{}", reply, handler, message_id="o", traceparent=None
    )


async def test_what_is_handed_over_is_done_without_a_word(bus):
    done: asyncio.Queue[bool] = asyncio.Queue()

    async def handler(delivery):
        done.put_nowait(delivery.is_message)

    async with hearing(bus) as (reply, told), working(bus, handler) as (worker, _, said):
        assert hand(worker, reply, handler)
        async with asyncio.timeout(PATIENCE):
            assert not await done.get()
            await worker.stop(grace=PATIENCE)
        await bus.flush()
        assert told.empty()
        assert said.empty()


async def test_whoever_hands_over_is_told_of_a_failure(bus):
    async def handler(_delivery):
        raise RuntimeError("no")

    async with hearing(bus) as (reply, told), working(bus, handler) as (worker, _, _):
        assert hand(worker, reply, handler)
        async with asyncio.timeout(PATIENCE):
            assert (await told.get()).startswith(b"-NAK")
        await worker.stop(grace=PATIENCE)


async def test_a_worker_that_stops_leaves_what_it_was_handed(bus):
    begun = asyncio.Event()

    async def handler(_delivery):
        begun.set()
        await asyncio.Event().wait()

    async with hearing(bus) as (reply, told), working(bus, handler) as (worker, _, _):
        assert hand(worker, reply, handler)
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
            await worker.stop(grace=0.01)
            assert await told.get() == b"-NAK"
        assert not hand(worker, reply, handler)


async def test_nothing_is_taken_for_which_there_is_no_room(bus):
    free = asyncio.Event()

    async def handler(_delivery):
        await free.wait()

    async with hearing(bus) as (reply, told), working(bus, handler, concurrency=2) as (worker, _, _):
        assert [hand(worker, reply, handler) for _ in range(3)] == [True, True, False]
        free.set()
        await worker.stop(grace=PATIENCE)
        await bus.flush()
        assert told.empty()


async def test_what_is_sent_again_is_asked_for_how_often_it_was_begun_the_first_time_already(bus):
    """Whoever had it before had no message for it."""
    asked: asyncio.Queue[str] = asyncio.Queue()

    async def handler(_delivery):
        raise AssertionError

    async def begun(delivery):
        asked.put_nowait(delivery.subject.rpartition(".")[2])
        return 2

    async def parted(_place, _begun, _pause):
        return 60.0

    async with working(bus, handler, begun=begun, parted=parted) as (worker, send, said):
        await send("one", headers={AGAIN: "1"})
        async with asyncio.timeout(PATIENCE):
            assert await asked.get() == "one"
            assert (await said.get()).startswith(b"-NAK")
        await worker.stop(grace=PATIENCE)


async def test_who_has_work_without_a_message_is_asked_again_and_again_and_waited_for_a_lease(
    bus, monkeypatch
):
    monkeypatch.setattr(worker_module, "_LOOK_SECONDS", 0.1)
    asked: asyncio.Queue[float] = asyncio.Queue()

    async def handler(_delivery):
        raise AssertionError

    async def elsewhere(delivery):
        asked.put_nowait(delivery.lease if delivery.again else 0.0)
        return True

    async with working(bus, handler, elsewhere=elsewhere, ack_wait=60.0) as (worker, send, _):
        await send("one", headers={AGAIN: "1"})
        async with asyncio.timeout(PATIENCE):
            told = [await asked.get() for _ in range(3)]
        await worker.stop(grace=PATIENCE)
    assert told == [60.0] * 3


async def test_who_has_it_and_is_silent_is_asked_again_soon(bus):
    asked: asyncio.Queue[int] = asyncio.Queue()

    async def handler(_delivery):
        raise AssertionError

    async def elsewhere(delivery):
        asked.put_nowait(delivery.attempt)
        raise LostError(0.05)

    async with working(bus, handler, elsewhere=elsewhere, ack_wait=60.0) as (worker, send, said):
        await send("one", headers={AGAIN: "1"})
        async with asyncio.timeout(PATIENCE):
            assert [await asked.get() for _ in range(3)] == [1, 2, 3]
            assert json.loads((await said.get()).removeprefix(b"-NAK "))["delay"] == 50_000_000
        await worker.stop(grace=PATIENCE)
