"""Who has a command that NATS gives out once more."""

import asyncio

import pytest
import pytest_asyncio
from msgspec.structs import replace

from procession_schemas import subjects
from procession_schemas.work import WorkCommand
from procession_services.bus import Bus, Delivery, Hold, LostError
from procession_services.processor_host.holders import Holders
from procession_services.runtime.clock import new_token
from procession_services.runtime.redis_client import connect
from procession_services.runtime.replicas import Replicas
from procession_services.runtime.run_records import StateChange
from procession_services.runtime.store import RunStore
from procession_services.runtime.tasks import spawned
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
    await listen(bus, holders, replica)
    return holders


async def listen(bus, holders, replica):
    answering: set[asyncio.Task[None]] = set()

    def on_question(subject, body, reply):
        spawned(answering, "an answer", answered(subject, body, reply))

    async def answered(subject, body, reply):
        await bus.publish(reply, await holders.answer(subject, body))

    await bus.subscribe(subjects.holder(SERVICE, replica), on_question)
    await bus.flush()


@pytest_asyncio.fixture(loop_scope="session")
async def two(servers, store):
    """Two replicas, each with a connection of its own."""
    buses = [await Bus.connect(servers.nats_url, f"holders-{name}") for name in "ab"]
    yield [await holders_of(bus, store, new_token(10)) for bus in buses]
    for bus in buses:
        await bus.close()


def command_of(run):
    return WorkCommand(
        run=run, tenant="t", agent="a", service=SERVICE, seq=3, version=0, out_seq=0, message_id="m", ops=[]
    )


@pytest_asyncio.fixture(loop_scope="session")
async def command(store):
    """A command that a run waits for."""
    command = command_of(f"run-{new_token(6)}")
    await store.save_state("t", command.run, StateChange(0, b"{}", 2**42, finished=False, out=3))
    return command


def given(command, number=2, hold=None):
    """A delivery of the command."""
    return Delivery(
        subject="s", body=command.to_json(), sequence=1, attempt=number, message_id=None, stored_at="",
        traceparent=None, hold=hold or Hold(),
    )  # fmt: skip


async def claim(store, command, owner):
    assert await store.take_context("t", command.run, seq=command.seq, owner=owner, attempt=2)


async def test_whoever_works_on_a_command_says_so_to_others_and_to_itself(two, store, command):
    one, other = two
    assert not await other.elsewhere(given(command))
    with one.working(command, given(command).hold) as owner:
        await claim(store, command, owner)
        assert await other.elsewhere(given(command))
        assert await one.elsewhere(given(command))
    assert not await other.elsewhere(given(command))
    assert not await one.elsewhere(given(command))


async def test_whoever_works_on_a_command_says_so_to_another_service_of_its_process(two, store, command):
    """Which comes to one that needs no other service."""
    one, _ = two
    beside = Holders(one._bus, store, "orchestrator", one._replica)
    with one.working(command, Hold()) as owner:
        await claim(store, command, owner)
        assert await beside.owner_of(command) == (owner, True)
    assert await beside.owner_of(command) == (owner, False)


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("asked", ["by another", "by itself"])
async def test_who_is_in_doubt_finds_out_before_it_says_so(two, store, command, goes_on, asked):
    """NATS was silent; or the process stood still, and will be told that it has lost the command."""
    one, other = two
    doubts = asyncio.Event()
    hold = Hold(0, doubts.set)
    with one.working(command, hold) as owner:
        await claim(store, command, owner)
        asking = asyncio.create_task((other if asked == "by another" else one).elsewhere(given(command)))
        async with asyncio.timeout(5):
            await doubts.wait()
            if goes_on:
                hold.extend(asyncio.get_running_loop().time() + 60)
            else:
                hold.lose()
            assert await asking is goes_on


async def test_who_has_done_a_command_while_it_was_in_doubt_does_not_work_on_it(two, store, command):
    one, other = two
    doubts = asyncio.Event()
    hold = Hold(0, doubts.set)
    with one.working(command, hold) as owner:
        await claim(store, command, owner)
        asking = asyncio.create_task(other.elsewhere(given(command)))
        async with asyncio.timeout(5):
            await doubts.wait()
    hold.extend(asyncio.get_running_loop().time() + 60)
    assert not await asking


async def test_nobody_has_what_a_replica_claimed_that_is_gone(two, store, command):
    await claim(store, command, f"{new_token(10)}.{new_token(12)}.{SERVICE}")
    async with asyncio.timeout(5):
        assert not await two[0].elsewhere(given(command))


async def test_who_is_off_the_list_and_gone_is_not_waited_for(two, store, command, monkeypatch):
    monkeypatch.setattr("procession_services.processor_host.holders._ASK_SECONDS", 600.0)
    await claim(store, command, f"{new_token(10)}.{new_token(12)}.{SERVICE}")
    async with asyncio.timeout(5):
        assert not await two[0].elsewhere(given(command))


