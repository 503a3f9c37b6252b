"""Runs a command's operations on the run's context, exactly once for what it stores, and moves the run on."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import orjson
from msgspec.structs import replace

from procession.args import AbortSignal
from procession.calls import Calls
from procession.errors import (
    BrokenComponentError,
    InvalidOptionsError,
    ProcessorError,
    TripWire,
    UnknownComponentError,
)
from procession.messages import InvalidMessageError
from procession.services import NO_ENVIRONMENT, Environment
from procession_schemas.run import Failure
from procession_schemas.validation import RefusedError
from procession_schemas.work import (
    ANY_VERSION,
    Op,
    StepFinishOp,
    StreamOp,
    ToolResultsOp,
    WorkCommand,
    WorkResult,
)
from procession_services.bus import Bus, Delivery, Hold, LostError
from procession_services.processor_host.cancels import LEAVE_SECONDS, Cancels
from procession_services.processor_host.driver import Claiming, Driver, moved
from procession_services.processor_host.errors import (
    Cancelled,
    Lent,
    ModelFailed,
    Stopped,
    Suspended,
    raise_unanswered,
)
from procession_services.processor_host.holders import Claimed, Holders
from procession_services.processor_host.instances import Instances
from procession_services.processor_host.job import Job, OpRunner, SinkFactory, id_maker, restore
from procession_services.processor_host.ops import RUNNERS
from procession_services.processor_host.outbox import Outbox
from procession_services.processor_host.violations import violation_sink
from procession_services.processor_host.wire import failure_of, wire_failure, wire_tripwire
from procession_services.runs.events import Forgotten
from procession_services.runs.numbering import fence_of
from procession_services.runs.program import LOCAL
from procession_services.runtime import telemetry
from procession_services.runtime.clock import monotonic_ns
from procession_services.runtime.lasting import Lasting
from procession_services.runtime.redis_client import UNANSWERED
from procession_services.runtime.run_records import StoredContext, after_commit
from procession_services.runtime.store import RunStore
from procession_services.runtime.words import number_of

log = logging.getLogger(__name__)
_AGAIN_SECONDS: Final = 2.0
"""After so long, whoever lives can be asked: NATS may have been restarted."""
_MAY_WAIT: Final = frozenset({"arrays", "hook", "stepFinish", "stop", "stream", "toolResults", "tools"})
"""Operations that may wait for something, before which clients get what is ready; else it goes with what comes next."""
_STREAMED: Final = (ToolResultsOp, StepFinishOp, StreamOp)
_OF_AUTHORS: Final = (
    ProcessorError,
    UnknownComponentError,
    BrokenComponentError,
    InvalidOptionsError,
    InvalidMessageError,
)


class _Settled(NamedTuple):
    """Whether a command was still ours when it was done, and which one is to be handed over then."""

    was_ours: bool
    then: Claimed | None = None


class Executor:
    """Works on the commands of one service."""

    def __init__(
        self,
        service: str,
        bus: Bus,
        store: RunStore,
        instances: Instances,
        open_sink: SinkFactory,
        *,
        max_deliver: int,
        replica: str = "",
        runners: dict[str, OpRunner] | None = None,
        lender: OpRunner | None = None,
        environment: Environment = NO_ENVIRONMENT,
    ) -> None:
        self.service, self.bus, self.store, self.instances = service, bus, store, instances
        self.environment = environment
        self.cancels = Cancels(store)
        self.holders = Holders(bus, store, service, replica)
        self.driver = Driver(bus, store, self.execute)
        self._open_sink, self._lender, self._max_deliver = open_sink, lender, max_deliver
        self._runners = {**RUNNERS, **(runners or {})}

    async def execute(
        self, command: WorkCommand, delivery: Delivery | None = None, *, speaks: bool = True
    ) -> Claimed | None:
        """Runs the command, takes its result into the run, and sends what comes next.

        Some commands are not run:

        - One that was done before, or that the run has left behind: it is only said again what comes next.
        - One that got its number in an earlier life of Redis, which may have forgotten that it was done, and what came
          after it: it is sent anew, under a number that is greater than theirs.
        - One that somebody else has. The first delivery leaves it to him, since NATS forgets deliveries when it is
          killed. A later one takes it over: it gets here only when he does not live (`Holders`).

        Without a delivery the command is the caller's own, and NATS does not count how often it was begun: where that
        was too often, its run ends. If somebody else works on it, it is left alone. The delivery that led to it is not
        acknowledged then: it may be his as well, and stands for his work.

        If its delivery does not speak (`speaks`) for what follows, that is sent by NATS.

        Returns:
            The command that follows, to be handed over; None where there is none, or NATS has it.

        Raises:
            LostError: Somebody else has the command, so this delivery says nothing more.
        """
        attempt, trace = (delivery.attempt, delivery.traceparent) if delivery else (0, None)
        with telemetry.observer().command(command, attempt, trace) as told:
            held = delivery.hold if delivery else None
            return await self._execute(command, delivery, held, told, speaks=speaks)

    def claiming(self, command: WorkCommand, hold: Hold) -> Lasting[Claiming]:
        """Notes that a command is going to be done here, and whether its run is cancelled meanwhile; see `Taker`."""
        own, watched = self.holders.claiming(hold), self.cancels.watched(command.tenant, command.run)
        claiming = Claiming(command, own.value, watched.value)

        def end() -> None:
            watched.end()
            own.end()

        return Lasting(claiming, end)

    async def follow(self, claimed: Claimed, delivery: Delivery) -> Claimed | None:
        """As `execute`, for a command that was handed over here; the delivery that led to it stands for it."""
        with telemetry.observer().command(claimed.command, 0, delivery.traceparent) as told:
            return await self._execute(claimed.command, None, delivery.hold, told, claimed)

    async def _execute(
        self,
        command: WorkCommand,
        delivery: Delivery | None,
        held: Hold | None,
        told: Callable[[WorkResult], None],
        claimed: Claimed | None = None,
        *,
        speaks: bool = True,
    ) -> Claimed | None:
        hold = held or Hold()
        with (
            self.cancels.watched(command.tenant, command.run) as signal,
            self.holders.working(command, hold, claimed.owner if claimed else "") as owner,
        ):
            stored = claimed.stored if claimed else await self._taken(command, delivery, owner)
            if stored is None and held is None and self.service == LOCAL:
                return None
            if stored is None:
                raise LostError
            if stored.seq == command.seq and stored.result is not None:
                result = WorkResult.from_json(stored.result)
                await self.driver.event(command.tenant, command.run, result)
                return None
            if stored.state is None:
                if not await self.store.is_told(command.tenant, command.run):
                    log.warning(
                        "dropping command %s: Redis does not know its run. It was emptied, or whoever sent the "
                        "command uses another Redis (`procession check --deploy`)",
                        command.id,
                    )
                return None
            if _stale(command, stored):
                log.info(
                    "command %s is stale: context %d, wanted %d", command.id, stored.version, command.version
                )
                await self.driver.again(command.tenant, command.run)
                return None
            if stored.numbered_in < self.store.life:
                await self.driver.event(command.tenant, command.run, Forgotten(command.seq))
                return None
            if delivery is None and stored.claims > self._max_deliver:
                job = self._given_up(command, stored, signal)
            else:
                job = await self._worked(command, stored, signal, hold)
            settled = await self._settled(job, stored, owner, held if speaks else None)
        if not settled.was_ours:  # somebody else has it; or Redis took our result at once, unheard
            await self.driver.again(command.tenant, command.run, beyond=command)
        told(job.result)
        return settled.then

    async def _taken(
        self, command: WorkCommand, delivery: Delivery | None, owner: str
    ) -> StoredContext | None:
        """The context, claimed for that owner; None where another one has the command, who lives."""
        take = partial(self.store.take_context, command.tenant, command.run, seq=command.seq, owner=owner)
        if delivery is not None:
            take, instead_of = partial(take, message=delivery.sequence), delivery.hold.instead_of
            stored = await take(attempt=delivery.attempt, instead_of=instead_of)
            if stored is None and delivery.attempt == 1:
                return await self._taken_from_one_who_is_gone(command, delivery, take)
            return stored
        if (stored := await take(attempt=1)) is not None:
            return stored
        other, lives = await self.holders.owner_of(command)
        return None if lives else await take(instead_of=other)

    async def _taken_from_one_who_is_gone(
        self, command: WorkCommand, delivery: Delivery, take: Callable[..., Awaitable[StoredContext | None]]
    ) -> StoredContext | None:
        """The context of a command that was handed over to another one; None where that one has it by our message.

        Raises:
            LostError: It lives, or may not be back yet. Nobody gives our message back when it dies.
        """
        if await self.store.message_in_hand(command.tenant, command.run) == delivery.sequence:
            return None
        other = await self.store.claimed_by(command.tenant, command.run, command.seq)
        gone = other is not None and await self.holders.is_gone(other)
        if not gone or (stored := await take(instead_of=other)) is None:
            raise LostError(_AGAIN_SECONDS)
        return stored

    async def borrowed(self, job: Job, runners: dict[str, OpRunner]) -> None:
        """Runs operations that whoever has the command has lent us; what they did is for the lender to store."""
        with self.cancels.watched(job.command.tenant, job.command.run) as signal:
            if job.abort_signal.aborted:
                signal.abort()
            job.calls.abort_signal = signal
            await self._run(job, {**self._runners, **runners})
        _summed(job)

    async def _worked(
        self, command: WorkCommand, stored: StoredContext, signal: AbortSignal, hold: Hold
    ) -> Job:
        """Runs the operations; returns the job with its result."""
        if stored.cancelled:
            signal.abort()
        attempt = stored.claims + command.renewed
        job = self._job(command, stored, signal, hold, attempt)
        if command.version == ANY_VERSION:
            await job.outbox.follow(again=attempt > 1)
        elif attempt > 1:
            await job.outbox.renew(attempt, life=self.store.life if command.renewed else 0)
        await self._run_or_leave(job)
        await job.outbox.hold.keep()
        if job.result.outcome == "cancelled":
            await job.outbox.leave()
        _summed(job)
        return job

    def _given_up(self, command: WorkCommand, stored: StoredContext, signal: AbortSignal) -> Job:
        """A job of which nothing is done any more."""
        job = self._job(command, stored, signal, Hold(), 0)
        ops = ", ".join(op.op for op in command.ops)
        times = number_of(self._max_deliver, "attempt")
        message = f"could not do {ops} in {times}; the logs of the services say why"
        job.result.outcome, job.result.error = "failed", Failure(code="WORK_FAILED", message=message)
        return job

    async def _settled(self, job: Job, stored: StoredContext, owner: str, held: Hold | None) -> _Settled:
        """Settles it, for as long as Redis is away: given back, it would be done again, tools by another host, too."""
        while True:
            try:
                return await self._settle(job, stored, owner, held)
            except UNANSWERED as error:
                log.warning(
                    "%s: the result of command %s waits for Redis: %s", self.service, job.command.id, error
                )
                await job.outbox.hold.keep()

    async def _settle(self, job: Job, stored: StoredContext, owner: str, held: Hold | None) -> _Settled:
        """Stores the context with the result and the run's next state, then says what comes next."""
        command, after = job.command, moved(stored, job.result, self.store.life)
        await job.outbox.kept()
        about: dict[str, Any] = {"version": stored.version, "seq": command.seq, "owner": owner}
        if after.state.status == "done":
            called = await self.store.end_run(command.tenant, command.run, **about, change=after.change)
            if called is not None:
                await self.driver.go_on(after, called)
                return _Settled(was_ours=True)
        body = job.context_body()
        if body is None:
            body, after = await self._last_context(job), moved(stored, job.result, self.store.life)
        then = None
        with self.driver.claiming(after.effects, held) as following:
            change = replace(after.change, claimed_by=following.owner) if following else after.change
            done = await self.store.commit_context(
                command.tenant,
                command.run,
                **about,
                data=body,
                result=job.result.to_json(),
                parts=job.parts,
                change=change,
            )
            if done is None:
                return _Settled(was_ours=False)
            if not done.state_saved:
                await self.driver.event(command.tenant, command.run, WorkResult.from_json(done.result))
                return _Settled(was_ours=True)
            await self.driver.go_on(after, done.called, but=following.command if following else None)
            if following:
                then = following.claimed(after_commit(stored, body, change, cancelled=done.cancelled))
        return _Settled(was_ours=True, then=then)

    async def _last_context(self, job: Job) -> bytes:
        """The context as it was before the command; what was read of it then, hooks have changed in place."""
        data = await self.store.load_context(job.command.tenant, job.command.run)
        return orjson.dumps(data) if data is not None else restore(job.command, None, job.new_id).to_json()

    def _job(
        self,
        command: WorkCommand,
        stored: StoredContext,
        signal: AbortSignal,
        hold: Hold,
        attempt: int,
    ) -> Job:
        new_id = id_maker(command)
        ctx = restore(command, stored.data, new_id)
        calls = Calls(clock=monotonic_ns, abort_signal=signal, environment=self.environment)
        calls.violation = violation_sink(self.bus, command, ctx)
        return Job(
            command=command,
            ctx=ctx,
            calls=calls,
            instances=self.instances,
            outbox=Outbox(
                self.bus,
                command.tenant,
                command.run,
                command.out_seq,
                live=command.stream,
                fence=fence_of(command.seq, attempt),
                hold=hold,
            ),
            result=self.result_of(command, stored.version + 1),
            open_sink=self._open_sink,
            new_id=new_id,
        )

    def result_of(self, command: WorkCommand, version: int) -> WorkResult:
        """The result of a command of which nothing is done yet."""
        return WorkResult(
            run=command.run,
            tenant=command.tenant,
            seq=command.seq,
            service=self.service,
            outcome="ok",
            version=version,
            out_seq=command.out_seq,
        )

    async def _run_or_leave(self, job: Job) -> None:
        """Runs the operations; a while after the run was cancelled it leaves a hook or tool that never ends."""
        limit, signal = asyncio.timeout(None), job.abort_signal

        def hurry() -> None:
            limit.reschedule(asyncio.get_running_loop().time() + LEAVE_SECONDS)

        try:
            async with limit:
                signal.on_abort(hurry)
                await self._run(job, self._runners)
        except TimeoutError:
            if not limit.expired():
                raise
            job.result.outcome = "cancelled"
            log.warning(
                "%s: abandoned command %s, cancelled %g s ago: one of its hooks, tools or providers does not end",
                self.service, job.command.id, LEAVE_SECONDS,
            )  # fmt: skip
        finally:
            signal.forget(hurry)

    async def _run(self, job: Job, runners: Mapping[str, OpRunner]) -> None:
        result = job.result
        for at, op in enumerate(job.command.ops):
            result.at = at
            streams = isinstance(op, _STREAMED) and op.processors
            lender = self._lender if streams and _portable(job, op) else None
            try:
                await _one(lender or runners[op.op], op, job)
            except Lent as lent:
                _take(result, lent.result, at)
                return
            if result.stopped or result.outcome != "ok":
                await job.outbox.flush()
                return


