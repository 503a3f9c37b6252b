"""What stream processors of a run have received, when a stream is made anew."""

import secrets

import pytest

from procession_schemas.chunks import Chunk
from procession_services.output_processors.parts import PartsStore, StreamPlace
from procession_services.runtime.embedded import Endpoints
from procession_services.runtime.redis_client import connect
from procession_services.runtime.store import RunStore, run_key

pytestmark = pytest.mark.integration


def place(run: str, *ids: int) -> StreamPlace:
    """The place of a stream behind those with these ids."""
    return StreamPlace("t", run, ids)


async def at_work(replica: PartsStore, run: str) -> None:
    """Has Redis know the run: of others nothing is logged."""
    await replica._store.redis.hset(run_key("t", run), mapping={"state_v": 1, "out": 1})


async def has(replica: PartsStore, at: StreamPlace, id_: int, text: str) -> None:
    """Has the two processors of a stream receive a text there."""
    await at_work(replica, at.run)
    parts = await replica.open(at)
    lists = parts.lists_of(2)
    before = [len(received) for received in lists]
    for received in lists:
        received.append({"type": text})
    await replica.save(at, id_, parts, before)


@pytest.mark.parametrize("same_replica", [True, False])
async def test_a_stream_that_is_made_anew_counts_once_and_as_it_was_made_last(
    servers: Endpoints, same_replica: bool
) -> None:
    run = f"r-{secrets.token_hex(6)}"
    async with connect(servers.redis_url) as redis:
        store = RunStore(redis, ttl=60, finished_ttl=60, told_ttl=60)
        first = PartsStore(store)
        second = first if same_replica else PartsStore(store)
        await has(first, place(run), 10, "one")
        await has(first, place(run, 10), 20, "forgotten")
        await has(second, place(run, 10), 21, "two")
        for replica in (second, PartsStore(store)):
            parts = await replica.open(place(run, 10, 21))
            assert parts.lists == [[{"type": "one"}, {"type": "two"}]] * 2


async def test_what_a_stream_received_that_was_in_vain_does_not_count_where_the_run_comes_back(
    servers: Endpoints,
) -> None:
    """Neither in the replica that had it, nor for one that reads that it was logged last."""
    run = f"r-{secrets.token_hex(6)}"
    async with connect(servers.redis_url) as redis:
        store = RunStore(redis, ttl=60, finished_ttl=60, told_ttl=60)
        first, second = PartsStore(store), PartsStore(store)
        await has(first, place(run), 10, "one")
        await has(second, place(run, 10), 21, "two")
        await has(first, place(run, 10), 20, "in vain")
        for replica in (first, PartsStore(store)):
            parts = await replica.open(place(run, 10, 21))
            assert parts.lists == [[{"type": "one"}, {"type": "two"}]] * 2


async def test_what_runs_that_go_on_have_received_is_bounded(servers: Endpoints) -> None:
    """However long the chunks are: those of the runs that were not worked on for longest are read again."""
    names = [f"r-{secrets.token_hex(6)}" for _ in range(6)]
    async with connect(servers.redis_url) as redis:
        parts_store = PartsStore(RunStore(redis, ttl=60, finished_ttl=60, told_ttl=60))
        for run in names:
            await at_work(parts_store, run)
            parts = await parts_store.open(place(run))
            for received in parts.lists_of(2):
                received.append({"type": "file", "payload": {"data": "x" * 5_000_000}})
            await parts_store.save(place(run), 10, parts, [0, 0])
        assert [run for _, run in parts_store._runs] == names[-3:]
        again = await parts_store.open(place(names[0], 10))
        assert [len(received) for received in again.lists] == [1, 1]
        parts_store.keep(place(names[0], 10), again)
        assert [run for _, run in parts_store._runs] == [*names[-2:], names[0]]
        for run in names[-2:] + names[:1]:
            await parts_store.open(place(run, 10))
        assert parts_store._held == 0, "whoever has them counts them no more"


