"""Numbers, fences and marks of what a command sends; tests/integration has what readers make of them."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any
from weakref import ref

import orjson
import pytest

from procession.errors import ProcessorError
from procession_services.bus import Hold, LostError
from procession_services.processor_host.outbox import TOGETHER_SECONDS, Outbox, Shown, last_sent
from procession_services.runs.numbering import fence_of
from procession_services.runtime.tasks import ended
from tests.support.waiting import nothing_more

ROOM = 1 << 20


class Played:
    """CHUNKS: `batches` are what a run's subject has."""

    def __init__(self, *batches):
        self.max_payload, self.clustered = 1_000_000, False
        self.batches, self.waited_for, self.asked = list(batches), [], []
        self.stored = self
        self.room, self.written = asyncio.Event(), asyncio.Event()
        self.room.set()
        self.written.set()

    async def latest(self, _stream, _subject):
        return [orjson.dumps(batch) for batch in self.batches]

    async def messages(self, _stream, subject):
        for batch in self.batches:
            yield subject, orjson.dumps(batch)

    async def room_to_keep(self):
        await self.room.wait()

    async def publish_kept(self, _subject, body, *, ask):
        assert len(body) <= self.max_payload
        self.batches.append(orjson.loads(body))
        self.asked.append(ask)
        number = len(self.batches)
        await self.written.wait()
        return number

    async def kept(self, number):
        self.waited_for.append(number)


def outbox(bus, next_seq=5, *, live=True, **options: Any):
    return Outbox(bus, "acme", "r1", next_seq, live=live, **options)


def text(*texts):
    return [{"type": "text-delta", "payload": {"text": each}} for each in texts]


def put(box, *texts):
    for chunk in text(*texts):
        box.put(chunk)


def batch(seq, *texts, **more):
    return {"seq": seq, "chunks": text(*texts), **more}


def told(batches):
    """Of each batch its first number, its text and its marks."""
    for each in batches:
        marks = {key: each[key] for key in ("reset", "end", "timed") if key in each}
        yield each["seq"], "".join(chunk["payload"]["text"] for chunk in each["chunks"]), marks


def test_a_fence_rises_with_commands_deliveries_and_what_streams_make_anew_however_many():
    fences = [
        fence_of(1), fence_of(1, 0, 1), fence_of(1, 0, 10**6), fence_of(1, 1), fence_of(1, 1, 10**6),
        fence_of(1, 2), fence_of(1, 10**6), fence_of(1, 10**6, 10**6), fence_of(2),
    ]  # fmt: skip
    assert fences == sorted(set(fences))


async def test_what_is_ready_goes_as_one_batch_behind_what_went_before():
    bus = Played()
    box = outbox(bus, fence=7)
    put(box, "a", "b")
    await box.flush()
    box.put({"type": "data-mine", "data": 1})
    await box.flush(end=True)
    await box.flush()
    identity = {"runId": "r1", "from": "AGENT"}
    assert bus.batches == [
        {"run": "r1", "seq": 5, "fence": 7, "chunks": [chunk | identity for chunk in text("a", "b")]},
        {"run": "r1", "seq": 7, "fence": 7, "chunks": [{"type": "data-mine", "data": 1}], "end": True},
    ]
    assert (box.next_seq, bus.asked) == (8, [False, True])


async def test_what_nobody_hears_is_numbered_all_the_same():
    bus = Played()
    box = outbox(bus, live=False)
    put(box, "a", "b")
    await box.flush(end=True)
    await box.mark()
    assert (box.next_seq, box.waiting, bus.batches) == (7, 0, [])


async def test_what_clients_have_is_held_back():
    bus = Played()
    box = outbox(bus, shown=Shown(last=6))
    await box.mark()
    put(box, "a")
    assert box.catching_up
    put(box, "b")
    assert not box.catching_up
    put(box, "c")
    await box.flush()
    assert list(told(bus.batches)) == [(7, "", {"reset": 7}), (7, "c", {})]


async def test_a_batch_that_is_too_long_goes_in_parts_that_say_its_marks_once():
    bus = Played()
    bus.max_payload = 300
    box = outbox(bus, reset=2)
    put(box, "a" * 50, "b" * 50, "c" * 50)
    await box.flush(end=True)
    assert [(seq, said[:1], marks) for seq, said, marks in told(bus.batches)] == [
        (5, "a", {"reset": 2}),
        (6, "b", {}),
        (7, "c", {"end": True}),
    ]
    put(box, "d", "e" * 300)
    with pytest.raises(ProcessorError) as failed:
        await box.flush()
    assert (failed.value.code, box.next_seq) == ("CHUNK_NOT_SENDABLE", 9)