def _portable(job: Job, op: Op) -> bool:
    """Whether any service could run this operation and all behind it, so also a replica of the output chain."""
    return all(other.op in RUNNERS and other.op != "hook" for other in job.ops_from(op))


async def _one(run: OpRunner, op: Op, job: Job) -> None:
    """Runs one operation, and notes in the result how it has ended the command, if it has."""
    result = job.result
    try:
        if op.op in _MAY_WAIT:
            async with job.outbox.flushing():
                await run(op, job)
        else:
            await run(op, job)
        if op is job.command.ops[-1]:
            await job.outbox.flush()
    except TripWire as tripwire:
        result.outcome, result.tripwire = "tripwire", wire_tripwire(tripwire)
    except ModelFailed as failed:
        result.outcome, result.error = "modelFailed", failure_of(failed.error)
    except Suspended as suspended:
        result.outcome, result.suspend = "suspended", suspended.entries
    except Cancelled:
        result.outcome = "cancelled"
    except Stopped:
        result.stopped = True
    except RefusedError as error:
        result.outcome, result.error = "failed", error.failure
    except _OF_AUTHORS as error:
        raise_unanswered(error)
        result.outcome, result.error = "failed", wire_failure(error)


def _stale(command: WorkCommand, stored: StoredContext) -> bool:
    """Whether the run has left the command behind, or Redis has forgotten that there was one."""
    return stored.out != command.seq or command.version not in (stored.version, ANY_VERSION)


def _summed(job: Job) -> None:
    job.result.reports = list(job.calls.reports.values())
    job.result.out_seq = job.outbox.next_seq


def _take(result: WorkResult, lent: WorkResult, start: int) -> None:
    """Takes over what came of the operations from `start` on."""
    result.outcome, result.at, result.stopped = lent.outcome, start + lent.at, lent.stopped
    result.facts, result.stop = lent.facts or result.facts, lent.stop
    result.result = lent.result
    result.tripwire, result.error = lent.tripwire, lent.error