@pytest.mark.parametrize("received", [0, 1], ids=["nothing", "something"])
async def test_what_runs_have_received_that_ended_elsewhere_is_dropped_after_a_while(
    servers: Endpoints, monkeypatch: pytest.MonkeyPatch, received: int
) -> None:
    """As of those that were cancelled, which nobody opens again."""
    names = [f"r-{secrets.token_hex(6)}" for _ in range(4)]
    async with connect(servers.redis_url) as redis:
        replica = PartsStore(RunStore(redis, ttl=60, finished_ttl=60, told_ttl=60))
        for run in names:
            if run is names[-1]:
                monkeypatch.setattr("procession_services.output_processors.parts._HELD_SECONDS", 0.0)
            parts = await replica.open(place(run))
            for _ in range(received):
                await has(replica, place(run), 10, "one")
            if not received:
                replica.keep(place(run), parts)
        assert [run for _, run in replica._runs] == names[-1:]
        await replica.open(place(names[-1]))
        assert replica._held == 0


async def test_two_streams_of_a_run_do_not_receive_what_is_the_others(servers: Endpoints) -> None:
    """A sender that is cut off and the one who has its work may have the same replica at the same time."""
    run = f"r-{secrets.token_hex(6)}"
    async with connect(servers.redis_url) as redis:
        replica = PartsStore(RunStore(redis, ttl=60, finished_ttl=60, told_ttl=60))
        await has(replica, place(run), 10, "one")
        cut_off, anew = [await replica.open(place(run, 10)) for _ in range(2)]
        cut_off.lists_of(2)[0].append({"type": "half of it"})
        assert anew.lists == [[{"type": "one"}]] * 2


async def test_a_stream_that_was_put_aside_as_one_in_vain_is_read_when_it_counts(servers: Endpoints) -> None:
    run = f"r-{secrets.token_hex(6)}"
    async with connect(servers.redis_url) as redis:
        store = RunStore(redis, ttl=60, finished_ttl=60, told_ttl=60)
        first, second = PartsStore(store), PartsStore(store)
        await has(first, place(run), 10, "one")
        await has(first, place(run, 10), 20, "two")
        second.keep(
            place(run, 10), await second.open(place(run, 10))
        )  # its sender has gone to the first one before
        parts = await second.open(place(run, 10, 20))
        assert parts.lists == [[{"type": "one"}, {"type": "two"}]] * 2


@pytest.mark.timeout(30)
async def test_a_stream_that_the_log_has_lost_is_missing_and_nothing_else(
    servers: Endpoints, caplog: pytest.LogCaptureFixture
) -> None:
    """As when Redis comes back as it was a moment ago; it is waited for once."""
    run = f"r-{secrets.token_hex(6)}"
    async with connect(servers.redis_url) as redis:
        store = RunStore(redis, ttl=60, finished_ttl=60, told_ttl=60)
        replica = PartsStore(store)
        await has(replica, place(run), 10, "one")
        await has(replica, place(run, 10, 20), 30, "three")
        await has(replica, place(run, 10, 20, 30), 40, "four")
        assert caplog.text.count("are incomplete") == 1
        for each in (replica, PartsStore(store)):
            parts = await each.open(place(run, 10, 20, 30, 40))
            assert parts.lists == [[{"type": "one"}, {"type": "three"}, {"type": "four"}]] * 2
        assert caplog.text.count("are incomplete") == 2


async def test_each_processor_has_received_its_own_and_a_short_entry_is_for_the_sender_to_log(
    servers: Endpoints,
) -> None:
    run = f"r-{secrets.token_hex(6)}"
    async with connect(servers.redis_url) as redis:
        store = RunStore(redis, ttl=60, finished_ttl=60, told_ttl=60)
        replica = PartsStore(store)
        await at_work(replica, run)
        ids: list[int] = []
        lists: list[list[Chunk]] = []
        for id_, text in ((10, "short"), (20, "long" * 5000)):
            parts = await replica.open(place(run, *ids))
            lists = parts.lists_of(3)
            before = [len(received) for received in lists]
            for received, kind in zip(lists, ("a", "b", "a"), strict=True):
                received.append({"type": f"{kind} {text}"})
            entry = await replica.save(place(run, *ids), id_, parts, before, by_sender=True)
            if text == "short":
                assert await store.load_parts("t", run, 0) == []
                assert entry is not None
                await store.append_parts("t", run, entry.encode())
            else:
                assert entry is None
            ids.append(id_)
        assert len(await store.load_parts("t", run, 0)) == 2
        read = await PartsStore(store).open(place(run, *ids))
        assert read.lists == lists
        assert [received[0]["type"] for received in read.lists] == ["a short", "b short", "a short"]
