"""The line of a thread in Redis: who joins it, who leaves it, and who is first."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from procession_schemas.memory import Concurrency
from procession_services.runtime.admission import PLACED, Wanted
from procession_services.runtime.embedded import Endpoints
from procession_services.runtime.redis_client import connect
from procession_services.runtime.run_records import (
    Admission,
    Beginning,
    Committed,
    Stand,
    StateChange,
    StoredState,
    after_commit,
)
from procession_services.runtime.store import ANSWER_SECONDS, DEADLINES, RunStore, line_key, run_key
from tests.support.waiting import until

pytestmark = pytest.mark.integration
FAR = 4_000_000_000_000
"""A deadline that no orchestrator of another test comes to."""
BEGINNING = Beginning(state=b"begun", plan=b"plan", out=1, numbered_in=7)
STALE = StateChange(99, b"", FAR, finished=False)
"""Of a version that the state has not."""


class Thread:
    """Runs on one thread, as the services move them."""

    def __init__(self, redis: Any) -> None:
        self.redis, self.store = redis, RunStore(redis, ttl=60, finished_ttl=30, told_ttl=90)
        self.tenant = f"t-{secrets.token_hex(6)}"
        self.line = line_key(self.tenant, "ann", "t")

    async def admit(
        self,
        run: str,
        *,
        policy: Concurrency = "queue",
        asked: str = "",
        until: float | None = None,
        beginning: Beginning = BEGINNING,
    ) -> Admission:
        return await self.store.admit(
            self.tenant, run, beginning=beginning, deadline_ms=FAR, wanted=Wanted(waiting=99, crowd=99),
            line=self.line, policy=policy, asked=asked, queued=b"" if policy == "reject" else b"waits",
            until=until,
        )  # fmt: skip

    async def state(self, run: str) -> bytes | None:
        stored = await self.store.load_state(self.tenant, run)
        return stored.state if stored else None

    async def save(self, run: str, *, done: bool = False, resumed: bool = False, line: bool = True) -> bool:
        stored = await self.store.load_state(self.tenant, run)
        assert stored is not None
        saved = await self.store.save_state(
            self.tenant,
            run,
            StateChange(stored.version, b"next", FAR, done, self.line if line else "", resumed),
        )
        return saved.saved

    async def runs(self) -> list[str]:
        return [key.decode().rpartition(":")[2] for key in await self.redis.lrange(self.line, 0, -1)]

    async def first(self) -> str | None:
        return await self.store.next_in_line(self.tenant, self.line)


@pytest_asyncio.fixture
async def thread(servers: Endpoints) -> AsyncIterator[Thread]:
    async with connect(servers.redis_url) as redis:
        yield Thread(redis)


async def test_a_redis_that_is_slow_to_tell_its_time_gives_nobody_more_of_it(thread: Thread) -> None:
    clock, asked = asyncio.get_running_loop().time, list[float]()

    async def slow(*, args: list[int], **_: Any) -> Any:
        await asyncio.sleep(0.2)
        asked.append(args[-1] - clock() * 1000 - 60_000)
        return [b"late", round(clock() * 1000) + 60_000] if len(asked) == 1 else None

    await thread.store._in_time(slow, [], [])
    assert asked[-1] <= ANSWER_SECONDS * 1000 - 200 + 1


async def test_who_asks_twice_has_no_more_time_for_that(thread: Thread) -> None:
    """A request that finds no place is asked for once more, as one that waits, and told of both together."""
    now = asyncio.get_running_loop().time()
    assert await thread.admit("one", until=now + 60) == Admission()
    with pytest.raises(TimeoutError):
        await thread.admit("two", until=now - 0.1)
    assert await thread.state("two") is None


@pytest.mark.parametrize("ahead_ms", [-1e9, 1e9])
async def test_a_clock_of_redis_that_was_set_keeps_nobody_out(thread: Thread, ahead_ms: float) -> None:
    assert await thread.admit("one") == Admission()
    thread.store._ahead_ms += ahead_ms
    assert (await thread.admit("two")).queued
    thread.store._ahead_ms += ahead_ms
    assert await thread.store.refuse(thread.tenant, "three", "digest") == Admission()
    assert (await thread.store.refuse(thread.tenant, "three", "other")).refused == "digest"


async def test_the_first_run_begins_and_the_next_ones_wait_in_order(thread: Thread) -> None:
    assert await thread.admit("one") == Admission()
    assert (await thread.admit("two")).queued
    assert (await thread.admit("three")).queued
    assert [await thread.state(run) for run in ("one", "two", "three")] == [b"begun", b"waits", b"waits"]
    assert await thread.runs() == ["one", "two", "three"]
    assert await thread.store.ahead(thread.tenant, "three", thread.line) == ["one", "two"]
    assert await thread.store.ahead(thread.tenant, "elsewhere", thread.line) == []


def asked(number: int, second: int | None = None) -> str:
    """As `Delivery.place`: a number in RUNS, and when."""
    return f"{number}:2026-01-01T00:00:{number if second is None else second:02}+00:00"


async def test_who_was_asked_for_earlier_waits_before_those_that_were_accepted_earlier(
    thread: Thread,
) -> None:
    for number in (1, 4, 5, 2, 6, 3):
        await thread.admit(str(number), asked=asked(number))
    assert await thread.runs() == ["1", "2", "3", "4", "5", "6"]


async def test_nobody_gets_before_who_is_first_in_line(thread: Thread) -> None:
    for number in (3, 4, 2, 1):
        await thread.admit(str(number), asked=asked(number))
    assert await thread.runs() == ["3", "1", "2", "4"]
    assert await thread.state("3") == b"begun"


@pytest.mark.parametrize(
    "place", [asked(1, 9), asked(9, 1), ""], ids=["stream made anew", "clock behind", "of another version"]
)
async def test_who_is_not_surely_earlier_waits_behind(thread: Thread, place: str) -> None:
    for number in (3, 4):
        await thread.admit(str(number), asked=asked(number))
    assert not (await thread.admit("other", asked=place)).cancelled
    assert await thread.runs() == ["3", "4", "other"]


@pytest.mark.parametrize("over", [True, False], ids=["ended", "at work"])
async def test_who_comes_after_a_later_run_that_interrupts_is_cancelled(
    thread: Thread, *, over: bool
) -> None:
    assert not (await thread.admit("3", asked=asked(3), policy="interrupt")).cancelled
    if over:
        await thread.save("3", done=True)
    late = await thread.admit("2", asked=asked(2), policy="interrupt")
    assert (late.cancelled, late.queued) == (True, not over)
    assert await thread.store.is_cancelled(thread.tenant, "2"), "whoever takes over knows it, too"
    assert not (await thread.admit("4", asked=asked(4))).cancelled
    assert (await thread.admit("1", asked=asked(1))).cancelled, "the late one did not undo it"


async def test_a_run_that_will_not_wait_leaves_nothing(thread: Thread) -> None:
    await thread.admit("one")
    assert (await thread.admit("two", policy="reject")).ahead == "one"
    assert await thread.state("two") is None
    assert await thread.runs() == ["one"]


async def test_a_run_that_comes_again_keeps_its_place(thread: Thread) -> None:
    for run in ("one", "two", "three"):
        await thread.admit(run)
    assert (await thread.admit("two")).state == StoredState(1, b"waits", b"plan")
    assert await thread.runs() == ["one", "two", "three"]


async def test_a_run_leaves_with_the_save_that_ends_it_and_with_no_other(thread: Thread) -> None:
    await thread.admit("one")
    await thread.admit("two")
    assert await thread.save("one", line=False)
    assert await thread.runs() == ["one", "two"]
    stale = StateChange(0, b"next", FAR, True, thread.line)
    assert not (await thread.store.save_state(thread.tenant, "one", stale)).saved
    assert await thread.runs() == ["one", "two"]
    assert await thread.save("one", done=True)
    assert await thread.runs() == ["two"]


async def test_a_run_leaves_with_the_commit_that_ends_it(thread: Thread) -> None:
    await thread.admit("one")
    await thread.store.take_context(thread.tenant, "one", seq=1, owner="me")
    done = await thread.store.commit_context(
        thread.tenant, "one", version=0, seq=1, owner="me", data=b"{}", result=b"{}",
        change=StateChange(1, b"done", FAR, True, thread.line),
    )  # fmt: skip
    assert done is not None
    assert done.state_saved
    assert await thread.runs() == []


async def test_a_run_that_goes_on_is_ahead_of_all(thread: Thread) -> None:
    await thread.admit("one")
    await thread.save("one")  # it waits for a person
    await thread.admit("two")
    assert await thread.state("two") == b"begun"
    await thread.admit("three")
    await thread.save("one", resumed=True)
    assert await thread.runs() == ["one", "two", "three"]


async def test_who_has_begun_is_not_begun_again(thread: Thread) -> None:
    await thread.admit("one")
    await thread.admit("two")
    await thread.store.take_context(thread.tenant, "one", seq=1, owner="me")
    assert await thread.first() is None
    await thread.save("one", done=True)
    assert await thread.first() == "two"
    assert await thread.first() == "two", "whoever asked may have died"
    await thread.save("two", done=True)
    assert await thread.first() is None


async def test_a_command_is_taken_from_the_owner_who_was_asked_and_from_no_other_one(thread: Thread) -> None:
    await thread.admit("one")

    async def took(owner: str, instead_of: str | None) -> bool:
        took = await thread.store.take_context(
            thread.tenant, "one", seq=1, owner=owner, attempt=2, instead_of=instead_of
        )
        return took is not None

    assert await took("a", "")
    assert not await took("b", ""), "nobody had it when it was asked for, and now somebody has"
    assert await took("b", "a")
    assert not await took("c", "a")
    assert await took("b", "a"), "Redis was asked twice"
    assert await took("c", None)


async def test_claims_of_a_command_are_counted_whatever_nats_says_of_its_deliveries(thread: Thread) -> None:
    await thread.admit("one")

    async def claims(seq: int, owner: str, attempt: int = 0) -> int | None:
        took = await thread.store.take_context(thread.tenant, "one", seq=seq, owner=owner, attempt=attempt)
        return None if took is None else took.claims

    assert [await claims(1, "a", 1), await claims(1, "b"), await claims(1, "c", 1)] == [1, 2, None]
    assert await claims(1, "d", 5) == 5, "it was delivered to some who died before they claimed it"
    assert await claims(1, "e", 2) == 6, "and now NATS has forgotten that"
    await thread.store.save_state(thread.tenant, "one", StateChange(1, b"next", FAR, False, out=2))
    assert await thread.store.times_begun(thread.tenant, "one", 1) == 4
    assert await claims(2, "a") == 1
    assert [await thread.store.times_begun(thread.tenant, "one", seq) for seq in (1, 2)] == [0, 1]


async def test_it_is_known_in_which_life_of_redis_a_command_got_its_number(thread: Thread) -> None:
    await thread.admit("one")

    async def numbered_in(seq: int) -> int | None:
        took = await thread.store.take_context(thread.tenant, "one", seq=seq, owner="me")
        return None if took is None else took.numbered_in

    assert await numbered_in(1) == 7
    change = StateChange(1, b"next", FAR, False, out=2, numbered_in=8)
    await thread.store.save_state(thread.tenant, "one", change)
    assert await numbered_in(2) == 8


async def test_a_claim_is_one_on_the_command_that_it_was_made_for(thread: Thread) -> None:
    await thread.admit("one")
    assert await thread.store.claimed_by(thread.tenant, "one", 1) is None
    await thread.store.take_context(thread.tenant, "one", seq=1, owner="me")
    assert await thread.store.claimed_by(thread.tenant, "one", 1) == "me"
    assert await thread.store.claimed_by(thread.tenant, "one", 2) is None


def _claimed(owner: str) -> Beginning:
    return replace(BEGINNING, claimed_by=owner)


async def test_who_is_to_do_the_first_command_of_a_run_has_claimed_it_where_the_run_begins(
    thread: Thread,
) -> None:
    first, waits = _claimed("me"), _claimed("another")
    assert await thread.admit("one", beginning=first) == Admission()
    assert (await thread.admit("two", beginning=waits)).queued
    assert await thread.store.claimed_by(thread.tenant, "one", 1) == "me"
    assert await thread.store.claimed_by(thread.tenant, "two", 1) is None
    taken = await thread.store.take_context(thread.tenant, "one", seq=1, owner="another", attempt=1)
    assert taken is None
    taken = await thread.store.take_context(thread.tenant, "one", seq=1, owner="me")
    assert taken == replace(first.stored(), claims=2)
    assert await thread.store.times_begun(thread.tenant, "one", 1) == 2


@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_next_command_is_claimed_with_the_state_that_wants_it(
    thread: Thread, cancelled: bool
) -> None:
    await thread.admit("one")
    before = await thread.store.take_context(thread.tenant, "one", seq=1, owner="me")
    assert before is not None
    if cancelled:
        await thread.store.mark_cancelled(thread.tenant, "one")
    change = StateChange(1, b"next", FAR, False, out=2, numbered_in=8, claimed_by="next")
    about: dict[str, Any] = {"version": 0, "seq": 1, "owner": "me", "data": b'{"a":1}', "result": b"{}"}
    done = await thread.store.commit_context(thread.tenant, "one", **about, change=change)
    assert done == Committed(b"{}", state_saved=True, cancelled=cancelled)
    assert await thread.store.claimed_by(thread.tenant, "one", 2) == "next"
    after = after_commit(before, b'{"a":1}', change, cancelled=cancelled)
    taken = await thread.store.take_context(thread.tenant, "one", seq=2, owner="next")
    assert taken is not None
    assert replace(taken, result=None) == replace(after, claims=2)


async def test_the_first_result_of_a_command_counts(thread: Thread) -> None:
    await thread.admit("one")
    about: dict[str, Any] = {"version": 0, "seq": 1, "owner": "me", "data": b"{}", "change": STALE}
    await thread.store.take_context(thread.tenant, "one", seq=1, owner="me")
    for result in (b"first", b"second"):
        done = await thread.store.commit_context(thread.tenant, "one", **about, result=result)
        assert done == Committed(b"first", state_saved=False)


async def test_a_run_may_be_cancelled_before_it_is_accepted(thread: Thread) -> None:
    assert not await thread.store.is_cancelled(thread.tenant, "one")
    await thread.store.mark_cancelled(thread.tenant, "one")
    assert await thread.store.is_cancelled(thread.tenant, "one")
    assert await thread.admit("one") == Admission(cancelled=True)


async def test_when_the_end_of_a_run_was_told_its_id_is_taken_and_it_has_no_deadline(thread: Thread) -> None:
    await thread.admit("one")
    await thread.save("one", done=True)
    thread.store.mark_told(thread.tenant, "one", "digest")
    await thread.redis.settled()
    assert await thread.redis.zscore(DEADLINES, f"{thread.tenant} one") is None
    assert await thread.store.is_told(thread.tenant, "one")
    assert not await thread.store.is_told(thread.tenant, "two")
    await thread.redis.delete(run_key(thread.tenant, "one"))
    assert await thread.admit("one") == Admission(told="digest")
    assert 80 < await thread.redis.ttl(f"{run_key(thread.tenant, 'one')}:told") <= 90


async def test_who_speaks_for_runs_learns_how_each_of_them_stands(
    thread: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the question, however many are asked for at once."""
    monkeypatch.setattr("procession_services.runtime.store._AT_ONCE", 2)
    for run in ("begun", "passed", "claimed", "told"):
        thread.line = line_key(thread.tenant, "ann", run)
        assert await thread.admit(run) == Admission()
    for run in ("claimed", "passed"):
        await thread.store.take_context(thread.tenant, run, seq=1, owner="me")
    await thread.redis.hset(run_key(thread.tenant, "passed"), "out", 2)
    thread.store.mark_told(thread.tenant, "told", "digest")
    await thread.redis.settled()
    runs = ("begun", "claimed", "gone", "told", "passed")
    assert await thread.store.stands([(thread.tenant, run) for run in runs]) == [
        Stand(told=False, owner=""),
        Stand(told=False, owner="me"),
        Stand(told=True, owner=""),
        Stand(told=True, owner=""),
        Stand(told=False, owner=""),
    ]
    assert await thread.store.stands([]) == []


