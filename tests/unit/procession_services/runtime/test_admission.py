"""The places in Redis, against a model of what they should be: queues in turns, and nothing lost or kept."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from procession_services.runtime.admission import CALLED, Called, Over, Places, Wanted
from procession_services.runtime.embedded import Endpoints
from procession_services.runtime.ledger import PICO, Ledger, day_of
from procession_services.runtime.redis_client import RedisClient, connect
from procession_services.runtime.run_records import Admission, Beginning, Saved, StateChange, StoredState
from procession_services.runtime.store import DEADLINES, RunStore, line_key, run_key

pytestmark = pytest.mark.integration

OPEN = Wanted(waiting=100, crowd=1000)
BEGINNING = Beginning(b"begun", b"plan", 1, 0)
TURN: dict[str, Any] = {
    "beginning": BEGINNING,
    "deadline_ms": 99,
    "wanted": OPEN,
    "queued": b"queued",
}
"""How a run asks that may have to wait for others on its thread."""


class Office:
    """A store and its places in a database of their own."""

    def __init__(self, redis: RedisClient) -> None:
        self.redis = redis
        self.store = RunStore(redis, ttl=600, finished_ttl=600, told_ttl=600)
        self.places = Places(redis)

    async def clear(self) -> None:
        keys = [key async for key in self.redis.scan_iter("procession:*")]
        if keys:
            await self.redis.delete(*keys)

    async def limit(
        self, in_all: int = 1000, by_default: int | None = None, **named: int | None
    ) -> tuple[Called, ...]:
        return await self.places.let_in(in_all=in_all, by_default=by_default, named=named)

    async def ask(self, tenant: str, run: str, wanted: Wanted = OPEN, *, queue: bool = True) -> Admission:
        """A request, as the orchestrator handles it."""
        asked: dict[str, Any] = {
            "beginning": BEGINNING, "deadline_ms": 99, "wanted": wanted,
        }  # fmt: skip
        known = await self.store.admit(tenant, run, **asked)
        if known.waits and queue:
            known = await self.store.admit(tenant, run, **asked, queued=b"queued")
        return known

    async def end(self, tenant: str, run: str, *, finished: bool = True) -> Saved:
        stored = await self.store.load_state(tenant, run)
        version = stored.version if stored else 0
        return await self.store.save_state(
            tenant, run, StateChange(version, b"over", 99, finished=finished, waits=not finished)
        )

    async def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        queues = await self.places.queues()
        return dict(queues.running), dict(queues.waiting)


@pytest_asyncio.fixture
async def office(servers: Endpoints) -> AsyncIterator[Office]:
    async with connect(f"{servers.redis_url.removesuffix('/0')}/9") as redis:
        office = Office(redis)
        await office.clear()
        yield office
        await office.clear()


async def test_a_run_holds_a_place_until_it_ends(office):
    await office.limit(in_all=1)
    assert not (await office.ask("a", "1")).waits
    assert await office.counts() == ({"a": 1}, {})
    assert (await office.end("a", "1")).called == ()
    assert await office.counts() == ({}, {})


async def test_a_run_without_a_place_is_not_saved_until_it_is_said_how_it_waits(office):
    await office.limit(in_all=1)
    await office.ask("a", "1")
    assert (await office.ask("a", "2", queue=False)).waits
    assert await office.store.load_state("a", "2") is None
    await office.ask("a", "2")
    assert await office.store.load_state("a", "2") == StoredState(1, b"queued", b"plan")
    assert await office.counts() == ({"a": 1}, {"a": 1})


async def test_a_place_that_is_given_back_goes_round_among_tenants(office):
    await office.limit(in_all=1)
    for tenant, run in ("a1", "a2", "a3", "a4", "b1", "c1", "b2"):
        await office.ask(tenant, run)
    order = [("a", "1")]
    while (saved := await office.end(*order[-1])).called:
        assert len(saved.called) == 1
        order.append((saved.called[0].tenant, saved.called[0].run))
    assert ["".join(each) for each in order] == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_a_tenant_at_its_limit_leaves_places_to_others(office):
    await office.limit(in_all=3, a=1)
    await office.ask("a", "1")
    await office.ask("a", "2")
    assert not (await office.ask("b", "1")).called
    assert await office.counts() == ({"a": 1, "b": 1}, {"a": 1})
    assert (await office.end("b", "1")).called == ()
    assert (await office.end("a", "1")).called == (Called("a", "2"),)


async def test_who_comes_later_does_not_overtake_its_own_queue(office):
    await office.limit(in_all=1)
    for run in ("1", "2"):
        await office.ask("a", run)
    await office.redis.hset("procession:admission:limits", "*", 2)  # more places, and nobody has looked yet
    known = await office.ask("a", "3")
    assert known.called == (Called("a", "2"),)


async def test_more_places_let_in_who_waits(office):
    await office.limit(in_all=9, by_default=1)
    for run in ("1", "2", "3"):
        await office.ask("a", run)
    assert await office.limit(in_all=9, by_default=2) == (Called("a", "2"),)
    assert await office.limit(in_all=9, by_default=1, a=None) == (Called("a", "3"),)


async def test_a_run_that_waits_for_a_person_gives_its_place_back_and_takes_one_when_it_goes_on(office):
    await office.limit(in_all=1)
    await office.ask("a", "1")
    await office.ask("b", "1")
    assert (await office.end("a", "1", finished=False)).called == (Called("b", "1"),)
    assert await office.counts() == ({"b": 1}, {})
    await office.store.save_state("a", "1", StateChange(2, b"on again", 99, finished=False, resumed=True))
    assert await office.counts() == ({"a": 1, "b": 1}, {})
    assert (await office.end("b", "1")).called == ()
    await office.end("a", "1")
    assert await office.counts() == ({}, {})


async def test_the_end_of_a_run_that_waits_takes_it_from_its_queue(office):
    await office.limit(in_all=1)
    for run in ("1", "2", "3"):
        await office.ask("a", run)
    assert (await office.end("a", "2")).called == ()
    assert (await office.end("a", "1")).called == (Called("a", "3"),)


async def test_a_commit_that_ends_a_run_gives_its_place_to_the_next(office):
    await office.limit(in_all=1)
    await office.ask("a", "1")
    await office.ask("b", "1")
    await office.store.take_context("a", "1", seq=1, owner="me", attempt=1)
    done = await office.store.commit_context(
        "a", "1", version=0, seq=1, owner="me", data=b"{}", result=b"{}",
        change=StateChange(1, b"over", 99, finished=True),
    )  # fmt: skip
    assert done is not None
    assert (done.state_saved, done.called) == (True, (Called("b", "1"),))


async def test_a_command_that_ends_a_run_gives_its_place_to_the_next(office):
    await office.limit(in_all=1)
    await office.ask("a", "one")
    await office.ask("a", "two")
    await office.store.take_context("a", "one", seq=1, owner="me")
    ended = await office.store.end_run(
        "a", "one", version=0, seq=1, owner="me", change=StateChange(1, b"over", 99, finished=True)
    )
    assert ended == (Called("a", "two"),)


async def test_what_was_called_and_not_begun_is_called_again(office):
    await office.limit(in_all=1)
    await office.ask("a", "1")
    await office.ask("b", "1")
    await office.end("a", "1")  # and whoever saved it dies
    assert await office.limit(in_all=1) == ()
    await office.redis.zadd(CALLED, {"b 1": 1})
    assert await office.limit(in_all=1) == (Called("b", "1"),)
    await office.store.begun("b", "1")
    assert await office.limit(in_all=1) == ()


async def test_the_place_of_a_run_that_has_vanished_is_given_away(office):
    await office.limit(in_all=1)
    await office.ask("a", "1")
    await office.ask("b", "1")
    await office.redis.delete(run_key("a", "1"))
    assert await office.store.forget("a", "1") == (Called("b", "1"),)
    assert await office.redis.zscore(DEADLINES, "a 1") is None


async def test_the_same_request_again_takes_no_second_place(office):
    await office.limit(in_all=2)
    await office.ask("a", "1")
    assert (await office.ask("a", "1")).state == StoredState(1, b"begun", b"plan")
    assert await office.counts() == ({"a": 1}, {})


async def test_a_full_queue_refuses_and_tells_how_full_it_is(office):
    await office.limit(in_all=1)
    wanted = Wanted(waiting=1, crowd=2)
    for tenant, run in ("a1", "a2"):
        await office.ask(tenant, run, wanted)
    refused = (await office.ask("a", "3", wanted)).over
    assert refused is not None
    assert (refused.limit, refused.current) == ("waitingRuns", 1)
    await office.ask("b", "1", wanted)
    everybody = (await office.ask("c", "1", wanted)).over
    assert everybody is not None
    assert (everybody.limit, everybody.current) == ("waitingRunsInAll", 2)
    assert await office.store.load_state("a", "3") is None


async def test_a_request_above_the_rate_is_refused_and_told_when_to_come_back(office):
    await office.limit()
    slow = Wanted(waiting=9, crowd=9, rate=0.01)
    assert (await office.ask("a", "1", slow)).over is None
    refused = (await office.ask("a", "2", slow)).over
    assert refused is not None
    assert (refused.limit, refused.current) == ("requestsPerSecond", 1)
    assert 90_000 < refused.wait_ms <= 100_000
    assert (await office.ask("b", "1", slow)).over is None


async def test_the_requests_of_a_second_may_come_at_once(office):
    await office.limit(in_all=2)
    wanted = Wanted(waiting=9, crowd=9, rate=4.0)
    await office.redis.set("procession:admission:rate:a", "0")
    asked = [(await office.ask("a", str(n), wanted)).over for n in range(4)]
    assert asked == [None] * 4


async def test_a_day_that_is_used_up_refuses_until_the_next(office):
    await office.limit()
    noon = 1_800_000_000.0
    ledger = Ledger(office.redis, lambda: noon)
    for model in ("m/one", "m/two"):
        ledger.add("a", {"run": "r"}, model, {"inputTokens": 40, "outputTokens": 10}, 0.25)
    await ledger.drain()
    usage, left = day_of("a", noon)
    day = round(left * 1000)

    async def asked(run, **limits):
        return (await office.ask("a", run, Wanted(waiting=9, crowd=9, usage=usage, day=day, **limits))).over

    assert await asked("1", tokens=100) == Over("tokensPerDay", 100, day)
    assert await asked("1", cost=PICO // 2) == Over("costPerDay", PICO // 2, day)
    assert await asked("1", tokens=101, cost=PICO) is None


async def test_places_are_those_of_the_replicas_that_live(office):
    await office.places.offer("r1", 10)
    await office.places.offer("r2", 5)
    await office.places.offer("r2", 5)
    assert await office.places.offered() == 15
    await office.places.withdraw("r1", 10)
    await office.redis.zadd("procession:admission:capacity", {"5 r2": 1})
    assert await office.places.offered() == 0


TENANTS = "abc"
KINDS = ["ask", "ask", "ask", "end", "wait", "cancel", "limit"]
OPERATIONS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 99)))


class Book:
    """What must hold of queues and turns, kept in the simplest way."""

    def __init__(self) -> None:
        self.running: list[tuple[str, str]] = []
        self.queues: dict[str, list[str]] = defaultdict(list)
        self.passed: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.in_all, self.own = 2, 2

    def may(self, tenant: str) -> bool:
        mine = sum(1 for other, _ in self.running if other == tenant)
        return len(self.running) < self.in_all and mine < self.own

    def begins(self, called: Called) -> None:
        tenant = called.tenant
        assert self.may(tenant), "more run than may"
        assert self.queues[tenant].pop(0) == called.run, "somebody has overtaken in his own queue"
        self.running.append((tenant, called.run))
        self.passed.pop(tenant, None)
        for other in TENANTS:
            if other != tenant and self.queues[other] and self.may_by_own(other):
                self.passed[other][tenant] += 1
                assert self.passed[other][tenant] <= 1 + self.lines_behind, "turns do not go round"

    lines_behind = 1
    """A tenant that was at its limit joins the round at its end, so it may be passed once more."""

    def may_by_own(self, tenant: str) -> bool:
        return sum(1 for other, _ in self.running if other == tenant) < self.own

    def idle(self) -> bool:
        return not any(self.queues[tenant] and self.may(tenant) for tenant in TENANTS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(operations=OPERATIONS)
def test_whatever_happens_no_place_is_lost_and_turns_go_round(servers, operations):
    asyncio.run(_played(servers.redis_url, operations))


async def _played(url: str, operations: list[tuple[str, int]]) -> None:
    async with connect(f"{url.removesuffix('/0')}/9") as redis:
        office, book = Office(redis), Book()
        await office.clear()
        await office.limit(in_all=2, by_default=2)
        for number, (what, pick) in enumerate(operations):
            for called in await _one(office, book, what, pick, str(number)):
                book.begins(called)
            assert book.idle(), "a place is free, and somebody waits"
            running, waiting = await office.counts()
            assert sum(running.values()) == len(book.running)
            assert waiting == {tenant: len(queue) for tenant, queue in book.queues.items() if queue}
        await office.clear()


async def _one(office: Office, book: Book, what: str, pick: int, name: str) -> tuple[Called, ...]:
    tenant = TENANTS[pick % 3]
    match what:
        case "ask":
            before = await office.counts()
            known = await office.ask(tenant, name)
            begun = not known.called and (await office.counts())[0] != before[0]
            (book.running.append((tenant, name)) if begun else book.queues[tenant].append(name))
            return known.called
        case "end" | "wait" if book.running:
            ended = book.running.pop(pick % len(book.running))
            return (await office.end(*ended, finished=what == "end")).called
        case "cancel" if book.queues[tenant]:
            gone = book.queues[tenant].pop(pick % len(book.queues[tenant]))
            return (await office.end(tenant, gone)).called
        case "limit":
            book.in_all, book.own = 1 + pick % 4, 1 + pick % 3
            return await office.limit(in_all=book.in_all, by_default=book.own)
        case _:
            return ()


async def test_a_run_behind_others_on_its_thread_takes_a_place_when_it_is_its_turn_there(office):
    await office.limit(in_all=1)
    line = line_key("a", "ann", "t")
    assert not (await office.store.admit("a", "1", **TURN, line=line)).queued
    assert (await office.store.admit("a", "2", **TURN, line=line)).queued
    await office.ask("b", "1")
    assert await office.counts() == ({"a": 1}, {"a": 1, "b": 1})
    ended = StateChange(1, b"over", 99, finished=True, line=line)
    assert (await office.store.save_state("a", "1", ended)).called == (Called("b", "1"),)
    assert await office.store.next_in_line("a", line) == "2"
    assert await office.store.enter("a", "2") == ()
    assert await office.store.enter("a", "2") == ()
    assert await office.counts() == ({"b": 1}, {"a": 1})
    assert (await office.end("b", "1")).called == (Called("a", "2"),)
    assert await office.store.enter("a", "2") == ()
    await office.end("a", "2")
    assert await office.counts() == ({}, {})


async def test_a_run_that_ends_behind_others_on_its_thread_waits_no_more(office):
    await office.limit()
    line = line_key("a", "ann", "t")
    for run in ("1", "2"):
        await office.store.admit("a", run, **TURN, line=line)
    await office.end("a", "2")
    assert await office.counts() == ({"a": 1}, {})


async def test_a_run_that_wants_its_thread_alone_is_not_admitted_behind_another(office):
    await office.limit(in_all=1)
    line = line_key("a", "ann", "t")
    fields: dict[str, Any] = {
        "beginning": BEGINNING,
        "deadline_ms": 99,
        "wanted": OPEN,
        "line": line,
    }
    await office.store.admit("a", "1", **fields, policy="reject")
    assert (await office.store.admit("a", "2", **fields, policy="reject", queued=b"queued")).ahead == "1"
    assert await office.counts() == ({"a": 1}, {})
