"""Commands that are somebody else's, were done before, or are done again."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from procession.errors import (
    BrokenComponentError,
    InvalidOptionsError,
    ProcessorError,
    UnknownComponentError,
)
from procession.messages import InvalidMessageError
from procession.registry import Registry
from procession_schemas import subjects
from procession_schemas.holders import HolderAnswer, HolderQuestion
from procession_schemas.run import Failure, Tripwire
from procession_schemas.validation import RefusedError
from procession_schemas.work import ANY_VERSION, Control, StepFacts, WorkCommand, WorkResult
from procession_services.bus import Bus, Delivery, Hold, LostError
from procession_services.bus.streams import ensure_streams
from procession_services.processor_host import driver, executor, holders
from procession_services.processor_host.driver import failed_result
from procession_services.processor_host.errors import Cancelled, Stopped, Suspended
from procession_services.processor_host.executor import Executor
from procession_services.processor_host.instances import Instances
from procession_services.processor_host.job import Job, OpRunner, id_maker, restore
from procession_services.processor_host.ops import RUNNERS
from procession_services.processor_host.outbox import Outbox
from procession_services.runs.events import Started
from procession_services.runs.numbering import fence_of
from procession_services.runs.program import LOCAL
from procession_services.runs.program import command as command_of
from procession_services.runs.reducer import reduce
from procession_services.runs.state import RunState
from procession_services.runs.stored import read_state
from procession_services.runtime.admission import Wanted
from procession_services.runtime.redis_client import connect
from procession_services.runtime.replicas import Replicas
from procession_services.runtime.run_records import Beginning, StateChange
from procession_services.runtime.store import RunStore, run_key
from procession_services.runtime.tasks import spawned
from tests.support.waiting import eventually, until
from tests.unit.procession_services.runs.driving import make_plan, make_state

pytestmark = pytest.mark.integration
FAR = 4_000_000_000_000
MOST = 3
SECONDS = 20
Doing = Callable[[Job], Awaitable[None]]


async def nothing(_job: Job) -> None:
    """What a service does whose operations are over at once."""


class Replica:
    """An executor, some of whose operations do what the test says first, and a run with a command for it."""

    def __init__(self, bus: Bus, redis: Any, name: str = "here") -> None:
        self.bus, self.redis = bus, redis
        self.tenant, self.run = f"t-{secrets.token_hex(6)}", "r"
        self.store = RunStore(redis, ttl=60, finished_ttl=30, told_ttl=90)
        self.doing: Doing = nothing
        self.emitting: Doing = nothing
        self.begun: list[int] = []
        nobody: Any = None
        runners: dict[str, OpRunner] = {"open": self._begin, "emit": self._emit, "result": self._begin}
        runners["model"] = self._model
        self.executor = Executor(
            LOCAL,
            bus,
            self.store,
            Instances(Registry()),
            nobody,
            max_deliver=MOST,
            replica=name,
            runners=runners,
        )

    async def _begin(self, op: Any, job: Job) -> None:
        self.begun.append(job.command.seq)
        await self.doing(job)
        await RUNNERS[op.op](op, job)

    async def _model(self, _op: Any, job: Job) -> None:
        self.begun.append(job.command.seq)
        raise RefusedError("NO_MODEL", "there is none")

    async def _emit(self, op: Any, job: Job) -> None:
        await self.emitting(job)
        await RUNNERS[op.op](op, job)

    async def accept(self, *, service: str = LOCAL, goes_on: bool = False, **sent: Any) -> WorkCommand:
        """A run that was cancelled before it had its turn, so that all that is left is its result, or that goes on."""
        own = {"run": self.run, "tenant": self.tenant, "deadline_ms": FAR, "queued": True}
        waits = make_state(make_plan()).but(**own)
        state, _ = reduce(waits, Started() if goes_on else Control(type="cancel"))
        assert state.sent is not None
        state.sent = state.sent.but(service=service, **sent)
        await self.redis.ping()
        state.life = self.store.life
        await self.store.admit(
            self.tenant, self.run, deadline_ms=FAR, wanted=Wanted(waiting=99, crowd=99),
            beginning=Beginning(state.to_json(), state.plan.stored, state.seq, state.life),
        )  # fmt: skip
        return command_of(state, state.sent)

    def takes_what_follows(self) -> None:
        """Has it do the commands of other services, too, as in one process with them."""
        self.executor.driver.takes = lambda service: None if service == LOCAL else self.executor

    def delivery(self, command: WorkCommand, attempt: int = 1, hold: Hold | None = None) -> Delivery:
        return Delivery(
            subject=subjects.work(command.service, self.tenant, self.run), body=command.to_json(), sequence=1,
            attempt=attempt, message_id=None, stored_at="", traceparent=None, hold=hold or Hold(),
        )  # fmt: skip

    async def taken_by_another(self, job: Job) -> None:
        """Somebody takes the command over, and dies."""
        self.doing = nothing
        await self.store.take_context(
            self.tenant, self.run, seq=job.command.seq, owner="gone.x.tools", attempt=2
        )

    async def answered_by_another(self, command: WorkCommand) -> None:
        """Somebody stores a result, and dies before it can be taken into the run."""
        failed = failed_result(command, Failure(code="WORK_FAILED", message="no"))
        about: dict[str, Any] = {"seq": command.seq, "owner": "gone.x.tools"}
        await self.store.take_context(self.tenant, self.run, attempt=2, **about)
        data = restore(command, None, id_maker(command)).to_json()
        await self.store.commit_context(
            self.tenant, self.run, version=0, **about, data=data, result=failed.to_json(),
            change=StateChange(0, b"{}", 0, finished=False),
        )  # fmt: skip

    async def saved_by_another(self, _job: Job) -> None:
        """Somebody saves the state anew."""
        stored = await self.store.load_state(self.tenant, self.run)
        assert stored is not None
        await self.store.save_state(
            self.tenant, self.run, driver.change(read_state(stored.state, stored.plan), stored.version)
        )

    async def batches(self) -> list[dict[str, Any]]:
        """What clients get of the run's chunks."""
        stored = self.bus.stored.messages("CHUNKS", subjects.chunk(self.tenant, self.run))
        return [orjson.loads(body) async for _, body in stored]

    async def state(self) -> RunState:
        stored = await self.store.load_state(self.tenant, self.run)
        assert stored is not None
        return read_state(stored.state, stored.plan)