async def test_the_earliest_deadlines_are_given_and_no_more_of_them(thread: Thread) -> None:
    runs = {f"{thread.tenant} {run}": deadline for run, deadline in (("three", 3), ("one", 1), ("two", 2))}
    await thread.redis.zadd(DEADLINES, runs)
    assert await thread.store.next_deadlines(2) == [(1, thread.tenant, "one"), (2, thread.tenant, "two")]
    await thread.redis.zrem(DEADLINES, *runs)


async def test_only_a_deadline_that_is_there_is_put_off_and_only_to_a_later_time(thread: Thread) -> None:
    await thread.admit("one")
    for deadline in (FAR + 1, FAR - 1):
        for run in ("one", "two"):
            await thread.store.put_off(thread.tenant, run, deadline)
    scores = [await thread.redis.zscore(DEADLINES, f"{thread.tenant} {run}") for run in ("one", "two")]
    assert scores == [FAR + 1, None]


@pytest.mark.parametrize(("admitted", "seq"), [(True, 2), (False, 1)])
async def test_a_command_that_the_run_does_not_wait_for_changes_nothing(
    thread: Thread, admitted: bool, seq: int
) -> None:
    """Redis may have forgotten the state that it followed from, or all of the run."""
    if admitted:
        await thread.admit("one")
        await thread.store.take_context(thread.tenant, "one", seq=1, owner="first")
    before = await thread.redis.hgetall(run_key(thread.tenant, "one"))
    taken = await thread.store.take_context(thread.tenant, "one", seq=seq, owner="me")
    assert taken is not None
    assert (taken.claims, taken.out) == (0, 1 if admitted else 0)
    done = await thread.store.commit_context(
        thread.tenant, "one", version=0, seq=seq, owner="me", data=b"{}", result=b"{}", change=STALE
    )
    assert done is None
    assert await thread.redis.hgetall(run_key(thread.tenant, "one")) == before


