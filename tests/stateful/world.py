"""The orchestrator's shell and its bus as a model that stops anywhere, so that a test can do the worst to them.

Every handler is a generator that yields between any two of its effects; a test goes on with it, or never does (the
replica died), or has another replica handle the same message meanwhile. Every call of the reducer is held against its
laws, whatever led to it.
"""

import copy
from collections import deque
from copy import deepcopy
from dataclasses import dataclass, field

from procession_schemas.run import Failure, RunResult
from procession_schemas.work import Control, ModelOp, StepFinishOp, ToolsOp, WorkCommand, WorkResult
from procession_services.runs.events import (
    DeadlinePassed,
    Effect,
    Ended,
    Forgotten,
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
from procession_services.runs.numbering import SKIPPED
from procession_services.runs.program import LOCAL, command
from procession_services.runs.reducer import outstanding, reduce
from procession_services.runs.state import RunState
from procession_services.runs.stored import read_state
from tests.stateful.services import Choose, Services, Steps, Store


@dataclass(eq=False)
class Message:
    """A message in a work queue: there until it is acknowledged."""

    kind: str
    body: bytes


@dataclass(eq=False)
class Handler:
    """A replica at work on a message, or on a deadline (None)."""

    message: Message | None
    steps: Steps


@dataclass
class World:
    """One run, everything that works on it, and all that was ever said of it."""

    fresh: RunState
    choose: Choose
    store: Store = field(default_factory=Store)
    queue: list[Message] = field(default_factory=list)
    archive: list[Message] = field(default_factory=list)
    known_ids: set[str] = field(default_factory=set)
    handlers: list[Handler] = field(default_factory=list)
    finished: list[bytes] = field(default_factory=list)
    retried: set[int] = field(default_factory=set)
    buried: bool = False
    passed: bool = False
    past: deque[Store] = field(default_factory=lambda: deque(maxlen=40))
    forgot: bool = False
    now_ms: int = 0

    def __post_init__(self) -> None:
        self.services = Services(self.store, guarded=any(p.beside for p in self.fresh.plan.input))

    # --- the bus

    def publish(self, kind: str, body: bytes, message_id: str | None = None) -> None:
        """Stores a message, unless the id is known from a moment ago."""
        if message_id is not None and message_id in self.known_ids:
            return
        if message_id is not None:
            self.known_ids.add(message_id)
        message = Message(kind, body)
        self.queue.append(message)
        self.archive.append(message)

    def repeat(self, message: Message) -> None:
        """Somebody says again what was said long ago."""
        self.queue.append(Message(message.kind, message.body))

    def deliver(self, message: Message) -> Handler:
        """Hands a message to a replica; it may be another one's already."""
        handler = Handler(message, self._handle(message))
        self.handlers.append(handler)
        return handler

    def give_up(self, message: Message) -> None:
        """The message was delivered too often and goes to the dead letters."""
        self.queue.remove(message)
        if message.kind == "command":
            command = WorkCommand.from_json(message.body)
            gone = WorkResult(
                run=command.run,
                tenant=command.tenant,
                seq=command.seq,
                service=command.service,
                outcome="failed",
                version=command.version,
                out_seq=command.out_seq,
                error=Failure(code="WORK_FAILED", message="delivered too often"),
            )
            self.publish("result", gone.to_json(), f"gave-up:{command.id}")
        else:
            self.buried = True

    # --- replicas

    def advance(self, handler: Handler) -> None:
        """Lets a replica do one more thing; the last one is to acknowledge."""
        self.past.append(copy.deepcopy(self.store))
        try:
            next(handler.steps)
        except StopIteration:
            self.crash(handler)
            if handler.message in self.queue:
                self.queue.remove(handler.message)

    def finish(self, handler: Handler) -> None:
        """Lets a replica work without disturbance."""
        while handler in self.handlers:
            self.advance(handler)

    def crash(self, handler: Handler) -> None:
        """The replica is gone; its message stays."""
        handler.steps.close()
        self.handlers.remove(handler)

    def kill_tools(self) -> None:
        """The host of the tools dies with all that it was at."""
        self.services.tools.die()
        for handler in list(self.handlers):
            if handler.message and handler.message.kind == "command":
                self.crash(handler)

    def pass_deadline(self) -> Handler:
        """A replica finds the run on the list of deadlines, at the same time as others or a while later."""
        self.now_ms += 10_000
        handler = Handler(None, self._event(DeadlinePassed(self.now_ms)))
        self.handlers.append(handler)
        return handler

    # --- Redis is killed, and somebody looks after what it has forgotten (orchestrator/lapses.py)

    def forget(self, moments: int) -> None:
        """Redis comes back as it was; a request that it has forgotten is handled again."""
        life = self.store.life + 1
        before = self.past[-1 - moments % len(self.past)]
        for name, value in vars(copy.deepcopy(before)).items():
            setattr(self.store, name, value)
        self.past.clear()
        self.forgot = True
        self.store.life = life
        self.services.tools.excuse(set(self.store.context["outcomes"]))
        at_work = [handler.message for handler in self.handlers]  # who may have saved what is forgotten now
        asked = [each for each in self.queue if each.kind == "request" and each not in at_work]
        if self.store.state is None and not asked:
            self.queue.append(Message("request", b"again"))

    def recall(self) -> Handler | None:
        """What an orchestrator makes of a run that does not move although nobody is at work on it."""
        state = self.state()
        if state is None or state.status == "done":
            return None
        if self.finished:
            event: RunEvent = Ended(RunResult.model_validate_json(self.finished[0]))
        elif state.sent is None:
            return None
        else:
            event = Forgotten(state.seq)
        handler = Handler(None, self._event(event))
        self.handlers.append(handler)
        return handler

    def state(self) -> RunState | None:
        """The run as stored."""
        return self.read(self.store.state)

    def read(self, stored: bytes | None) -> RunState | None:
        """What was stored, in the life of Redis that it is now."""
        return None if stored is None else read_state(stored, self.fresh.plan.stored, self.store.life)

    # --- the shell (processor_host/executor.py, processor_host/driver.py, orchestrator/requests.py)

    def _handle(self, message: Message) -> Steps:
        yield
        match message.kind:
            case "command":
                yield from self._work(WorkCommand.from_json(message.body))
            case "result":
                yield from self._event(WorkResult.from_json(message.body))
            case "turn":
                yield from self._event(Started())
            case "control":
                control = Control.model_validate_json(message.body)
                if control.type == "cancel":
                    self.store.cancelled = True
                    yield
                yield from self._event(control)
            case _:
                yield from self._request(again=bool(message.body))

    def _work(self, command: WorkCommand) -> Steps:
        version, stored = self.store.state_version, self.store.state
        if self.services.is_current(command) and self.store.numbered_in != self.store.life:
            yield from self._event(Forgotten(command.seq))
            return
        reduced: list[tuple[RunState, list[Effect]]] = []

        def next_state(result: WorkResult) -> tuple[int, bytes] | None:
            state = self.read(stored)
            if state is None:
                return None
            reduced.append(reduce_by_law(state, result))
            return version, reduced[0][0].to_json()

        counts, saved = yield from self.services.execute(command, self.choose, next_state)
        continued, bound = self.store.context["continued"], self.fresh.plan.max_steps
        assert bound is None or continued < bound, "more steps than there may be"
        yield
        if counts is None:
            now = self.state()
            if now is not None:
                yield from self._perform(outstanding(now))
        elif saved:
            yield from self._perform(reduced[0][1])
        else:
            yield from self._event(WorkResult.from_json(counts))

    def _request(self, *, again: bool) -> Steps:
        state = deepcopy(self.fresh).but(life=self.store.life, leap=again or self.forgot)
        after, effects = (state, outstanding(state)) if state.queued else reduce_by_law(state, Started())
        yield
        known = self.state()
        if known is not None:
            yield from self._perform(outstanding(known))
            return
        cancelled = self.store.cancelled
        assert self.store.save_state(0, after.to_json())
        yield
        if cancelled:
            if state.queued:
                after, effects = reduce_by_law(state, Control(type="cancel"))
            else:
                after, effects = reduce_by_law(state.but(cancel=True), Started())
            if not self.store.save_state(1, after.to_json()):
                return
            yield
        yield from self._perform(effects)

    def _event(self, event: RunEvent) -> Steps:
        version, state = self.store.state_version, self.state()
        while state is not None:
            after, effects = reduce_by_law(state, event)
            yield
            if after == state or self.store.save_state(version, after.to_json()):
                yield from self._perform(effects)
                return
            version, state = self.store.state_version, self.state()

    def _perform(self, effects: list[Effect]) -> Steps:
        for effect in effects:
            yield
            yield from self._do(effect)
        if any(isinstance(effect, TellFinished) for effect in effects):
            yield
            self.store.listed = False

    def _do(self, effect: Effect) -> Steps:
        if isinstance(effect, Send):
            self._count(effect.command)
        match effect:
            case Send(command) if command.service == LOCAL:
                yield from self._work(command)
            case Send(command):
                self.publish("command", command.to_json(), f"work:{command.id}")
            case SignalCancel():
                self.store.cancelled = True
            case TellFinished(result):
                if not (self.forgot and self.finished):  # NATS takes the first one
                    self.finished.append(result.to_json())
                assert len(set(self.finished)) == 1, "two different terminal events"
            case TellSuspended(result):
                assert result.status == "suspended"
            case PassTurn():
                self.passed = True
            case Interrupt() | TellResumed():
                pass  # others, and clients, are none of its business

    def _count(self, command: WorkCommand) -> None:
        """Counts the retries by what was sent, whatever the state says of them."""
        if any(isinstance(op, StepFinishOp) and op.reason == "retry" for op in command.ops):
            self.retried.add(command.seq)
        within = self.forgot or len(self.retried) <= (self.fresh.plan.budget or 0)
        assert within, "more retries than the budget has"


def reduce_by_law(before: RunState, event: RunEvent) -> tuple[RunState, list[Effect]]:
    """Reduces, and holds the step against every law that concerns a single one."""
    given, asked = before.to_json(), copy.deepcopy(event)
    after, effects = reduce(before, event)
    assert before.to_json() == given, "the reducer changed the state it was given"
    assert event == asked, "the reducer changed the event it was given"
    assert read_state(after.to_json(), after.plan.stored) == after, "the state does not survive storing"
    _check_event(before, event, after, effects)
    _check_progress(before, event, after, effects)
    _check_bounds(before, after)
    return after, effects


def _check_event(before: RunState, event: RunEvent, after: RunState, effects: list[Effect]) -> None:
    if not isinstance(event, DeadlinePassed):
        assert reduce(after, event) == (after, effects), "the same event again did something else"
    if before.status == "done":
        assert after == before, "something changed after the end"
        assert effects == outstanding(before)
    if isinstance(event, WorkResult) and (before.sent is None or event.seq != before.seq):
        assert after == before, "an answer to a command that is not outstanding was taken"


def _check_progress(before: RunState, event: RunEvent, after: RunState, effects: list[Effect]) -> None:
    ending = before.status == "running" and before.ending
    if ending and isinstance(event, DeadlinePassed) and event.at_ms < before.deadline_ms:
        assert (after, effects) == (before, []), "somebody is at it"
        return
    """Whatever happened, somebody has the word."""
    turn = [PassTurn] if after.line else []
    match after.status:
        case "done":
            assert [type(effect) for effect in effects] == [TellFinished, *turn]
        case "suspended":
            assert [type(effect) for effect in effects] == [TellSuspended, *turn]
            assert after.waiting
            assert not after.cancel
        case "running" if after.queued:
            assert (after.seq, after.sent) == (0, None)
        case "running":
            assert after.sent
            assert effects[-1] == Send(command(after, after.sent))
    if isinstance(event, Forgotten):  # the same once more
        assert after.seq == before.seq or after.seq - before.seq >= SKIPPED
        return
    assert after.seq - before.seq in (0, 1) or (before.leap and after.seq - before.seq >= SKIPPED)
    if after.seq > before.seq and after.sent:
        sent = command(after, after.sent)
        assert sent.seq == after.seq
        barred = [op for op in sent.ops if isinstance(op, ModelOp | ToolsOp)]
        assert not (after.cancel and barred), "a cancelled run begins a model call or tools"


def _check_bounds(before: RunState, after: RunState) -> None:
    plan = after.plan
    assert before.retries <= after.retries <= (plan.budget or 0)
    assert before.step <= after.step
    assert plan.max_steps is None or after.step < plan.max_steps
    assert after.model_index < len(plan.models)