@pytest.fixture
async def replica(servers, monkeypatch):
    monkeypatch.setattr(holders, "_ASK_SECONDS", 0.1)
    bus = await Bus.connect(servers.nats_url, "test")
    await ensure_streams(bus.js)
    async with connect(servers.redis_url) as redis:
        replica = Replica(bus, redis)
        yield replica
        await replica.store.discard(replica.tenant, replica.run)
    await bus.close()


async def test_who_lost_the_end_of_a_run_to_somebody_who_died_ends_it(replica):
    command = await replica.accept()
    replica.doing = replica.taken_by_another
    await replica.executor.execute(command)
    assert (await replica.state()).status == "done"
    assert replica.begun.count(command.seq) == 2


@pytest.mark.parametrize("heard", [True, False])
async def test_what_was_done_is_kept_while_redis_is_away_and_not_done_again(replica, monkeypatch, heard):
    command, store, tried = await replica.accept(), replica.store.end_run, []

    async def away(*whose, **about):
        tried.append(whose)
        if len(tried) < 3 and heard:
            raise RedisConnectionError
        done = await store(*whose, **about)
        if len(tried) < 2:  # it is done, and the answer is lost
            raise RedisTimeoutError
        return done

    monkeypatch.setattr(replica.store, "end_run", away)
    await replica.executor.execute(command, replica.delivery(command))
    assert replica.begun.count(command.seq) == 1
    assert len(tried) == (3 if heard else 2)
    assert (await replica.state()).status == "done"


