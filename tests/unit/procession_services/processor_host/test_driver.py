"""What one run does to others, whatever is wrong with one of them; and what is told of a run, and when."""

import asyncio
import secrets
from datetime import timedelta
from typing import Any

import orjson
import pytest
from nats.errors import ConnectionClosedError

from procession_schemas import subjects
from procession_schemas.run import Failure, RunResult
from procession_services.bus import Bus
from procession_services.bus.streams import ensure_streams
from procession_services.processor_host.driver import Driver, Moved, _set_times, change, line_of
from procession_services.processor_host.outbox import Outbox
from procession_services.runs.events import (
    DeadlinePassed,
    Ended,
    Interrupt,
    PassTurn,
    SignalCancel,
    TellResumed,
)
from procession_services.runs.numbering import fence_of
from procession_services.runs.reducer import outstanding, reduce
from procession_services.runs.state import Line, Sent
from procession_services.runtime.admission import CALLED, Called, Places, Wanted
from procession_services.runtime.clock import iso, now
from procession_services.runtime.redis_client import connect
from procession_services.runtime.run_records import Admission, Beginning
from procession_services.runtime.store import RunStore, run_key
from procession_services.runtime.telemetry import installed
from procession_services.runtime.telemetry.live import LiveObserver
from procession_services.runtime.telemetry.meters import Meters
from procession_services.runtime.telemetry.spans import Spans
from tests.unit.procession_services.runs.driving import make_plan, make_state

pytestmark = pytest.mark.integration
FAR = 4_000_000_000_000


class Runs:
    """Runs on one thread, all of which wait for their turn but the first one."""

    def __init__(self, redis: Any, bus: Bus) -> None:
        self.redis, self.bus, self.tenant = redis, bus, f"t-{secrets.token_hex(6)}"
        self.store = RunStore(redis, ttl=60, finished_ttl=30, told_ttl=90)
        self.driver = Driver(bus, self.store, self._execute)

    async def _execute(self, _command: Any) -> None:
        """Nobody is at work."""

    def state(self, run: str) -> Any:
        own = {"run": run, "tenant": self.tenant, "deadline_ms": FAR, "queued": True}
        return make_state(make_plan()).but(**own, line=Line(resource="ann", thread="t"))

    async def admit(self, run: str, *, in_line: bool = True) -> None:
        state = self.state(run)
        if not in_line:
            state.line = None
        await self.store.admit(
            self.tenant, run, beginning=Beginning(state.to_json(), state.plan.stored, 1, 0), deadline_ms=FAR,
            wanted=Wanted(waiting=99, crowd=99), line=line_of(state), queued=state.to_json(),
        )  # fmt: skip

    async def spoil(self, run: str) -> None:
        """Stores what only a later version understands."""
        state = self.state(run).but(then="of a later version")
        await self.redis.hset(run_key(self.tenant, run), "state", state.to_json())

    def ended(self, run: str, seq: int = 3) -> Any:
        """A run whose end is to be told."""
        result = RunResult(run_id=run, agent="a", status="finished", finish_reason="stop")
        own = {"status": "done", "result": result, "seq": seq, "queued": False}
        return self.state(run).but(**own)

    def waiting(self, run: str, seq: int = 3) -> Any:
        """A run of which is to be told that it waits for a person."""
        result = RunResult(run_id=run, agent="a", status="suspended", finish_reason="suspended")
        return self.ended(run, seq).but(status="suspended", result=result)

    async def told(self, run: str, type_: str) -> list[dict[str, Any]]:
        """What NATS has of a kind of event."""
        subject = subjects.event(self.tenant, run, type_)
        return [orjson.loads(body) async for _, body in self.bus.stored.messages("EVENTS", subject)]

    async def known(self, run: str) -> Admission:
        """What is known of a run's id."""
        await self.redis.settled()
        return await self.store.refuse(self.tenant, run, "another")

    async def stored(self, run: str) -> dict[str, Any]:
        found = await self.store.load_state(self.tenant, run)
        assert found is not None
        state: dict[str, Any] = orjson.loads(found.state)
        return state


