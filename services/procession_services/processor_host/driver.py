"""The shell around the run's reducer: load, reduce, save, then speak.

Every service has one: it moves on the runs whose commands it has done, so that no command waits for a third process
(docs/adr/0011). Whoever saves first is the one who speaks; a crash in between only causes a repeat, which message ids
and compare-and-set make harmless.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Protocol

import msgspec
from msgspec.structs import replace

from procession.args import AbortSignal
from procession_schemas import subjects
from procession_schemas.events import RequestRejected, RunAccepted, RunFinished, RunResumed, RunSuspended
from procession_schemas.run import Failure, RunResult
from procession_schemas.work import Control, WorkCommand, WorkResult
from procession_services.bus import AGAIN, Bus, Hold, LostError, oversized
from procession_services.processor_host.fitting import fitting_end
from procession_services.processor_host.holders import Claimed
from procession_services.processor_host.outbox import Outbox
from procession_services.runs.events import (
    Effect,
    Interrupt,
    PassTurn,
    RunEvent,
    Send,
    SignalCancel,
    Started,
    TellFinished,
    TellResumed,
    TellSuspended,
)
from procession_services.runs.numbering import fence_of
from procession_services.runs.program import LOCAL, command
from procession_services.runs.reducer import outstanding, reduce
from procession_services.runs.state import Line, RunState
from procession_services.runs.stored import UnreadableError, read_state
from procession_services.runtime import telemetry
from procession_services.runtime.admission import Called
from procession_services.runtime.clock import iso, now, seconds, seconds_since
from procession_services.runtime.run_records import StateChange, StoredContext, StoredState
from procession_services.runtime.store import RunStore, line_key

log = logging.getLogger(__name__)
Told = RunAccepted | RequestRejected | RunSuspended | RunResumed
"""Events that say what becomes of a request, or of a run before its end."""


class Claiming(msgspec.Struct, frozen=True):
    """A command that is claimed with the state that wants it: its owner does it, without a message for it.

    Attributes:
        signal: Fires when the run is cancelled.
        at: When that began, in seconds since the epoch.
    """

    command: WorkCommand
    owner: str
    signal: AbortSignal
    at: float = msgspec.field(default_factory=seconds)

    def claimed(self, stored: StoredContext) -> Claimed:
        """The command, with what Redis holds of the run since it was claimed."""
        cancelled = stored.cancelled or self.signal.aborted
        return Claimed(self.command, self.owner, replace(stored, cancelled=cancelled), self.at)


class Taker(Protocol):
    """A replica of a service that would take a command without a message for it."""

    def claiming(self, command: WorkCommand, hold: Hold, /) -> AbstractContextManager[Claiming]:
        """Lets it have the command, for what is in hand by that hold, from the end of the block on."""


class Driver:
    """Moves runs on; `execute` does a command that needs no other service.

    `takes` gives a replica of a service that may do a command without a message for it.
    """

    def __init__(
        self, bus: Bus, store: RunStore, execute: Callable[[WorkCommand], Awaitable[object]]
    ) -> None:
        self._bus, self._store, self._execute = bus, store, execute
        self.on_deadline_added: Callable[[int], None] = lambda _: None
        self.takes: Callable[[str], Taker | None] = lambda _: None

    async def event(self, tenant: str, run: str, event: RunEvent) -> bool:
        """Takes an event into a run; False when there is no such run.

        Raises:
            UnreadableError: It is there, and cannot be read.
        """
        stored = await self._store.load_state(tenant, run)
        if stored is None:
            return False
        await self._apply(tenant, run, stored, event)
        return True

    async def again(self, tenant: str, run: str, *, beyond: WorkCommand | None = None) -> None:
        """Says again what follows from the run's state: who said it first may have died in the middle.

        Raises:
            LostError: The run still waits for the command `beyond`: somebody else has that, and may die with it, so its
                message is not ours to acknowledge.
        """
        stored = await self._store.load_state(tenant, run)
        state = None if stored is None else read_state(stored.state, stored.plan)
        if state is not None:
            if beyond and beyond.service != LOCAL and state.sent and state.seq == beyond.seq:
                raise LostError
            await self.perform(state, outstanding(state), again=True)

    async def _apply(self, tenant: str, run: str, stored: StoredState, event: RunEvent) -> None:
        """Reduces, saves and acts; starts over when somebody else saved first.

        A command that the run waited for before was sent before, or handed over to somebody who may have it.
        """
        names: tuple[Called, ...] = ()
        while True:
            state = read_state(stored.state, stored.plan, self._store.life)
            after, effects = reduce(state, event)
            resumed = state.status == "suspended" and after.status == "running"
            _set_times(state, after)
            if after == state:
                break
            with_plan = after.plan is not state.plan
            wanted = change(after, stored.version, resumed=resumed, with_plan=with_plan)
            done = await self._store.save_state(tenant, run, wanted)
            if done.saved:
                names = done.called
                break
            newer = await self._store.load_state(tenant, run)
            if newer is None:
                return
            stored = newer
        if resumed:
            self.on_deadline_added(after.deadline_ms)
        if state.queued and not after.queued:
            telemetry.observer().run_waited(after.tenant, seconds_since(after.accepted_at))
        await self.perform(after, effects, again=after.seq == state.seq)
        await self.begin(names)

    async def go_on(
        self, moved: "Moved", called: Iterable[Called], *, but: WorkCommand | None = None
    ) -> None:
        """Says what follows from a result with which the run is saved, as `perform`."""
        await self.perform(moved.state, moved.effects, but=but)
        await self.begin(called)

    def claiming(self, effects: list[Effect], hold: Hold | None) -> AbstractContextManager["Claiming | None"]:
        """Gives the command among the effects that is handed over, for what is in hand by that hold."""
        command = next((effect.command for effect in effects if isinstance(effect, Send)), None)
        if command and hold and (taker := self.takes(command.service)):
            return taker.claiming(command, hold)
        return nullcontext()

    async def begin(self, names: Iterable[Called]) -> None:
        """Begins runs that have waited and got a place; doing it again is harmless.

        One that fails keeps neither others nor whoever begins it: it stays among the called ones, where the
        orchestrators find it. Until its deadline somebody may read what we cannot.
        """
        for each in names:
            try:
                if await self.event(each.tenant, each.run, Started()):
                    await self._store.begun(each.tenant, each.run)
                else:
                    await self.begin(await self._store.forget(each.tenant, each.run))
            except Exception:  # whatever it is: those behind it have got a place, too
                log.exception("run %s of tenant %s could not be started; trying again", each.run, each.tenant)

    async def discard(self, tenant: str, run: str, line: Line | None) -> None:
        """Deletes a run whose end was told, though it could not be read: others get its place, and its turn."""
        await self.begin(await self._store.discard(tenant, run))
        if line:
            await self._pass_turn(tenant, _line_key(tenant, line))

    async def perform(
        self,
        state: RunState,
        effects: list[Effect],
        *,
        but: WorkCommand | None = None,
        again: bool = False,
    ) -> None:
        """Does what the reducer wants, but for a command that is handed over; perhaps somebody did it before."""
        with telemetry.observer().continued(state.traceparent):
            for effect in effects:
                if not (isinstance(effect, Send) and effect.command is but):
                    await self._do(state, effect, again=again)
            if state.status == "done":
                self._store.mark_told(state.tenant, state.run, state.fingerprint)

    async def _do(self, state: RunState, effect: Effect, *, again: bool) -> None:
        match effect:
            case Send(command) if command.service == LOCAL:
                await self._execute(own(command))
            case Send(command):
                await self._send(state, command, again=again)
            case SignalCancel():
                await self._store.mark_cancelled(state.tenant, state.run)
                await self._bus.publish(subjects.cancelled(state.tenant, state.run), b"")
            case TellSuspended(result):
                await self._suspended(state, result)
            case TellResumed():
                await self._resumed(state)
            case TellFinished(result):
                await self._ended(state, result)
            case PassTurn():
                await self._pass_turn(state.tenant, line_of(state))
            case Interrupt():
                await self._interrupt(state)

    async def _send(self, state: RunState, command: WorkCommand, *, again: bool) -> None:
        """Sends a command; one that no stream takes has failed, since it would not be shorter the next time."""
        headers = {AGAIN: "1"} if again else {}
        headers |= {"traceparent": state.traceparent} if state.traceparent else {}
        subject, body = subjects.work(command.service, command.tenant, command.run), command.to_json()
        if self._bus.fits(body):
            await self._bus.publish_stored(
                subject, body, message_id=_message_id(state, command), headers=headers
            )
            return
        size = oversized(len(body), self._bus.max_payload)
        error = Failure(
            code="COMMAND_TOO_LONG", message=f"the next command of this run for {command.service} {size}"
        )
        await self.event(state.tenant, state.run, failed_result(command, error))

    async def is_out(self, state: RunState) -> bool:
        """Whether the command that the run waits for is in NATS; one that needs no other service never is."""
        if state.sent is None or state.sent.service == LOCAL:
            return False
        subject = subjects.work(state.sent.service, state.tenant, state.run)
        return await self._bus.stored.last_id("WORK", subject) == _message_id(
            state, command(state, state.sent)
        )

    async def _pass_turn(self, tenant: str, line: str) -> None:
        """Gives the first run in the line of the thread a place, unless it has one; doing it again is harmless."""
        waiting = await self._store.next_in_line(tenant, line)
        if waiting is not None:
            await self.begin(await self._store.enter(tenant, waiting))

    async def _interrupt(self, state: RunState) -> None:
        ahead = await self._store.ahead(state.tenant, state.run, line_of(state))
        await asyncio.gather(*(self._interrupted(state.tenant, other) for other in ahead))

    async def _interrupted(self, tenant: str, run: str) -> None:
        try:
            await self.event(tenant, run, Control(type="cancel"))
        except UnreadableError:
            log.exception(
                "run %s of tenant %s was not interrupted: its stored state cannot be read", run, tenant
            )

    async def _ended(self, state: RunState, result: RunResult) -> None:
        """Tells the end; whoever is the first to do so counts it, and whoever does it again says the same."""
        ended = datetime.fromtimestamp(state.ended_ms / 1000, UTC) if state.ended_ms else now()
        final = result.model_copy(update={"duration_ms": int(seconds_since(state.accepted_at, ended) * 1000)})
        if await self.finished(
            state.tenant,
            state.run,
            final,
            state.fingerprint,
            fence=fence_of(state.seq),
            end_seq=state.out_seq,
            at=ended,
        ):
            _observe(state, final)

    async def _suspended(self, state: RunState, result: RunResult) -> None:
        event = RunSuspended(
            run_id=state.run,
            at=iso(now()),
            fence=fence_of(state.seq + 1),
            end_seq=state.out_seq,
            result=result,
        )
        key = f"{state.seq}:{len(state.waiting)}"
        if await self.tell(state.tenant, event, key, fitting_end(event, self._bus.fits)):
            _observe(state, result)

    async def _resumed(self, state: RunState) -> None:
        event = RunResumed(run_id=state.run, at=iso(now()), fence=fence_of(state.seq))
        await self.tell(state.tenant, event, str(state.seq))

    async def tell(
        self, tenant: str, event: Told, key: str, body: bytes = b"", *, once: bool = False
    ) -> bool:
        """Publishes an event of a run, once for each `key`; with another `body` than its own where that is too long.

        `once`: not where the run has one of that type. Says whether it was not told before.
        """
        subject = subjects.event(tenant, event.run_id, event.type)
        message_id = f"{event.type}:{tenant}:{event.run_id}:{key}"
        told = body or event.to_json()
        return await self._bus.publish_stored(subject, told, message_id=message_id, once=once)

    async def failed(
        self,
        outbox: Outbox,
        tenant: str,
        run: str,
        agent: str,
        failure: Failure,
        *,
        fingerprint: str | None = None,
    ) -> None:
        """Tells the end of a run that has no state: an error chunk and the terminal event."""
        at, error = iso(now()), failure.model_dump(by_alias=True, exclude_none=True)
        outbox.put({"type": "error", "payload": {"error": error}})
        await outbox.flush(end=True)
        result = RunResult(run_id=run, agent=agent, status="failed", finish_reason="error", error=failure)
        fence, end_seq = outbox.fence, outbox.next_seq
        if await self.finished(tenant, run, result, fingerprint, fence=fence, end_seq=end_seq):
            telemetry.observer().run_ends(tenant, result, telemetry.Trace(), at)

    async def finished(
        self,
        tenant: str,
        run: str,
        result: RunResult,
        fingerprint: str | None,
        *,
        fence: int,
        end_seq: int,
        at: datetime | None = None,
    ) -> bool:
        """Publishes the one terminal event of a run, which ended then; its chunks' end has at least that fence.

        Says whether nobody had told it before.
        """
        event = RunFinished(
            run_id=run,
            at=iso(at or now()),
            result=result,
            fingerprint=fingerprint,
            fence=fence,
            end_seq=end_seq,
        )
        subject = subjects.event(tenant, run, event.type)
        message_id = f"finished:{tenant}:{run}"
        return await self._bus.publish_stored(
            subject, fitting_end(event, self._bus.fits), message_id=message_id, once=True
        )


def failed_result(command: WorkCommand, error: Failure) -> WorkResult:
    """The answer to a command that nobody can do, or not to its end."""
    return WorkResult(
        run=command.run,
        tenant=command.tenant,
        seq=command.seq,
        service=command.service,
        outcome="failed",
        at=len(command.ops) - 1,
        version=command.version,
        out_seq=command.out_seq,
        error=error,
    )


def own(command: WorkCommand) -> WorkCommand:
    """The command as it comes out of NATS: as it was made, its parts are also the plan's."""
    return WorkCommand.from_json(command.to_json())