async def test_who_loses_a_command_while_redis_is_away_says_so(replica, monkeypatch):
    command, hold = await replica.accept(), Hold()

    async def away(*_whose, **_about):
        hold.lose()
        raise RedisConnectionError

    monkeypatch.setattr(replica.store, "end_run", away)
    with pytest.raises(LostError):
        await replica.executor.execute(command, replica.delivery(command, hold=hold))


async def test_who_lost_a_command_to_somebody_does_not_acknowledge_it(replica):
    command = await replica.accept(service="tools")
    replica.doing = replica.taken_by_another
    with pytest.raises(LostError):
        await replica.executor.execute(command, replica.delivery(command))
    assert replica.begun.count(command.seq) == 1


async def test_a_command_of_its_own_is_begun_once_at_a_time(replica):
    command = await replica.accept()
    free = asyncio.Event()
    replica.doing = lambda _job: free.wait()
    first = asyncio.create_task(replica.executor.execute(command))
    await until(lambda: replica.begun)
    async with asyncio.timeout(SECONDS):
        await replica.executor.execute(command)
    free.set()
    await first
    assert replica.begun.count(command.seq) == 1
    assert (await replica.state()).status == "done"


async def test_a_command_of_its_own_waits_for_no_other_one_of_the_run(replica):
    command = await replica.accept()
    with replica.executor.holders.working(command.but(seq=command.seq - 1), Hold()):
        await replica.executor.execute(command)
    assert (await replica.state()).status == "done"


async def test_nothing_is_kept_of_a_command_that_is_over(replica):
    command = await replica.accept()
    await replica.executor.execute(command)
    kept = replica.executor.holders
    assert [*replica.executor.cancels._signals, *kept._owners, *kept._held] == []


@pytest.mark.parametrize(("claims", "outcome"), [(MOST - 1, "cancelled"), (MOST, "failed")])
async def test_a_command_of_its_own_that_was_begun_too_often_ends_the_run(replica, claims, outcome):
    command = await replica.accept()
    for owner in range(claims):
        await replica.store.take_context(
            replica.tenant, replica.run, seq=command.seq, owner=f"gone.{owner}.tools"
        )
    await replica.executor.execute(command)
    state = await replica.state()
    assert state.status == "done"
    assert state.result.status == outcome


async def test_how_often_a_command_may_be_begun_that_nats_delivers_is_for_nats_to_count(replica):
    command = await replica.accept(service="tools")
    for owner in range(MOST):
        await replica.store.take_context(
            replica.tenant, replica.run, seq=command.seq, owner=f"gone.{owner}.tools"
        )
    await replica.executor.execute(command, replica.delivery(command, 2))
    assert (await replica.state()).result.status == "cancelled"


async def test_a_first_delivery_takes_a_command_from_nobody_and_a_later_one_does(replica):
    command = await replica.accept(service="tools")
    delivery = replica.delivery(command)
    await replica.store.take_context(
        replica.tenant,
        replica.run,
        seq=command.seq,
        owner="other.x.tools",
        attempt=1,
        message=delivery.sequence,
    )
    with pytest.raises(LostError) as lost:
        await replica.executor.execute(command, delivery)
    assert not lost.value.again_in
    assert command.seq not in replica.begun
    await replica.executor.execute(command, replica.delivery(command, 2))
    assert replica.begun.count(command.seq) == 1


@pytest.mark.parametrize("gone", [True, False])
async def test_a_command_that_was_handed_over_is_taken_from_one_who_is_gone(replica, gone):
    """That one had it by another message than ours, which is looked at again soon if it may live."""
    command = await replica.accept(service="tools")
    name = secrets.token_hex(6)
    await replica.store.take_context(
        replica.tenant, replica.run, seq=command.seq, owner=f"{name}.x.tools", attempt=1, message=7
    )
    if not gone:
        await Replicas(replica.redis, "tools", name, 60).silent()
        with pytest.raises(LostError) as lost:
            await replica.executor.execute(command, replica.delivery(command))
        assert lost.value.again_in == 2
        await Replicas(replica.redis, "tools", name, 60).leave()
        assert command.seq not in replica.begun
    await replica.executor.execute(command, replica.delivery(command))
    assert replica.begun.count(command.seq) == 1