async def test_runs_that_are_at_work_have_a_deadline_or_a_place(thread: Thread) -> None:
    for run in ("one", "two"):
        await thread.admit(run)
    await thread.redis.zrem(DEADLINES, f"{thread.tenant} one")
    assert {run for tenant, run in await thread.store.at_work() if tenant == thread.tenant} == {"one", "two"}


async def test_runs_that_are_gone_keep_nobody(thread: Thread) -> None:
    for run in ("one", "two", "three"):
        await thread.admit(run)
    await thread.redis.delete(*(run_key(thread.tenant, run) for run in ("one", "two")))
    assert await thread.first() == "three"
    await thread.redis.delete(run_key(thread.tenant, "three"))
    assert await thread.admit("four") == Admission()


async def test_a_run_that_ended_before_its_turn_was_passed_to_it_gets_no_place(thread: Thread) -> None:
    await thread.admit("one")
    await thread.admit("two")
    await thread.save("one", done=True)
    assert await thread.first() == "two"
    await thread.save("two", done=True)  # whoever passes the turn is slow
    assert await thread.store.enter(thread.tenant, "two") == ()
    assert not await thread.redis.sismember(PLACED, f"{thread.tenant} two")


async def test_a_line_does_not_outlive_its_runs(thread: Thread) -> None:
    await thread.admit("one")
    assert 0 < await thread.redis.ttl(thread.line) <= await thread.redis.ttl(run_key(thread.tenant, "one"))