async def cancelled(flushing):
    """Cancels a flush as soon as it waits."""
    task = asyncio.ensure_future(flushing)
    await nothing_more()
    await ended(task)
    assert task.cancelled()


async def test_who_is_cancelled_while_nothing_can_be_kept_has_lost_no_number():
    bus = Played()
    box = outbox(bus, reset=3)
    bus.room.clear()
    put(box, "a")
    await cancelled(box.flush())
    put(box, "b")
    await cancelled(box.flush(end=True))
    assert (bus.batches, box.waiting) == ([], 2)
    bus.room.set()
    put(box, "c")
    await box.flush(end=True)
    assert list(told(bus.batches)) == [(5, "abc", {"reset": 3, "end": True})]


async def test_who_is_cancelled_between_two_parts_of_a_batch_has_lost_no_number():
    bus = Played()
    bus.max_payload = 300
    box = outbox(bus, reset=2)
    put(box, "a" * 50, "b" * 50, "c" * 50)
    bus.written.clear()
    await cancelled(box.flush())
    bus.written.set()
    put(box, "d" * 50)
    await box.flush(end=True)
    assert [(seq, said[:1], marks) for seq, said, marks in told(bus.batches)] == [
        (5, "a", {"reset": 2}),
        (6, "b", {}),
        (7, "c", {}),
        (8, "d", {"end": True}),
    ]


async def test_of_two_who_wait_for_room_one_sends_all_that_is_ready():
    bus = Played()
    box = outbox(bus)
    bus.room.clear()
    put(box, "a")
    flushing = [asyncio.ensure_future(box.flush()) for _ in range(2)]
    await nothing_more()
    put(box, "b")
    bus.room.set()
    await asyncio.gather(*flushing)
    assert list(told(bus.batches)) == [(5, "ab", {})]


async def test_what_is_taken_back_is_said_again_with_the_first_chunks_alone():
    bus = Played()
    box = outbox(bus, reset=3)
    await box.flush(mark=True)
    for each in "ab":
        put(box, each)
        await box.flush()
    assert list(told(bus.batches)) == [(5, "", {"reset": 3}), (5, "a", {"reset": 3}), (6, "b", {})]


async def test_who_begins_anew_has_numbers_that_rise_with_its_fence_and_with_the_life_of_redis():
    begun = []
    for attempt, stream, life in ((0, 1, 0), (0, 2, 0), (1, 0, 0), (2, 0, 0), (0, 0, 9)):
        box = outbox(Played())
        await box.renew(attempt, stream, life=life)
        assert box.reset == 5
        begun.append(box.next_seq)
    assert begun == [5 + ROOM, 5 + 2 * ROOM, 5 + 1000 * ROOM, 5 + 2000 * ROOM, 9 * 8 * 1000 * ROOM]
    box = outbox(Played(), reset=2)
    await box.renew(1)
    assert box.reset == 2


async def test_who_follows_begins_behind_what_was_sent_and_says_so():
    bus = Played(batch(4, "z", reset=4, fence=fence_of(2)), batch(5, "a", "b", fence=fence_of(2)))
    box = outbox(bus, fence=fence_of(2, 1))
    await box.follow()
    put(box, "x")
    await box.flush()
    assert list(told(bus.batches[2:])) == [(7, "", {"reset": 7}), (7, "x", {"reset": 7})]
    box = outbox(Played(batch(2, "a")))
    await box.follow()
    assert box.next_seq == 5


async def test_who_follows_again_takes_back_what_the_same_command_took_back_or_a_later_one():
    before = [batch(1, "a", reset=1, fence=fence_of(1, 999, 999)), batch(4, reset=4, fence=fence_of(2, 3))]
    bus = Played(*before, batch(5, "b"), batch(9, reset=6, fence=fence_of(3)))
    box = outbox(bus, fence=fence_of(2, 1))
    await box.follow(again=True)
    assert list(told(bus.batches[4:])) == [(9, "", {"reset": 4})]
    bus = Played(batch(5, "b"))
    await outbox(bus).follow(again=True)
    assert list(told(bus.batches[1:])) == [(6, "", {"reset": 6})]