async def test_of_two_deliveries_that_ask_for_the_same_dead_replica_one_takes_its_command_over(
    replica, monkeypatch
):
    """NATS gives a message out when its lease is over, and when it was restarted: both may be within a second."""
    monkeypatch.setattr(holders, "_ASK_SECONDS", 0.1)
    command = await replica.accept(service="tools")
    await replica.store.take_context(
        replica.tenant, replica.run, seq=command.seq, owner="gone.x.tools", attempt=1
    )
    two = [replica.delivery(command, attempt) for attempt in (2, 3)]
    assert await asyncio.gather(*map(replica.executor.holders.elsewhere, two)) == [False, False]
    free = asyncio.Event()
    replica.doing = lambda _job: free.wait()
    first = asyncio.create_task(replica.executor.execute(command, two[0]))
    await until(lambda: replica.begun)
    with pytest.raises(LostError):
        await replica.executor.execute(command, two[1])
    free.set()
    await first
    assert replica.begun.count(command.seq) == 1


async def test_a_result_that_its_owner_could_not_take_into_the_run_is_taken_by_who_comes_next(replica):
    command = await replica.accept(service="tools")
    await replica.answered_by_another(command)
    await replica.executor.execute(command, replica.delivery(command, 2))
    assert (await replica.state()).result.status == "failed"
    assert command.seq not in replica.begun


async def test_the_result_that_counts_is_the_one_that_is_stored(replica):
    command = await replica.accept(service="tools")
    replica.doing = lambda _job: replica.answered_by_another(command)
    await replica.executor.execute(command, replica.delivery(command))
    assert (await replica.state()).result.status == "failed"


async def test_a_result_counts_although_somebody_has_changed_the_state_meanwhile(replica):
    command = await replica.accept(service="tools")
    replica.doing = replica.saved_by_another
    await replica.executor.execute(command, replica.delivery(command))
    assert (await replica.state()).result.status == "cancelled"
    assert replica.begun.count(command.seq) == 1


@pytest.mark.parametrize("told", [False, True])
async def test_a_command_of_a_run_that_redis_has_forgotten_is_not_done(replica, caplog, told):
    command = await replica.accept(service="tools")
    await replica.store.discard(replica.tenant, replica.run)
    if told:
        replica.store.mark_told(replica.tenant, replica.run, "digest")
        await replica.redis.settled()
    await replica.executor.execute(command, replica.delivery(command))
    assert command.seq not in replica.begun
    assert ("Redis does not know its run" in caplog.text) != told, "a warning, where the run is not over"


async def test_who_gets_a_command_that_the_run_has_left_behind_sends_the_one_that_it_waits_for(replica):
    command = await replica.accept(service="tools")
    left = command.but(seq=command.seq - 1)
    assert not await replica.executor.driver.is_out(await replica.state())
    await replica.executor.execute(left, replica.delivery(left))
    assert await replica.executor.driver.is_out(await replica.state())
    assert not replica.begun


async def test_a_command_of_a_life_of_redis_that_we_have_not_heard_of_is_done(replica):
    """We have asked Redis nothing since it was restarted; the numbers of the next life must not be used up."""
    command = await replica.accept(service="tools")
    replica.redis.life -= 1
    await replica.executor.execute(command, replica.delivery(command))
    assert replica.begun
    assert (await replica.state()).seq <= command.seq + 1


async def test_a_command_of_an_earlier_life_of_redis_is_sent_anew_and_not_done(replica):
    command = await replica.accept(service="tools")
    await replica.redis.hset(run_key(replica.tenant, replica.run), "numbered_in", replica.store.life - 1)
    await replica.executor.execute(command, replica.delivery(command))
    assert not replica.begun
    state = await replica.state()
    assert state.seq > command.seq
    assert await replica.executor.driver.is_out(state)