async def test_stream_parts_are_logged_in_order_and_do_not_outlive_their_run(thread: Thread) -> None:
    await thread.admit("r")
    for entry in (b"one", b"two"):
        await thread.store.append_parts(thread.tenant, "r", entry)
    assert await thread.store.load_parts(thread.tenant, "r", 0) == [b"one", b"two"]
    assert await thread.store.load_parts(thread.tenant, "r", 1) == [b"two"]
    parts = f"{run_key(thread.tenant, 'r')}:parts"
    assert 30 < await thread.redis.ttl(parts) <= await thread.redis.ttl(run_key(thread.tenant, "r"))


async def test_who_comes_late_logs_no_stream_parts(thread: Thread) -> None:
    """A replica that stood still until its run had ended, or was forgotten."""
    await thread.admit("one")
    await thread.save("one", done=True)
    for run in ("one", "nobody-knows"):
        await thread.store.append_parts(thread.tenant, run, b"late")
        assert await thread.store.load_parts(thread.tenant, run, 0) == []


async def test_a_run_that_waits_has_stream_parts(thread: Thread) -> None:
    await thread.admit("one")
    await thread.store.take_context(thread.tenant, "one", seq=1, owner="me")
    await thread.store.commit_context(
        thread.tenant, "one", version=0, seq=1, owner="me", data=b"{}", result=b"{}",
        change=StateChange(1, b"waits", FAR, False, thread.line, waits=True),
    )  # fmt: skip
    await thread.store.append_parts(thread.tenant, "one", b"part")
    assert await thread.store.load_parts(thread.tenant, "one", 0) == [b"part"]


