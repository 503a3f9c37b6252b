"""The run as a pure function of what happens to it.

Laws, held by property tests: a run ends in exactly one terminal event; an event that comes again changes nothing and
gives the same effects; an answer to a command that is no longer outstanding changes nothing (fencing).
"""

from procession.processor import Hook
from procession_schemas.run import Failure, ModelReport, RunResult, Tripwire
from procession_schemas.work import (
    ANY_VERSION,
    Control,
    ResultOp,
    StepFinishOp,
    WorkResult,
)
from procession_services.runs import phases, program
from procession_services.runs.arrays import with_arrays
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
from procession_services.runs.numbering import fence_of, renumber
from procession_services.runs.state import Bare, HookByPlan, Placed, RunState, Sent

_NO_RETRY = frozenset({Hook.INPUT.value, Hook.OUTPUT_RESULT.value})
_ENDING_MS = 15_000


def reduce(state: RunState, event: RunEvent) -> tuple[RunState, list[Effect]]:
    """Takes one event; returns the new state and what is to be done."""
    state = _own(state)
    if state.status == "done":
        return state, outstanding(state)
    if isinstance(event, WorkResult):
        return _answered(state, event)
    if isinstance(event, Control):
        return _cancel(state) if event.type == "cancel" else _resume(state, event)
    if isinstance(event, DeadlinePassed):
        return _deadline(state, event.at_ms)
    if isinstance(event, Started):
        if state.open is not None and state.sent is None:
            _begin(state)
    elif isinstance(event, Forgotten):
        renumber(state, event.seq)
    elif isinstance(event, Ended):
        state.status, state.result, state.sent, state.queued = "done", event.result, None, False
    return state, outstanding(state)


def _own(state: RunState) -> RunState:
    """A copy to work on: what is changed in place below is copied, all else is only ever replaced."""
    own = {"decisions": dict(state.decisions), "reports": dict(state.reports), "models": dict(state.models)}
    return state.but(**own)


def outstanding(state: RunState) -> list[Effect]:
    """What follows from a state alone; doing it again is harmless."""
    turn: list[Effect] = [PassTurn()] if state.line else []
    if state.status == "done" and state.result:
        return [TellFinished(state.result), *turn]
    if state.status == "suspended" and state.result:
        return [TellSuspended(state.result), *turn]
    if state.queued and state.line and state.line.policy == "interrupt":
        return [Interrupt()]
    return [Send(program.command(state, state.sent))] if state.sent else []


def _begin(state: RunState) -> None:
    first, state.open = state.open, None
    assert first is not None
    if state.queued:
        state.queued, first = False, first.but(waited=True)
    ops = program.start(state, first)
    if state.plan.factories:
        phases.go(state, [*ops, *program.arrays()], "planned")
    else:
        phases.go(state, [*ops, *program.first_attempt(state)], "modelled")


def _answered(state: RunState, result: WorkResult) -> tuple[RunState, list[Effect]]:
    sent = state.sent
    if sent is None or result.seq != state.seq:
        return state, outstanding(state)
    ops = [planned.op for planned in state.pending[: sent.ops]]
    state.version, state.out_seq = result.version, max(result.out_seq, state.out_seq)
    state.replica = result.replica or state.replica
    state.guarded = state.guarded or result.verdict is not None
    _count(state, result)
    if result.facts and any(op.op == "tools" for op in ops):
        state.facts = state.facts.but(outcomes=result.facts.outcomes)
    elif result.facts:
        state.facts = result.facts
    _take_outcome(state, sent, ops, result)
    return state, outstanding(state)


def _take_outcome(state: RunState, sent: Sent, ops: list[Bare], result: WorkResult) -> None:
    match result.outcome:
        case "ok":
            _through(state, ops, result)
        case "tripwire":
            assert result.tripwire is not None
            guarded = result.verdict == "blocked"
            _tripped(state, result.tripwire, ops[min(result.at, len(ops) - 1)], guarded=guarded)
        case "modelFailed":
            state.error = result.error or phases.unexplained()
            phases.go(state, program.hook_ops(state.plan, Hook.API_ERROR), "recovered")
        case "cancelled":
            _left(state, ops[min(result.at, len(ops) - 1)])
        case "suspended" if state.cancel:
            phases.end(state, program.left_waiting(state))
        case "suspended":
            state.waiting = result.suspend or []
            phases.go(state, program.suspended(state), "suspended")
        case "failed":
            _failed(state, _placed(result.error or phases.unexplained(), ops[: result.at + 1]), sent)


def _left(state: RunState, op: Bare) -> None:
    """The run was cancelled in an operation, which may not have ended; one that judges the end is not begun again."""
    end = state.pending[-1].op
    told = isinstance(end, ResultOp) and end.status == "cancelled"
    judges = isinstance(op, HookByPlan) and op.hook == Hook.OUTPUT_RESULT
    phases.end(state, program.unjudged(told=told) if told or judges else program.cancelled(state.plan))


def _through(state: RunState, ops: list[Bare], result: WorkResult) -> None:
    """The command did all its operations, or stopped where the rest was for another outcome."""
    state.pending = [] if result.stopped else state.pending[len(ops) :]
    if not result.stopped and any(op.op == "unlessTools" for op in ops):
        state.ending, state.then = True, "done"  # it was the last step
        phases.forget_step(state)
    if result.stopped and state.then == "stepped":
        state.then = "tooled"
    if result.retry:  # the first error processor that says so decides (R-AE-6)
        state.recover, state.pending = True, []
    if result.arrays is not None:
        made = {kind: [Placed.of(each) for each in array] for kind, array in result.arrays.items()}
        state.plan = with_arrays(state.plan, made)
    if result.stop:
        state.facts = state.facts.but(stop=True)
    if state.cancel and not state.ending and not state.pending and state.then != "recovered":
        waits = state.then == "suspended"
        phases.end(state, program.left_waiting(state) if waits else program.cancelled(state.plan))
    elif result.result is not None and not state.pending:
        _told(state, result.result)
    else:
        phases.go(state, state.pending, state.then)