@pytest.mark.parametrize("told", ["before", "meanwhile", "when it could not be told"])
async def test_who_works_on_a_run_that_is_cancelled_is_told(replica, told):
    command = await replica.accept(service="tools")
    heard = asyncio.Event()

    async def doing(job):
        job.abort_signal.on_abort(heard.set)
        if told == "meanwhile":
            replica.executor.cancels.cancel(replica.tenant, replica.run)
        elif told == "when it could not be told":
            await replica.store.mark_cancelled(replica.tenant, replica.run)
            await replica.executor.cancels.look()
        assert heard.is_set()

    replica.doing = doing
    if told == "before":
        await replica.store.mark_cancelled(replica.tenant, replica.run)
    await replica.executor.execute(command, replica.delivery(command))
    assert (await replica.state()).status == "done"


async def test_whoever_else_wants_to_know_is_told_of_a_cancelled_run(replica):
    told = []
    replica.executor.cancels.listeners.append(lambda *run: told.append(run))
    replica.executor.cancels.cancel("t", "r")
    assert told == [("t", "r")]


async def test_what_never_ends_is_left_a_while_after_the_run_was_cancelled(replica, monkeypatch):
    monkeypatch.setattr(executor, "LEAVE_SECONDS", 0)

    async def doing(_job):
        replica.doing = nothing
        replica.executor.cancels.cancel(replica.tenant, replica.run)
        await asyncio.Event().wait()

    command = await replica.accept(service="tools")
    replica.doing = doing
    async with asyncio.timeout(SECONDS):
        await replica.executor.execute(command, replica.delivery(command))
    assert (await replica.state()).ending


async def test_a_timeout_of_something_else_is_no_cancellation(replica):
    command = await replica.accept(service="tools")
    replica.doing = timed_out
    with pytest.raises(TimeoutError):
        await replica.executor.execute(command, replica.delivery(command))
    assert (await replica.state()).status == "running"


async def timed_out(_job: Job) -> None:
    """Something is away that the operation needs."""
    raise TimeoutError


async def test_a_command_that_nobody_does_is_done_by_whoever_looks(replica):
    await replica.accept()
    await replica.executor.driver.event(replica.tenant, replica.run, Control(type="cancel"))
    assert (await replica.state()).status == "done"


@pytest.mark.parametrize("asked", ["again", "by an event that changes nothing", "by the command before it"])
async def test_who_has_begun_a_command_of_its_own_has_time_to_do_it(replica, asked):
    command = await replica.accept()
    other = Replica(replica.bus, replica.redis, "there")
    other.tenant = replica.tenant
    answering: set[asyncio.Task[None]] = set()

    async def answered(subject, body, reply):
        await replica.bus.publish(reply, await replica.executor.holders.answer(subject, body))

    await replica.bus.subscribe(
        subjects.holder(LOCAL, "here"), lambda *asked: spawned(answering, "an answer", answered(*asked))
    )
    free = asyncio.Event()
    replica.doing = lambda _job: free.wait()
    doing = asyncio.create_task(replica.executor.execute(command))
    await until(lambda: replica.begun)
    if asked == "again":
        await other.executor.driver.again(replica.tenant, replica.run)
    elif asked == "by the command before it":  # which may be all that speaks for this one
        other.executor.service = "tools"
        before = command.but(seq=command.seq - 1, service="tools")
        with pytest.raises(LostError):
            await other.executor.execute(before, other.delivery(before, 2))
    else:
        await other.executor.driver.event(replica.tenant, replica.run, Control(type="cancel"))
    free.set()
    await doing
    assert not other.begun
    assert (await replica.state()).status == "done"