def _message_id(state: RunState, command: WorkCommand) -> str:
    """By which NATS drops repeats; NATS may know it of an earlier run of this id that all others have forgotten."""
    return f"work:{command.id}:{state.accepted_at}"


def _set_times(before: RunState, after: RunState) -> None:
    """Gives a run that begins to wait for a person the time of people, and one that goes on the time of a run.

    Where the time of the run is up, the reducer has set the time that it needs to end. A run that is over knows since
    when: its end may be told again, by others.
    """
    if after.status == before.status:
        return
    moment = int(now().timestamp() * 1000)
    if after.status == "done":
        after.ended_ms = moment
    elif after.deadline_ms == before.deadline_ms:
        time = after.suspended_ms if after.status == "suspended" else after.timeout_ms
        after.deadline_ms = moment + time


def _observe(state: RunState, result: RunResult) -> None:
    trace = telemetry.Trace(state.traceparent, state.parent_span)
    telemetry.observer().run_ends(state.tenant, result, trace, state.accepted_at)


def line_of(state: RunState) -> str:
    """The key of the line on the run's thread; empty for a run that takes no turns."""
    return _line_key(state.tenant, state.line) if state.line else ""


def _line_key(tenant: str, line: Line) -> str:
    return line_key(tenant, line.resource, line.thread)