@pytest.fixture
async def runs(servers):
    bus = await Bus.connect(servers.nats_url, "test")
    await ensure_streams(bus.js)
    async with connect(servers.redis_url) as redis:
        runs = Runs(redis, bus)
        yield runs
        for run in ("one", "two", "three"):
            await runs.store.discard(runs.tenant, run)
    await bus.close()


async def test_a_run_that_cannot_be_read_keeps_no_other_from_its_beginning(runs):
    for run in ("one", "two"):
        await runs.admit(run)
    await runs.spoil("one")
    await runs.redis.zadd(CALLED, {f"{runs.tenant} {run}": 1 for run in ("one", "two")})
    await runs.driver.begin([Called(runs.tenant, run) for run in ("one", "two")])
    assert (await runs.stored("two"))["sent"] is not None
    left = [name.decode() for name in await runs.redis.zrange(CALLED, 0, -1)]
    assert f"{runs.tenant} one" in left, "who can read it may begin it"
    assert f"{runs.tenant} two" not in left


async def test_a_run_that_cannot_be_read_spoils_nothing_for_the_one_before_or_behind_it(runs):
    for run in ("one", "two", "three"):
        await runs.admit(run)
    await runs.spoil("two")
    three = runs.state("three")
    await runs.driver.perform(three, [Interrupt()])
    assert (await runs.stored("one"))["cancel"]
    await runs.store.discard(runs.tenant, "one")
    await runs.driver.perform(runs.state("one"), [PassTurn()])


async def test_whoever_waits_behind_a_run_that_is_discarded_gets_its_turn(runs):
    for run in ("one", "two"):
        await runs.admit(run)
    await runs.driver.discard(runs.tenant, "one", runs.state("one").line)
    assert (await runs.stored("two"))["sent"] is not None


@pytest.fixture
async def full(servers):
    """Two runs, and a place for one of them, in a database of their own."""
    bus = await Bus.connect(servers.nats_url, "test")
    await ensure_streams(bus.js)
    async with connect(f"{servers.redis_url.removesuffix('/0')}/8") as redis:
        await Places(redis).let_in(in_all=1, by_default=None, named={})
        runs = Runs(redis, bus)
        for run in ("one", "two"):
            await runs.admit(run, in_line=False)
        assert "sent" not in await runs.stored("two")
        yield runs
        await redis.flushdb()
    await bus.close()


async def test_who_waits_begins_when_a_run_ends(full):
    await full.driver.event(full.tenant, "one", Ended(full.ended("one").result))
    assert "sent" in await full.stored("two")


async def test_who_waits_begins_when_a_command_has_ended_a_run(full):
    over = change(full.ended("one"), 1)
    called = await full.store.end_run(full.tenant, "one", version=0, seq=3, owner="me", change=over)
    await full.driver.go_on(Moved(full.ended("one"), [], over), called)
    assert "sent" in await full.stored("two")


async def test_who_waits_begins_when_a_run_is_discarded(full):
    await full.driver.discard(full.tenant, "one", None)
    assert "sent" in await full.stored("two")


async def test_who_waits_begins_when_one_that_was_called_is_gone(full):
    await full.redis.delete(run_key(full.tenant, "one"))
    await full.driver.begin([Called(full.tenant, "one")])
    assert "sent" in await full.stored("two")


async def test_the_end_of_a_run_is_told_once_and_its_id_is_taken_then(runs):
    ended = runs.ended("one")
    for _ in range(2):
        await runs.driver.perform(ended, outstanding(ended))
    (event,) = await runs.told("one", "run.finished")
    assert (event["fence"], event["fingerprint"]) == (fence_of(3), "f")
    assert (await runs.known("one")).told == "f"