async def test_stream_parts_are_logged_with_the_context_that_knows_of_them(thread: Thread) -> None:
    await thread.admit("one")
    await thread.store.take_context(thread.tenant, "one", seq=1, owner="me")
    for owner in ("another", "me", "me"):
        await thread.store.commit_context(
            thread.tenant, "one", version=0, seq=1, owner=owner, data=b"{}", result=b"{}", parts=b"part",
            change=StateChange(1, b"going", FAR, False, out=2),
        )  # fmt: skip
    assert await thread.store.load_parts(thread.tenant, "one", 0) == [b"part"]
    assert await thread.redis.ttl(f"{run_key(thread.tenant, 'one')}:parts") > 0
    await thread.store.take_context(thread.tenant, "one", seq=2, owner="me")
    await thread.store.commit_context(
        thread.tenant, "one", version=1, seq=2, owner="me", data=b"{}", result=b"{}", parts=b"more",
        change=STALE,
    )  # fmt: skip
    assert await thread.store.load_parts(thread.tenant, "one", 0) == [b"part", b"more"]


async def test_names_with_separators_are_different_lines() -> None:
    assert line_key("t", "a:b", "c") != line_key("t", "a", "b:c")


class TestTheEnd:
    """A command that ends the run stores no context, unless somebody may read it."""

    async def begun(self, thread: Thread) -> StateChange:
        await thread.admit("one")
        await thread.store.take_context(thread.tenant, "one", seq=1, owner="me")
        await thread.store.commit_context(
            thread.tenant, "one", version=0, seq=1, owner="me", data=b'{"a":1}', result=b"{}",
            change=StateChange(1, b"going", FAR, False, out=2),
        )  # fmt: skip
        await thread.store.take_context(thread.tenant, "one", seq=2, owner="me")
        return StateChange(2, b"done", FAR, True, thread.line)

    async def end(self, thread: Thread, change: StateChange, *, owner: str = "me", seq: int = 2) -> Any:
        return await thread.store.end_run(
            thread.tenant, "one", version=1, seq=seq, owner=owner, change=change
        )

    async def test_it_leaves_the_state_and_the_plan_and_nothing_else(self, thread: Thread) -> None:
        change = await self.begun(thread)
        assert await self.end(thread, change) == ()
        assert await thread.store.load_state(thread.tenant, "one") == StoredState(3, b"done", b"plan")
        kept = await thread.redis.hmget(
            run_key(thread.tenant, "one"), "ctx_v", "ctx_seq", "ctx", "ctx_result"
        )
        assert kept == [b"2", b"2", None, None]
        assert await thread.runs() == []

    async def test_it_is_the_end_once(self, thread: Thread) -> None:
        change = await self.begun(thread)
        await self.end(thread, change)
        assert await self.end(thread, change) is None

    @pytest.mark.parametrize("wrong", [{"owner": "other"}, {"seq": 1}])
    async def test_who_has_not_the_command_ends_nothing(self, thread: Thread, wrong: dict[str, Any]) -> None:
        change = await self.begun(thread)
        assert await self.end(thread, change, **wrong) is None
        assert await thread.state("one") == b"going"

    async def test_a_run_that_was_changed_meanwhile_keeps_its_context(self, thread: Thread) -> None:
        change = await self.begun(thread)
        await thread.save("one")
        assert await self.end(thread, change) is None
        assert await thread.redis.hget(run_key(thread.tenant, "one"), "ctx_seq") == b"1"
        assert await thread.store.load_context(thread.tenant, "one") == {"a": 1}
        assert await thread.state("one") == b"next"


