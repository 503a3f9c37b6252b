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