async def test_an_end_that_is_told_again_has_the_time_of_the_first_one(runs, monkeypatch):
    heard = []
    subject = subjects.event(runs.tenant, "one", "run.finished")
    await runs.bus.subscribe(subject, lambda _subject, body, _reply: heard.append(orjson.loads(body)))
    await runs.admit("one", in_line=False)
    result = RunResult(run_id="one", agent="a", status="finished", finish_reason="stop")
    await runs.driver.event(runs.tenant, "one", Ended(result))
    monkeypatch.setattr("procession_services.processor_host.driver.now", lambda: now() + timedelta(hours=1))
    await runs.driver.again(runs.tenant, "one")
    await runs.bus.flush()
    stored = await runs.told("one", "run.finished")
    assert heard == [*stored, *stored]


async def test_a_run_that_was_accepted_by_a_clock_that_is_ahead_took_no_less_than_nothing(runs):
    ended = runs.ended("one").but(accepted_at=iso(now() + timedelta(hours=1)))
    meters = Meters()
    with installed(LiveObserver(Spans(None), meters)):
        await runs.driver.perform(ended, outstanding(ended))
    (event,) = await runs.told("one", "run.finished")
    assert event["result"]["durationMs"] == 0
    assert meters.registry.get_sample_value("procession_run_seconds_sum", {"status": "finished"}) == 0


async def test_a_run_has_one_end_whoever_tells_it(runs):
    await runs.bus.publish_stored(
        subjects.event(runs.tenant, "one", "run.finished"), b'{"first": true}', message_id="of somebody else"
    )
    ended = runs.ended("one")
    await runs.driver.perform(ended, outstanding(ended))
    assert await runs.told("one", "run.finished") == [{"first": True}]


async def test_whoever_tells_of_a_run_first_counts_it(runs):
    meters = Meters()
    ended, waiting = runs.ended("one"), runs.waiting("two")
    with installed(LiveObserver(Spans(None), meters)):
        for state in (ended, ended, waiting, waiting):
            await runs.driver.perform(state, outstanding(state))
    number = meters.registry.get_sample_value
    assert number("procession_runs_total", {"status": "finished"}) == 1
    assert number("procession_run_seconds_count", {"status": "finished"}) == 1
    assert number("procession_runs_total", {"status": "suspended"}) == 1


async def test_an_id_is_not_taken_before_the_end_was_told(runs, servers):
    lost = await Bus.connect(servers.nats_url, "test")
    await lost.close()
    ended = runs.ended("one")
    with pytest.raises(ConnectionClosedError):
        await Driver(lost, runs.store, nobody).perform(ended, outstanding(ended))
    assert (await runs.known("one")).told is None


async def test_a_run_that_waits_for_a_person_is_not_over(runs):
    waiting = runs.waiting("one")
    await runs.driver.perform(waiting, outstanding(waiting))
    assert (await runs.known("one")).told is None


async def test_each_time_that_a_run_waits_or_goes_on_is_told_once(runs):
    for seq in (3, 3, 7):
        waiting = runs.waiting("one", seq)
        await runs.driver.perform(waiting, outstanding(waiting))
        await runs.driver.perform(waiting, [TellResumed()])
    assert [event["fence"] for event in await runs.told("one", "run.suspended")] == [fence_of(4), fence_of(8)]
    assert [event["fence"] for event in await runs.told("one", "run.resumed")] == [fence_of(3), fence_of(7)]


async def test_whoever_begins_work_of_a_cancelled_run_and_whoever_is_at_it_can_know(runs):
    heard: asyncio.Queue[str] = asyncio.Queue()
    subject = subjects.cancelled(runs.tenant, "one")
    await runs.bus.subscribe(subject, lambda subject, *_: heard.put_nowait(subject))
    await runs.bus.flush()
    await runs.driver.perform(runs.state("one"), [SignalCancel()])
    async with asyncio.timeout(10):
        assert await heard.get() == subject
    assert await runs.store.is_cancelled(runs.tenant, "one")