async def test_who_is_on_the_list_may_be_back_soon(servers, two, store, command, monkeypatch):
    """As after a restart of NATS."""
    monkeypatch.setattr("procession_services.processor_host.holders._ASK_SECONDS", 600.0)
    late, asked = new_token(10), asyncio.Event()
    await Replicas(store.redis, SERVICE, late, 60).silent()

    class Asks(Bus):
        async def request(self, *arguments):
            try:
                return await super().request(*arguments)
            finally:
                asked.set()

    asker = await Asks.connect(servers.nats_url, "asks")
    back = Holders(asker, store, SERVICE, late)
    with back.working(command, given(command).hold) as owner:
        await claim(store, command, owner)
        asking = asyncio.create_task(Holders(asker, store, SERVICE, "asker").elsewhere(given(command)))
        async with asyncio.timeout(5):
            await asked.wait()
            await listen(asker, back, late)
            assert await asking
    await Replicas(store.redis, SERVICE, late, 60).leave()
    await asker.close()


async def test_a_command_is_ours_until_somebody_takes_it(two, store, command):
    one, other = two
    ours = given(command, 1)
    assert not await one.still_ours(ours)
    with one.working(command, ours.hold) as owner:
        await claim(store, command, owner)
        assert await one.still_ours(ours)
        again = given(command, 1)
        with one.working(command, again.hold):  # NATS may forget that it gave it to us
            assert not await one.still_ours(again)
        assert await one.still_ours(ours)
        with other.working(command, given(command).hold) as another:
            await claim(store, command, another)
        assert not await one.still_ours(ours)


async def test_a_command_is_not_ours_if_redis_began_anew_since_somebody_may_have_taken_it(tmp_path, command):
    """It may have forgotten who took it."""
    now = asyncio.get_running_loop().time()
    async with (
        own_servers(tmp_path, nats=False) as servers,
        connect(servers.endpoints.redis_url) as redis,
    ):
        store = RunStore(redis, ttl=60, finished_ttl=60, told_ttl=60)
        await store.save_state("t", command.run, StateChange(0, b"{}", 2**42, finished=False, out=3))
        holders = Holders(Bus("nats://127.0.0.1:1", "nobody"), store, SERVICE, "one")
        for until, still in ((now - 2, False), (now + 600, True)):
            delivery = given(command, 1, Hold(until))
            with holders.working(command, delivery.hold) as owner:
                await claim(store, command, owner)
                assert await holders.still_ours(delivery) is still


async def test_what_cannot_be_known_while_nats_is_silent_is_left_to_the_next_delivery(
    tmp_path, store, command
):
    async with own_servers(tmp_path) as servers:
        bus = await Bus.connect(servers.endpoints.nats_url, "holders")
        holders = await holders_of(bus, store, new_token(10))
        await claim(store, command, f"{new_token(10)}.{new_token(12)}.{SERVICE}")
        servers.freeze_nats()
        try:
            with pytest.raises(LostError):
                await holders.elsewhere(given(command))
        finally:
            servers.thaw_nats()
        await bus.close()


async def test_who_does_not_answer_keeps_what_nats_has_not_waited_for(servers, two, store, command):
    """It was sent because somebody else died who had the message of the run, which may be long ago."""
    one, other = two
    bus = await Bus.connect(servers.nats_url, "holders-still")
    silent = new_token(10)
    answering = await holders_of(bus, store, silent)
    again = replace(given(command), again=True, lease=2.0)
    with answering.working(command, again.hold) as owner:
        await claim(store, command, owner)
        answer, answering.answer = answering.answer, never_answers
        with pytest.raises(LostError):
            await other.elsewhere(again)
        answering.answer = answer
        await asyncio.sleep(again.lease)
        assert await other.elsewhere(again)
        answering.answer = never_answers
        with pytest.raises(LostError):
            await other.elsewhere(again)
        await asyncio.sleep(again.lease)
        assert not await one.elsewhere(again)
    assert not await other.elsewhere(given(command))
    await bus.close()


async def never_answers(_subject, _body):
    await asyncio.Event().wait()


async def test_one_question_asks_for_all_that_a_replica_has_claimed(two):
    one, other = two
    with one.working(command_of("a"), Hold()) as first, one.working(command_of("b"), Hold()) as second:
        gone = f"{first.partition('.')[0]}.{new_token(12)}.{SERVICE}"
        assert set(await other.at_work([first, second, gone])) == {first, second}
        assert set(await other.at_work([gone, second])) == {second}
    assert set(await other.at_work([first, second])) == set()
    assert set(await other.at_work([f"nobody.{new_token(12)}.{SERVICE}"])) == set()
