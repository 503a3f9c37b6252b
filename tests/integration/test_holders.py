"""Who has a command that NATS gives out once more."""

import asyncio

import pytest
import pytest_asyncio

from procession_schemas.work import WorkCommand
from procession_services.bus import Bus, Delivery, LostError
from procession_services.processor_host.holders import Holders
from procession_services.runtime.clock import new_token
from procession_services.runtime.redis_client import connect
from procession_services.runtime.store import RunStore, StateChange
from tests.support.servers import own_servers

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

SERVICE = "tools"


@pytest_asyncio.fixture(loop_scope="session")
async def store(servers):
    redis = connect(servers.redis_url)
    yield RunStore(redis, ttl=60, finished_ttl=60, told_ttl=60)
    await redis.aclose()


async def holders_of(bus, store, replica):
    holders = Holders(bus, store, SERVICE, replica)
    await holders.start()
    await bus.flush()
    return holders


@pytest_asyncio.fixture(loop_scope="session")
async def two(servers, store):
    """Two replicas, each with a connection of its own."""
    buses = [await Bus.connect(servers.nats_url, f"holders-{name}") for name in "ab"]
    yield [await holders_of(bus, store, new_token(10)) for bus in buses]
    for bus in buses:
        await bus.close()


@pytest_asyncio.fixture(loop_scope="session")
async def command(store):
    """A command that a run waits for."""
    command = WorkCommand(
        run=f"run-{new_token(6)}", tenant="t", agent="a", service=SERVICE, seq=3, version=0, out_seq=0,
        message_id="m", ops=[],
    )  # fmt: skip
    await store.save_state("t", command.run, StateChange(0, b"{}", 2**42, finished=False, out=3))
    return command


def delivery(number=2):
    return Delivery(
        subject="s", body=b"", sequence=1, attempt=number, message_id=None, stored_at="", traceparent=None
    )


async def claim(store, command, owner):
    assert await store.take_context("t", command.run, seq=command.seq, owner=owner, attempt=2)


async def test_whoever_works_on_a_command_says_so_to_others_and_to_itself(two, store, command):
    one, other = two
    assert not await other.lives(command)
    with one.working(command, delivery()) as owner:
        await claim(store, command, owner)
        assert await other.lives(command)
        assert await one.lives(command)
    assert not await other.lives(command)
    assert not await one.lives(command)


async def test_nobody_has_what_a_replica_claimed_that_is_gone(two, store, command):
    await claim(store, command, f"{new_token(10)}.{new_token(12)}")
    async with asyncio.timeout(5):
        assert not await two[0].lives(command)


async def test_nobody_has_what_the_version_before_claimed(two, store, command):
    await claim(store, command, new_token(12))
    async with asyncio.timeout(5):
        assert not await two[0].lives(command)


async def test_a_command_is_ours_until_somebody_takes_it(two, store, command):
    one, other = two
    ours = delivery(1)
    assert not await one.still_ours(ours)
    with one.working(command, ours) as owner:
        await claim(store, command, owner)
        assert await one.still_ours(ours)
        with one.working(command, again := delivery(1)):  # NATS may forget that it gave it to us
            assert not await one.still_ours(again)
        assert await one.still_ours(ours)
        with other.working(command, delivery()) as another:
            await claim(store, command, another)
        assert not await one.still_ours(ours)


async def test_what_cannot_be_known_while_nats_is_silent_is_left_to_the_next_delivery(
    tmp_path, store, command
):
    async with own_servers(tmp_path) as servers:
        bus = await Bus.connect(servers.endpoints.nats_url, "holders")
        holders = await holders_of(bus, store, new_token(10))
        await claim(store, command, f"{new_token(10)}.{new_token(12)}")
        servers.freeze_nats()
        try:
            with pytest.raises(LostError):
                await holders.lives(command)
        finally:
            servers.thaw_nats()
        await bus.close()
