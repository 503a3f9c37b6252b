"""What stream processors of a run have received, when a stream is made anew."""

import secrets

import pytest

from procession_services.output_processors.parts import PartsStore
from procession_services.runtime.embedded import Endpoints
from procession_services.runtime.redis_client import connect
from procession_services.runtime.store import RunStore

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("same_replica", [True, False])
async def test_a_stream_that_is_made_anew_counts_once_and_as_it_was_made_last(
    servers: Endpoints, same_replica: bool
) -> None:
    run = f"r-{secrets.token_hex(6)}"
    async with connect(servers.redis_url) as redis:
        store = RunStore(redis, ttl=60, finished_ttl=60, told_ttl=60)
        first = PartsStore(store)
        second = first if same_replica else PartsStore(store)
        for replica, number, text in ((first, 0, "one"), (first, 1, "forgotten"), (second, 1, "two")):
            parts = await replica.open("t", run, number, links=2)
            before = [len(received) for received in parts.lists]
            for received in parts.lists:
                received.append({"type": text})
            await replica.save("t", run, number, parts, before)
        for replica in (second, PartsStore(store)):
            parts = await replica.open("t", run, 2, links=2)
            assert parts.lists == [[{"type": "one"}, {"type": "two"}]] * 2


async def test_what_runs_that_go_on_have_received_is_bounded(servers: Endpoints) -> None:
    """However long the chunks are: those of the runs that were not worked on for longest are read again."""
    names = [f"r-{secrets.token_hex(6)}" for _ in range(6)]
    async with connect(servers.redis_url) as redis:
        parts_store = PartsStore(RunStore(redis, ttl=60, finished_ttl=60, told_ttl=60))
        for run in names:
            parts = await parts_store.open("t", run, 0, links=2)
            for received in parts.lists:
                received.append({"type": "file", "payload": {"data": "x" * 5_000_000}})
            await parts_store.save("t", run, 0, parts, [0, 0])
        assert [run for _, run in parts_store._runs] == names[-3:]
        again = await parts_store.open("t", names[0], 1, links=2)
        assert [len(received) for received in again.lists] == [1, 1]
        assert [run for _, run in parts_store._runs] == [*names[-2:], names[0]]
        for run in names:
            parts_store.forget("t", run)
        assert parts_store._held == 0