async def test_a_run_under_the_id_of_one_that_is_forgotten_has_commands_of_its_own(runs):
    sent = {"sent": Sent(service="tools", ops=0, version=0), "seq": 1, "queued": False}
    first = runs.state("one").but(**sent)
    second = first.but(accepted_at="2026-01-02T00:00:00Z")
    for run in (first, second):
        assert not await runs.driver.is_out(run)
        await runs.driver.perform(run, outstanding(run))
        assert await runs.driver.is_out(run)


async def test_the_chunks_of_a_run_that_could_not_begin_end_and_its_end_is_not_behind_them(runs):
    outbox = Outbox(runs.bus, runs.tenant, "one", 0, live=True, fence=fence_of(0, 2))
    failure = Failure(code="INVALID_REQUEST", message="no")
    await runs.driver.failed(outbox, runs.tenant, "one", "a", failure, fingerprint="f")
    await outbox.kept()
    stored = runs.bus.stored.messages("CHUNKS", subjects.chunk(runs.tenant, "one"))
    (batch,) = [orjson.loads(body) async for _, body in stored]
    assert ([chunk["type"] for chunk in batch["chunks"]], batch["end"]) == (["error"], True)
    (event,) = await runs.told("one", "run.finished")
    assert (event["fence"], event["fingerprint"]) == (batch["fence"], "f")


async def test_a_run_that_could_not_begin_counts_among_those_that_failed(runs):
    meters, failure = Meters(), Failure(code="UNKNOWN_AGENT", message="no")
    with installed(LiveObserver(Spans(None), meters)):
        for _ in range(2):
            outbox = Outbox(runs.bus, runs.tenant, "one", 0, live=True)
            await runs.driver.failed(outbox, runs.tenant, "one", "a", failure, fingerprint="f")
    number = meters.registry.get_sample_value
    assert number("procession_runs_total", {"status": "failed"}) == 1
    assert number("procession_run_seconds_count", {"status": "failed"}) == 1


async def test_a_run_that_waits_for_a_person_leaves_its_line_and_one_that_goes_on_comes_back(runs):
    going = runs.state("one").but(sent=Sent(service="tools", ops=0, version=0), seq=2, life=8)
    line = line_of(going)
    states = {
        "going": going,
        "resumed": going,
        "leaps": going.but(leap=True),
        "waits": going.but(status="suspended", sent=None),
        "over": going.but(status="done", sent=None),
    }
    changes = {name: change(state, 1, resumed=name == "resumed") for name, state in states.items()}
    told = {name: (each.line, each.waits, each.finished, each.out) for name, each in changes.items()}
    assert told == {
        "going": ("", False, False, 2),
        "resumed": (line, False, False, 2),
        "leaps": ("", False, False, 2),
        "waits": (line, True, False, 0),
        "over": (line, False, True, 0),
    }
    assert (changes["going"].numbered_in, changes["leaps"].numbered_in) == (8, 0)


def test_a_run_for_which_nobody_decided_in_time_has_no_more_time_than_others_to_end():
    """Who ends it may die just then."""
    waits = make_state(make_plan()).but(status="suspended", deadline_ms=5, timeout_ms=600_000)
    ending, _ = reduce(waits, DeadlinePassed(7))
    _set_times(waits, ending)
    assert (ending.status, ending.deadline_ms) == ("running", 7 + 15_000)


def test_people_have_another_time_than_a_run_on_its_own_and_the_end_moves_no_deadline():
    going = make_state(make_plan(), timeout_ms=1_000, suspended_ms=1_000_000)
    now_ms = int(now().timestamp() * 1000)
    deadlines = []
    for before, after in (("running", "suspended"), ("suspended", "running"), ("running", "done")):
        state = going.but(status=after)
        _set_times(going.but(status=before), state)
        deadlines.append(state.deadline_ms)
    assert now_ms + 1_000_000 <= deadlines[0]
    assert now_ms + 1_000 <= deadlines[1] < now_ms + 1_000_000
    assert deadlines[2] == going.deadline_ms


async def nobody(_command: Any) -> None:
    """Does no command."""