def change(state: RunState, version: int, *, resumed: bool = False, with_plan: bool = False) -> StateChange:
    """The state as it is saved over `version`.

    A run that is over keeps its deadline until its end has been told, so that somebody else tells it when we die in
    between. It leaves the line of its thread, and so does one that waits for a person; one that goes on (`resumed`) is
    at work beside whoever has begun meanwhile, and ahead of all who wait.
    """
    return StateChange(
        version,
        state.to_json(),
        state.deadline_ms,
        finished=state.status == "done",
        waits=state.status == "suspended",
        line=line_of(state) if resumed or state.status != "running" else "",
        resumed=resumed,
        plan=state.plan.stored if with_plan else b"",
        out=state.seq if state.sent else 0,
        numbered_in=0 if state.leap else state.life,
    )


class Moved(msgspec.Struct, frozen=True):
    """A run as a result moves it on, what is to be done then, and how that is saved."""

    state: RunState
    effects: list[Effect]
    change: StateChange


def moved(stored: StoredContext, result: WorkResult, life: int) -> Moved:
    """What a result makes of the run, whose state is there."""
    assert stored.state is not None
    before = read_state(stored.state, stored.plan, life)
    state, effects = reduce(before, result)
    _set_times(before, state)
    with_plan = state.plan is not before.plan
    return Moved(state, effects, change(state, stored.state_version, with_plan=with_plan))