def _told(state: RunState, result: RunResult) -> None:
    """The result is compiled: the run is over, or waits for a person."""
    final = result.model_copy(
        update={
            "processors": list(state.reports.values()),
            "models": list(state.models.values()),
            "retries": state.retries,
        }
    )
    state.result, state.sent = final, None
    state.status = "suspended" if result.status == "suspended" else "done"


def _tripped(state: RunState, tripwire: Tripwire, op: Bare, *, guarded: bool) -> None:
    """A processor aborted in an operation; `guarded`: as processInput beside it, so there is no step to try again."""
    plain = state.ending or state.cancel or guarded or not _replayable(op)
    if tripwire.retry and not plain and phases.has_budget(state):
        phases.go(state, phases.again(state, tripwire), "modelled")
        return
    responded = isinstance(op, HookByPlan) and op.hook == Hook.OUTPUT_STEP
    phases.end(state, program.blocked(tripwire, responded=responded))


def _replayable(op: Bare) -> bool:
    """Whether there is a step to try again: none before the loop and after it, nor when a step is over (R-AB-27)."""
    return not (isinstance(op, StepFinishOp) or (isinstance(op, HookByPlan) and op.hook in _NO_RETRY))


def _placed(error: Failure, ops: list[Bare]) -> Failure:
    """The failure; one of operations with processOutputResult among them is of that: nothing is told unjudged (D-1)."""
    judged = any(isinstance(op, HookByPlan) and op.hook == Hook.OUTPUT_RESULT for op in ops)
    return error.model_copy(update={"hook": Hook.OUTPUT_RESULT.value}) if judged and not error.hook else error


def _failed(state: RunState, error: Failure, sent: Sent) -> None:
    if sent.version == ANY_VERSION:  # what was to tell of a failure failed
        _told(state, _bare_result(state, error))
        return
    phases.end_anyway(state, error)


def _bare_result(state: RunState, error: Failure) -> RunResult:
    return RunResult(run_id=state.run, agent=state.agent, status="failed", finish_reason="error", error=error)


def _cancel(state: RunState) -> tuple[RunState, list[Effect]]:
    if state.ending and not state.cancel:
        return state, outstanding(state)
    state.cancel = True
    if state.queued:
        state.queued = False
        phases.end(state, program.never_begun(state))
    if state.status == "suspended":
        state.status, state.result, state.waiting = "running", None, []
        phases.end(state, program.left_waiting(state))
    return state, [SignalCancel(), *outstanding(state)]


def _resume(state: RunState, control: Control) -> tuple[RunState, list[Effect]]:
    call_id = control.tool_call_id
    asked = state.waiting if control.fence in (None, fence_of(state.seq + 1)) else []
    others = [entry for entry in asked if entry["toolCallId"] != call_id]
    about = next((entry for entry in asked if entry["toolCallId"] == call_id), None)
    if state.result and state.status == "suspended" and call_id and about:
        state.decisions[call_id] = {**state.decisions.get(call_id, {}), **control.decision(about)}
        state.waiting = others
        state.result = state.result.model_copy(update={"suspend_payload": {"calls": others}})
        if not others:
            state.status, state.result = "running", None
            phases.go(state, *phases.tools(state))
    goes_on = state.status == "running" and call_id in state.decisions
    return state, [*([TellResumed()] if goes_on else []), *outstanding(state)]


def _deadline(state: RunState, at_ms: int) -> tuple[RunState, list[Effect]]:
    """Ends the run without waiting for whoever holds it up; whoever does so gets a moment for it."""
    if at_ms < state.deadline_ms:
        return state, [] if state.ending else outstanding(state)
    state.deadline_ms = at_ms + _ENDING_MS
    told = "waited for its turn until" if state.queued else "did not end within"
    limit = f"its timeout of {state.timeout_ms / 1000:g} s"
    whose = "`timeout` of the request or of the agent, else PROCESSION_RUN_TIMEOUT"
    error = Failure(code="DEADLINE_EXCEEDED", message=f"the run {told} {limit} ({whose})")
    if state.status == "suspended":
        within = f"within {state.suspended_ms // 1000} s (PROCESSION_SUSPENDED_TIMEOUT)"
        error.message = f"nobody decided on the waiting tool calls {within}"
        state.status, state.result, state.waiting = "running", None, []
    error = _placed(error, [planned.op for planned in state.pending[:1]])
    if state.ending and state.sent and state.sent.service == program.LOCAL:
        _told(state, _bare_result(state, error))
        return state, outstanding(state)
    state.queued = False
    phases.end_anyway(state, error)
    return state, [SignalCancel(), *outstanding(state)]


def _count(state: RunState, result: WorkResult) -> None:
    """Adds the tallies of a command to those of the run."""
    for report in result.reports:
        key = f"{report.processor} {report.hook}"
        total, before = report.but(), state.reports.get(key)
        if before is not None:
            total.add(before)
        state.reports[key] = total
    if result.model:
        have_model = state.models.get(result.model.model, ModelReport(model=result.model.model))
        usage: dict[str, int | None] = {
            k: (have_model.usage.get(k) or 0) + (result.model.usage.get(k) or 0)
            for k in {**have_model.usage, **result.model.usage}
        }
        costs = [c for c in (have_model.cost, result.model.cost) if c is not None]
        state.models[result.model.model] = ModelReport(
            model=result.model.model,
            calls=have_model.calls + result.model.calls,
            usage=usage,
            cost=sum(costs) if costs else None,
        )