async def test_a_plan_is_saved_where_it_has_become_another_one(thread: Thread) -> None:
    await thread.admit("one")
    change = StateChange(1, b"next", FAR, False, plan=b"made")
    assert (await thread.store.save_state(thread.tenant, "one", change)).saved
    assert await thread.store.load_state(thread.tenant, "one") == StoredState(2, b"next", b"made")
    await thread.save("one")
    assert await thread.store.load_state(thread.tenant, "one") == StoredState(3, b"next", b"made")


async def test_a_run_is_kept_beyond_its_deadline_and_nothing_shortens_that_before_its_end_was_told(
    thread: Thread,
) -> None:
    await thread.admit("one")
    far = FAR / 1000 - time.time() - 60
    keys = [run_key(thread.tenant, "one"), f"{run_key(thread.tenant, 'one')}:parts"]
    assert far < await thread.redis.ttl(keys[0]) <= far + 121
    await thread.store.append_parts(thread.tenant, "one", b"part")
    await thread.store.take_context(thread.tenant, "one", seq=1, owner="me")
    await thread.store.commit_context(
        thread.tenant, "one", version=0, seq=1, owner="me", data=b"{}", result=b"{}",
        change=StateChange(1, b"waits", FAR, False, thread.line, waits=True),
    )  # fmt: skip
    await thread.store.mark_cancelled(thread.tenant, "one")
    await thread.store.append_parts(thread.tenant, "one", b"part")
    assert [far < await thread.redis.ttl(key) <= far + 121 for key in keys] == [True, True]
    await thread.save("one", done=True)
    assert far < await thread.redis.ttl(keys[0]) <= far + 121
    thread.store.mark_told(thread.tenant, "one", "digest")
    await thread.redis.settled()
    assert 0 < await thread.redis.ttl(keys[0]) <= 30