async def test_who_leaves_has_a_greater_fence_than_streams_that_may_still_speak():
    bus = Played(batch(5, "a"))
    box = outbox(bus, fence=fence_of(2, 1, 3))
    await box.leave()
    assert fence_of(2, 1, 998) < bus.batches[-1]["fence"] < fence_of(2, 2)
    assert list(told(bus.batches[1:])) == [(6, "", {"reset": 6})]


async def test_what_follows_a_stream_that_was_given_up_is_behind_what_clients_have_of_it():
    bus = Played(batch(5, "a", "b", fence=fence_of(2, 1, 2)))
    box = outbox(bus, fence=fence_of(2, 1))
    box.give_up(2)
    put(box, "c")
    await box.flush()
    put(box, "d")
    await box.flush(end=True)
    assert bus.batches[-1]["fence"] == fence_of(2, 1, 3)
    assert list(told(bus.batches[1:])) == [(7, "c", {"reset": 7}), (8, "d", {"end": True})]


@pytest.mark.parametrize(("behind", "reset"), [(9, None), (5, 3)])
def test_a_stream_has_said_what_the_command_replaces_if_it_has_said_anything(behind, reset):
    box = outbox(Played(), reset=3, fence=7)
    box.go_on_behind(behind, 2)
    assert (box.next_seq, box.reset, box.fence) == (behind, reset, 7)
    box.go_on_behind(behind, 8)
    assert box.fence == 8


async def test_the_end_waits_for_what_has_to_be_stored():
    bus = Played()
    box = outbox(bus)
    put(box, "a")
    await box.flush()
    await box.kept()
    assert bus.waited_for == []
    await box.flush(end=True)
    await box.kept()
    assert bus.waited_for == [2]
    bus.clustered = True
    put(box, "b")
    await box.flush()
    await box.kept()
    assert bus.waited_for == [2, 3]


async def test_who_has_lost_the_command_says_nothing_and_has_not_stored_its_end():
    bus, hold = Played(), Hold()
    box = outbox(bus, hold=hold)
    put(box, "a")
    await box.flush(end=True)
    put(box, "b")
    hold.lose()
    for speak in (box.flush, box.kept):
        with pytest.raises(LostError):
            await speak()
    assert len(bus.batches) == 1


async def test_what_clients_have_is_told_of_the_newest_fence_that_counts():
    bus: Any = Played(batch(5, "a", "b", fence=7, timed=True), batch(3, "late", fence=7))
    shown = await last_sent(bus, "acme", "r1", 7)
    assert shown[:3] == (7, 6, True)
    assert shown.chunk is not None
    assert shown.chunk["payload"]["text"] == "b"
    assert await last_sent(bus, "acme", "r1", 8) == Shown()
    assert await last_sent(SimpleNamespace(stored=Played()), "acme", "r1") == Shown()  # type: ignore[arg-type]


def test_a_chunk_is_taken_that_fits_beside_what_travels_with_it():
    bus = Played()
    (chunk,) = text("x")
    bus.max_payload = len(orjson.dumps(chunk)) + 1024
    assert outbox(bus).takes(chunk)
    bus.max_payload -= 1
    assert not outbox(bus).takes(chunk)
    assert outbox(bus).takes({"type": "data-x", "data": object()})


@pytest.mark.parametrize(
    ("last", "differs"),
    [
        (text("b")[0], False),
        ({**text("b")[0], "payload": {"text": "b", "host": 7}, "runId": "r1"}, False),
        (text("c")[0], True),
        ({"type": "reasoning-delta", "payload": {"text": "b"}}, True),
        ({"type": "data-x", "data": [1]}, True),
        (None, False),
    ],
)
async def test_what_is_made_again_is_held_back_and_all_behind_it_where_it_is_something_else(last, differs):
    bus = Played()
    box = outbox(bus, shown=Shown(last=6, chunk=last))
    assert box.astray
    put(box, "a", "b", "d")
    assert box.astray == box.differs == differs
    await box.flush()
    assert list(told(bus.batches)) == ([] if differs else [(7, "d", {})])


async def test_what_was_sent_while_a_block_waited_leaves_nothing_to_pythons_collector():
    bus = Played()
    box = outbox(bus)
    gone = ref(box)
    gc.disable()
    try:
        async with box.flushing():
            for each in "abc":
                put(box, each)
                await asyncio.sleep(2 * TOGETHER_SECONDS)
        del box
        assert gone() is None
    finally:
        gc.enable()
    assert [chunk for batch in bus.batches for chunk in batch["chunks"]]
