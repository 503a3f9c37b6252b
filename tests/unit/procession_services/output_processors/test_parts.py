"""What stream processors of a run have received, when a stream is made anew."""

import secrets

import pytest

from procession_services.output_processors.parts import PartsStore, StreamPlace
from procession_services.runtime.embedded import Endpoints
from procession_services.runtime.redis_client import connect
from procession_services.runtime.store import RunStore

pytestmark = pytest.mark.integration


def place(run: str, *ids: int, known: bool = True) -> StreamPlace:
    """The place of a stream behind those with these ids."""
    return StreamPlace("t", run, len(ids), ids if known else ())


async def has(replica: PartsStore, at: StreamPlace, id_: int, text: str) -> None:
    """Has the two processors of a stream receive a text there."""
    parts = await replica.open(at, links=2)
    before = [len(received) for received in parts.lists]
    for received in parts.lists:
        received.append({"type": text})
    await replica.save(at, id_, parts, before)


@pytest.mark.parametrize("known", [True, False], ids=["known", "of the version before"])
@pytest.mark.parametrize("same_replica", [True, False])
async def test_a_stream_that_is_made_anew_counts_once_and_as_it_was_made_last(
    servers: Endpoints, same_replica: bool, known: bool
) -> None:
    run = f"r-{secrets.token_hex(6)}"
    async with connect(servers.redis_url) as redis:
        store = RunStore(redis, ttl=60, finished_ttl=60, told_ttl=60)
        first = PartsStore(store)
        second = first if same_replica else PartsStore(store)
        await has(first, place(run), 10, "one")
        await has(first, place(run, 10, known=known), 20, "forgotten")
        await has(second, place(run, 10, known=known), 21, "two")
        for replica in (second, PartsStore(store)):
            parts = await replica.open(place(run, 10, 21, known=known), links=2)
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
            parts = await replica.open(place(run, 10, 21), links=2)
            assert parts.lists == [[{"type": "one"}, {"type": "two"}]] * 2


async def test_what_runs_that_go_on_have_received_is_bounded(servers: Endpoints) -> None:
    """However long the chunks are: those of the runs that were not worked on for longest are read again."""
    names = [f"r-{secrets.token_hex(6)}" for _ in range(6)]
    async with connect(servers.redis_url) as redis:
        parts_store = PartsStore(RunStore(redis, ttl=60, finished_ttl=60, told_ttl=60))
        for run in names:
            parts = await parts_store.open(place(run), links=2)
            for received in parts.lists:
                received.append({"type": "file", "payload": {"data": "x" * 5_000_000}})
            await parts_store.save(place(run), 10, parts, [0, 0])
        assert [run for _, run in parts_store._runs] == names[-3:]
        again = await parts_store.open(place(names[0], 10), links=2)
        assert [len(received) for received in again.lists] == [1, 1]
        assert [run for _, run in parts_store._runs] == [*names[-2:], names[0]]
        for run in names:
            parts_store.forget("t", run)
        assert parts_store._held == 0