async def test_of_each_note_on_the_end_of_a_run_that_fails_its_own_is_told(
    servers: Endpoints, caplog: Any
) -> None:
    redis: Any = connect(servers.redis_url)
    RunStore(redis, ttl=60, finished_ttl=30, told_ttl=90).mark_told("acme", "one", "digest")
    await redis.aclose()
    await until(lambda: len(caplog.records) == 3)
    told = [record.getMessage() for record in caplog.records]
    assert ["run one" in each for each in told] == [True] * 3
    assert ["deadline" in each for each in told] == [False, True, False]
    assert len({*told}) == len(told)


async def test_who_comes_late_to_a_deadline_finds_the_run_however_short_runs_are_kept(thread: Thread) -> None:
    store = RunStore(thread.redis, ttl=1, finished_ttl=1, told_ttl=1)
    change = StateChange(0, b"going", int(time.time() * 1000) + 600_000, finished=False)
    await store.save_state(thread.tenant, "one", change)
    assert await thread.redis.ttl(run_key(thread.tenant, "one")) > 630


async def test_of_a_run_that_is_discarded_nothing_is_left(thread: Thread) -> None:
    for run in ("one", "two"):
        await thread.admit(run)
    await thread.store.append_parts(thread.tenant, "one", b"part")
    await thread.store.discard(thread.tenant, "one")
    assert await thread.redis.zscore(DEADLINES, f"{thread.tenant} one") is None
    assert await thread.redis.keys(f"{run_key(thread.tenant, 'one')}*") == []
    assert await thread.first() == "two"
    assert {run for tenant, run in await thread.store.at_work() if tenant == thread.tenant} == {"two"}


async def test_of_an_id_that_is_taken_no_request_is_refused(thread: Thread) -> None:
    """Somebody may have it accepted between a refusal's look and its note."""
    await thread.admit("one")
    assert await thread.store.refuse(thread.tenant, "one", "d") == Admission(
        StoredState(1, b"begun", b"plan")
    )
    assert await thread.redis.hget(run_key(thread.tenant, "one"), "refused") is None


async def test_what_was_refused_first_counts_as_long_as_its_end_can_be_read(thread: Thread) -> None:
    assert await thread.store.refuse(thread.tenant, "one", "first") == Admission()
    assert 80 < await thread.redis.ttl(run_key(thread.tenant, "one")) <= 90
    for digest in ("first", "second"):
        assert await thread.store.refuse(thread.tenant, "one", digest) == Admission(refused="first")
    assert (await thread.admit("one")).refused == "first"


async def test_a_cancel_makes_redis_keep_nothing_for_longer(thread: Thread) -> None:
    await thread.admit("over")
    await thread.save("over", done=True)
    thread.store.mark_told(thread.tenant, "over", "digest")
    await thread.redis.settled()
    for run in ("over", "unknown"):
        await thread.store.mark_cancelled(thread.tenant, run)
    left = [await thread.redis.ttl(run_key(thread.tenant, run)) for run in ("over", "unknown")]
    assert [0 < left[0] <= 30, 30 < left[1] <= 60] == [True, True]