@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_command_that_follows_here_is_known_to_be_worked_on_from_its_claim_on(replica, cancelled):
    """What others ask, and what a cancellation says, may come before Redis' answer to the claim does."""
    command = await replica.accept(service="tools", goes_on=True, ops=2)
    replica.takes_what_follows()
    works, commit = [], replica.store.commit_context

    async def committed(*run, **about):
        done = await commit(*run, **about)
        question = HolderQuestion(owner=about["change"].claimed_by).to_json()
        works.append(await replica.executor.holders.answer("", question))
        if cancelled:
            replica.executor.cancels.cancel(*run)
        return done

    replica.store.commit_context = committed
    claimed = await replica.executor.execute(command, replica.delivery(command))
    assert [HolderAnswer.model_validate_json(each).works for each in works] == [True]
    assert claimed.command.seq == command.seq + 1
    assert claimed.stored.cancelled is cancelled
    claim = await replica.store.claimed_by(replica.tenant, replica.run, claimed.command.seq)
    assert claim == claimed.owner


async def test_a_command_that_follows_here_is_done_without_a_word_to_others(replica):
    command = await replica.accept(service="tools", goes_on=True, ops=2)
    replica.takes_what_follows()
    claimed = await replica.executor.execute(command, replica.delivery(command))
    assert await replica.executor.follow(claimed, replica.delivery(command)) is None
    assert claimed.command.seq in replica.begun
    assert (await replica.state()).result.error.code == "NO_MODEL"
    subject = subjects.work("*", replica.tenant, replica.run)
    assert [body async for _, body in replica.bus.stored.messages("WORK", subject)] == []


async def test_an_event_that_changes_nothing_is_not_saved(replica):
    await replica.accept(service="tools")
    before = await replica.store.load_state(replica.tenant, replica.run)
    await replica.executor.driver.event(replica.tenant, replica.run, Control(type="cancel"))
    assert await replica.store.load_state(replica.tenant, replica.run) == before


def raising(error: Exception) -> Doing:
    """What ends one operation so."""
    errors = iter([error])

    async def doing(_job: Job) -> None:
        for each in errors:
            raise each

    return doing


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProcessorError("no", processor_id="p", hook="processInput"), "PROCESSOR_FAILED"),
        (UnknownComponentError("no"), "UNKNOWN_COMPONENT"),
        (BrokenComponentError("no"), "COMPONENT_FAILED"),
        (InvalidOptionsError("no", {}), "INVALID_OPTIONS"),
        (InvalidMessageError("content", "no"), "INVALID_MESSAGE_CONTENT"),
        (RefusedError("TOO_LONG", "no"), "TOO_LONG"),
    ],
)
async def test_what_authors_and_senders_have_done_wrong_fails_the_run(replica, error, code):
    command = await replica.accept(service="tools", goes_on=True)
    replica.doing = raising(error)
    await replica.executor.execute(command, replica.delivery(command))
    state = await replica.state()
    assert (state.status, state.result.status, state.result.error.code) == ("done", "failed", code)


@pytest.mark.parametrize("error", [Stopped(), Cancelled(), RefusedError("NO", "no")])
async def test_what_ends_a_command_lets_nothing_behind_it_begin(replica, error):
    command = await replica.accept(service="tools", goes_on=True)
    emitted = []

    async def emitting(job):
        emitted.append(job.command.seq)

    replica.doing, replica.emitting = raising(error), emitting
    await replica.executor.execute(command, replica.delivery(command))
    assert command.seq not in emitted


async def test_who_does_a_command_again_replaces_what_was_sent_before(replica):
    command = await replica.accept(service="tools")
    await replica.store.take_context(
        replica.tenant, replica.run, seq=command.seq, owner="gone.x.tools", attempt=1
    )
    await replica.executor.execute(command, replica.delivery(command, 2))
    first, *_ = await replica.batches()
    assert (first["reset"], first["fence"]) == (command.out_seq, fence_of(command.seq, 2))
    assert first["seq"] > command.out_seq


async def test_who_does_a_command_for_the_first_time_replaces_nothing(replica):
    command = await replica.accept(service="tools")
    await replica.executor.execute(command, replica.delivery(command))
    first, *others = await replica.batches()
    assert first["seq"] == command.out_seq
    assert not [batch for batch in (first, *others) if "reset" in batch]


