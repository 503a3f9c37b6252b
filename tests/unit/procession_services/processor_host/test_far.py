"""Whom a process hands commands to, what it does when one is not done, and how long it keeps the message of a run."""

import asyncio
import itertools
from typing import Any

import pytest
import pytest_asyncio
from pydantic import TypeAdapter

from procession_schemas import subjects
from procession_schemas.base import UnfitError
from procession_schemas.handed import HandedCommand
from procession_schemas.work import WorkCommand
from procession_services.bus import Bus, LostError
from procession_services.processor_host import far as far_module
from procession_services.processor_host.cancels import Cancels
from procession_services.processor_host.far import Far
from procession_services.processor_host.handed import packed, unpacked
from procession_services.processor_host.holders import Claimed, new_owner
from procession_services.runs.program import LOCAL
from procession_services.runtime.clock import new_token
from procession_services.runtime.redis_client import connect
from procession_services.runtime.replicas import Replicas
from procession_services.runtime.run_records import StateChange, StoredContext
from procession_services.runtime.store import RunStore, _told_key, run_key
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.integration
FAR = 4_000_000_000_000
PATIENCE = 20
_runs = itertools.count()


class Again:
    """Notes of which runs it was said again what follows."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    async def again(self, _tenant: str, run: str) -> None:
        self.runs.append(run)


class Asked:
    """Answers who works on what: `working`."""

    def __init__(self) -> None:
        self.working: set[str] = set()
        self.questions: list[list[str]] = []

    async def at_work(self, owners: list[str]) -> set[str]:
        self.questions.append(sorted(owners))
        return self.working.intersection(owners)


class Place:
    """A process that hands commands over."""

    def __init__(self, bus: Bus, redis: Any) -> None:
        self.bus, self.redis = bus, redis
        self.store = RunStore(redis, ttl=60, finished_ttl=30, told_ttl=90)
        self.again, self.asked = Again(), Asked()
        self.tenant, self.service, self.replica = f"t-{new_token(6)}", f"s-{new_token(6)}", new_token(8)
        driver: Any = self.again
        holders: Any = self.asked
        self.far = Far(
            bus, self.store, "orchestrator", self.replica,
            driver=driver, holders=holders, silence=1.5,
        )  # fmt: skip

    async def lives(self, *replicas: str) -> None:
        for replica in replicas:
            await Replicas(self.redis, self.service, replica, 1.5).silent()

    async def knows(self) -> list[str]:
        """The replicas that get commands next, when it has asked."""
        assert self.far.takes(self.service) is None
        await until(lambda: self.far.takes(self.service) is not None)
        return self.next(4)

    def next(self, count: int) -> list[str]:
        desks = [self.far.takes(self.service) for _ in range(count)]
        return [desk.replica for desk in desks if desk]

    async def claimed(self, replica: str) -> Claimed:
        """A command that a replica has claimed, and its run."""
        run, owner = f"run-{next(_runs)}", new_owner(self.service, replica)
        change = StateChange(0, b"{}", FAR, finished=False, out=3, claimed_by=owner)
        await self.store.save_state(self.tenant, run, change)
        command = WorkCommand(
            run=run, tenant=self.tenant, agent="a", service=self.service, seq=3, version=2, out_seq=0,
            message_id="m", ops=[],
        )  # fmt: skip
        stored = StoredContext(
            version=2, seq=2, context=b'{"messages":{}}', result=None, cancelled=False, state_version=1,
            state=b'{"step":1}', plan=b'{"models":[]}', out=3, claims=1, numbered_in=7,
        )  # fmt: skip
        return Claimed(command, owner, stored, 1_790_000_000.5)

    async def owner(self, claimed: Claimed) -> str | None:
        command = claimed.command
        return await self.store.claimed_by(command.tenant, command.run, command.seq)

    async def begun(self, claimed: Claimed) -> int:
        return await self.store.times_begun(self.tenant, claimed.command.run, claimed.command.seq)


@pytest_asyncio.fixture
async def place(servers: Any) -> Any:
    bus = await Bus.connect(servers.nats_url, "far-test")
    async with connect(servers.redis_url) as redis:
        place = Place(bus, redis)
        await place.far.start()
        await bus.flush()
        yield place
        await place.far.stop()
    await bus.close()


async def test_a_command_comes_out_as_it_was_put_in(place: Place) -> None:
    claimed = await place.claimed("there")
    body = packed(claimed, "00-trace")
    TypeAdapter(HandedCommand).validate_json(body)
    handed = unpacked(body)
    assert handed.claimed == claimed
    assert handed.traceparent == "00-trace"
    assert WorkCommand.from_json(handed.body) == claimed.command
    without = claimed._replace(stored=StoredContext(0, -1, None, None, True, 1, b"{}", b"{}", 3, 1, 7))
    assert unpacked(packed(without, None)).claimed == without


@pytest.mark.parametrize("body", [b"", b"{", b"{}", b'{"command":{},"owner":1}'])
def test_what_is_no_command_is_refused(body: bytes) -> None:
    with pytest.raises(UnfitError, match="not a handed-over command"):
        unpacked(body)


async def test_replicas_take_turns(place: Place) -> None:
    await place.lives("one", "two")
    assert sorted(await place.knows()) == ["one", "one", "two", "two"]
    first, other, *_ = place.next(2)
    assert first != other


async def test_each_service_has_turns_of_its_own(place: Place) -> None:
    """Who needs two services by turns would else always get the same replica of each."""
    services = [place.service, f"s-{new_token(6)}"]
    for service in services:
        place.service = service
        await place.lives("one", "two")
        await place.knows()
    desks = [place.far.takes(service) for _ in range(2) for service in services]
    assert len({(desk.service, desk.replica) for desk in desks if desk}) == 4


async def test_nothing_goes_to_a_replica_that_is_silent_or_to_this_service_itself(place: Place) -> None:
    await place.redis.zadd(f"procession:admission:replicas:{place.service}", {"silent": 1})
    await place.lives("there")
    assert set(await place.knows()) == {"there"}
    assert place.far.takes(LOCAL) is None


async def test_what_was_known_long_ago_does_not_count(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.lives("there")
    await place.knows()
    monkeypatch.setattr(far_module, "_OLD_SECONDS", 0.0)
    assert place.far.takes(place.service) is None


async def test_who_ends_hands_nothing_over(place: Place) -> None:
    await place.lives("there")
    await place.knows()
    place.far.close()
    assert place.far.takes(place.service) is None


async def test_who_may_not_hands_nothing_over_until_it_connects_anew(place: Place) -> None:
    await place.lives("there")
    await place.knows()
    for listener in place.bus.on_refusal:
        listener(subjects.holder(place.service, "there"))
    assert place.next(4)
    for listener in place.bus.on_refusal:
        listener(subjects.desk(place.service, "there"))
    assert not place.next(4)
    for reconnected in place.bus.on_reconnect:
        reconnected()
    assert place.next(4)


async def test_so_does_not_who_keeps_as_many_messages_as_it_may(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.lives("there")
    await place.knows()
    monkeypatch.setattr(far_module, "_MOST", 1)
    task = await speaking(place, "run")
    await until(lambda: place.far.takes(place.service) is None)
    task.cancel()


async def test_a_command_gets_to_its_owner(place: Place) -> None:
    got: asyncio.Queue[bytes] = asyncio.Queue()
    subject = subjects.desk(place.service, "there")
    await place.bus.subscribe(subject, lambda _subject, body, _reply: got.put_nowait(body))
    claimed = await place.claimed("there")
    await place.far.hand(claimed, "00-trace")
    async with asyncio.timeout(PATIENCE):
        assert unpacked(await got.get()).claimed == claimed
    assert place.again.runs == []


async def test_what_nobody_takes_is_sent_as_if_it_had_never_been_handed_over(place: Place) -> None:
    await place.lives("there", "gone")
    await place.knows()
    claimed = await place.claimed("gone")
    await place.far.hand(claimed, None)
    await until(lambda: place.again.runs == [claimed.command.run])
    assert await place.owner(claimed) is None
    assert await place.begun(claimed) == 0
    assert set(place.next(4)) == {"there"}


async def test_so_is_what_is_too_long(place: Place) -> None:
    claimed = await place.claimed("there")
    await place.bus.subscribe(subjects.desk(place.service, "there"), lambda *_: None)
    long = StoredContext(
        2, 2, b'"' + b"x" * place.bus.max_payload + b'"', None, False, 1, b"{}", b"{}", 3, 1, 7
    )
    await place.far.hand(claimed._replace(stored=long), None)
    assert place.again.runs == [claimed.command.run]


@pytest.mark.parametrize(("answer", "begun"), [(b"", 0), (b"-NAK", 1)])
async def test_a_replica_says_that_it_does_not_do_it(place: Place, answer: bytes, begun: int) -> None:
    subject = subjects.desk(place.service, "there")
    await place.bus.subscribe(subject, lambda _subject, _body, reply: place.bus.post(reply, answer))
    claimed = await place.claimed("there")
    await place.far.hand(claimed, None)
    await until(lambda: place.again.runs == [claimed.command.run])
    assert await place.owner(claimed) is None
    assert await place.begun(claimed) == begun


async def test_what_somebody_else_has_taken_over_is_left_alone(place: Place) -> None:
    claimed = await place.claimed("there")
    run, seq = claimed.command.run, claimed.command.seq
    assert await place.store.take_context(
        place.tenant, run, seq=seq, owner="another", instead_of=claimed.owner
    )
    assert not await place.store.unclaim(place.tenant, run, claimed.owner, begun=True)
    assert await place.owner(claimed) == "another"


async def test_a_claim_of_a_command_that_the_run_has_left_behind_is_left_alone(place: Place) -> None:
    claimed = await place.claimed("there")
    run = claimed.command.run
    await place.store.save_state(place.tenant, run, StateChange(1, b"{}", FAR, finished=False, out=4))
    assert not await place.store.unclaim(place.tenant, run, claimed.owner, begun=True)


async def speaking(place: Place, run: str) -> "asyncio.Task[None]":
    return asyncio.create_task(place.far.speak(place.tenant, run))


async def test_the_message_is_kept_while_somebody_works_on_the_run(place: Place) -> None:
    claims = [await place.claimed("there") for _ in range(2)]
    owners = sorted(claim.owner for claim in claims)
    place.asked.working = set(owners)
    tasks = [await speaking(place, claim.command.run) for claim in claims]
    await until(lambda: len(place.asked.questions) >= 2)
    assert place.asked.questions[:2] == [owners, owners]  # one question for all
    assert not any(task.done() for task in tasks)
    for claim in claims:
        await place.redis.set(_told_key(place.tenant, claim.command.run), "x", ex=60)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*tasks)
    assert place.again.runs == []


async def test_a_run_of_which_redis_knows_nothing_keeps_no_message(place: Place) -> None:
    async with asyncio.timeout(PATIENCE):
        await (await speaking(place, "forgotten"))
    assert place.again.runs == []


async def given_back(task: "asyncio.Task[None]") -> bool:
    """Whether the message is to come again soon."""
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(LostError) as lost:
            await task
    return lost.value.again_in > 0


async def test_where_nobody_works_on_it_twice_in_a_row_the_message_comes_again(place: Place) -> None:
    claimed = await place.claimed("there")
    assert await given_back(await speaking(place, claimed.command.run))
    assert place.asked.questions == [[claimed.owner]] * 2


async def test_so_it_does_where_nobody_has_claimed_it(place: Place) -> None:
    """It was sent, or whoever was about to has died."""
    claimed = await place.claimed("there")
    await place.redis.hdel(run_key(place.tenant, claimed.command.run), "claim")
    assert await given_back(await speaking(place, claimed.command.run))
    assert place.asked.questions == []


async def test_so_it_does_where_the_run_waits_for_a_person(place: Place) -> None:
    """Who has brought that about may have died before it was told."""
    claimed = await place.claimed("there")
    run = claimed.command.run
    await place.store.save_state(place.tenant, run, StateChange(1, b"{}", FAR, finished=False, waits=True))
    assert await given_back(await speaking(place, run))
    assert place.asked.questions == []


async def test_who_is_found_at_work_in_between_keeps_the_message_where_it_is(place: Place) -> None:
    claimed = await place.claimed("there")
    task = await speaking(place, claimed.command.run)
    await until(lambda: len(place.asked.questions) == 1)
    place.asked.working = {claimed.owner}
    await until(lambda: len(place.asked.questions) == 2)
    place.asked.working = set()
    await until(lambda: len(place.asked.questions) == 3)
    assert not task.done()
    assert await given_back(task)


async def test_who_ends_keeps_no_message(place: Place) -> None:
    claimed = await place.claimed("there")
    place.asked.working = {claimed.owner}
    task = await speaking(place, claimed.command.run)
    await until(lambda: bool(place.far._spoken))
    place.far.close()
    assert await given_back(task)
    assert await given_back(await speaking(place, claimed.command.run))
    assert place.asked.questions == []


async def test_while_redis_is_away_the_message_is_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: asyncio.Queue[None] = asyncio.Queue()

    async def away(_runs: Any) -> Any:
        asked.put_nowait(None)
        raise ConnectionError

    monkeypatch.setattr(place.store, "stands", away)
    task = await speaking(place, (await place.claimed("there")).command.run)
    async with asyncio.timeout(PATIENCE):
        for _ in range(2):
            await asked.get()
    assert not task.done()
    monkeypatch.undo()
    assert await given_back(task)


async def test_who_begins_just_after_a_cancellation_knows_of_it(place: Place) -> None:
    """A command that was handed over may come behind it."""
    cancels = Cancels(place.store)
    cancels.cancel("t", "run")
    with cancels.watched("t", "run") as signal, cancels.watched("t", "other") as other:
        assert (signal.aborted, other.aborted) == (True, False)


async def test_what_was_cancelled_long_ago_is_forgotten(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("procession_services.processor_host.cancels.LEAVE_SECONDS", 0.0)
    cancels = Cancels(place.store)
    cancels.cancel("t", "run")
    await eventually(lambda: _forgotten(cancels))
    with cancels.watched("t", "run") as signal:
        assert not signal.aborted


async def _forgotten(cancels: Cancels) -> bool:
    await cancels.look()
    return not cancels._lately