async def test_a_command_that_was_renewed_has_numbers_beyond_those_of_another_life_of_redis(replica):
    command = (await replica.accept(service="tools")).but(renewed=True)
    await replica.executor.execute(command, replica.delivery(command))
    outbox = Outbox(replica.bus, replica.tenant, "other", command.out_seq, live=False)
    await outbox.renew(2, life=replica.store.life)
    first, *_ = await replica.batches()
    assert (first["reset"], first["seq"]) == (command.out_seq, outbox.next_seq)


async def test_a_command_that_starts_from_any_context_goes_on_behind_what_was_sent(replica):
    command = await replica.accept(version=ANY_VERSION)
    outbox = Outbox(replica.bus, replica.tenant, replica.run, 0, live=True)
    outbox.put({"type": "text-delta"})
    await outbox.flush()
    await eventually(replica.batches)
    await replica.executor.execute(command)
    _, mark, *_ = await replica.batches()
    assert (mark["reset"], mark["seq"]) == (1, 1)


async def test_chunks_of_streams_that_were_left_count_no_more(replica):
    command = await replica.accept(service="tools", goes_on=True)
    replica.doing = raising(Cancelled())
    await replica.executor.execute(command, replica.delivery(command))
    first, *_ = await replica.batches()
    assert first["fence"] == fence_of(command.seq, 1, 10_000)


async def test_who_has_lost_a_command_says_nothing_more(replica):
    command = await replica.accept(service="tools")
    hold = Hold()

    async def lost(_job):
        hold.lose()

    replica.doing = lost
    with pytest.raises(LostError):
        await replica.executor.execute(command, replica.delivery(command, hold=hold))
    assert await replica.batches() == []
    assert (await replica.state()).status == "running"


async def test_what_somebody_else_has_left_and_received_is_stored(replica):
    command = await replica.accept(service="tools", goes_on=True)

    async def lent(job):
        job.left, job.parts = orjson.dumps({**job.ctx.to_dict(), "stepNumber": 7}), b"part"
        replica.doing = nothing
        raise Suspended([{"toolCallId": "c", "kind": "suspension"}])

    replica.doing = lent
    await replica.executor.execute(command, replica.delivery(command))
    state = await replica.state()
    assert state.status == "suspended"
    assert (await replica.store.load_context(replica.tenant, replica.run))["stepNumber"] == 7
    assert await replica.store.load_parts(replica.tenant, replica.run, 0) == [b"part"]


async def test_a_run_whose_context_is_no_json_fails_and_does_not_wait(replica):
    command = await replica.accept(service="tools", goes_on=True)

    async def spoilt(job):
        replica.doing = nothing
        job.ctx.states["p"] = {"kept": {1}}
        raise Suspended([{"toolCallId": "c", "kind": "suspension"}])

    replica.doing = spoilt
    await replica.executor.execute(command, replica.delivery(command))
    state = await replica.state()
    assert (state.status, state.result.error.code) == ("done", "STATE_NOT_JSON")


def test_what_comes_of_lent_operations_counts_from_where_they_began():
    about: dict[str, Any] = {"run": "r", "tenant": "t", "seq": 1, "service": "s", "version": 1, "out_seq": 0}
    facts = StepFacts(tool_calls=2)
    result = WorkResult(**about, outcome="ok", facts=facts)
    error, tripwire = Failure(code="WORK_FAILED", message="no"), Tripwire(reason="no", processor_id="p")
    ended: dict[str, Any] = {
        "outcome": "failed",
        "stopped": True,
        "stop": True,
        "error": error,
        "tripwire": tripwire,
    }
    executor._take(result, WorkResult(**about, **ended, at=1), 3)
    assert {name: getattr(result, name) for name in ended} == ended
    assert (result.at, result.facts) == (4, facts)
    executor._take(result, WorkResult(**about, outcome="ok", facts=StepFacts(tool_calls=1)), 3)
    assert result.facts == StepFacts(tool_calls=1)
