"""The run as a pure function of what happens to it.

Laws, held by property tests: a run ends in exactly one terminal event; an event that comes again changes nothing and
gives the same effects; an answer to a command that is no longer outstanding changes nothing (fencing).
"""

from procession.processor import Hook
from procession.system_messages import feedback
from procession_schemas.run import Failure, ModelReport, RunResult, Tripwire
from procession_schemas.work import (
    ANY_VERSION,
    Control,
    ResultOp,
    StepFacts,
    StepFinishOp,
    WorkResult,
)
from procession_services.runs import program
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
from procession_services.runs.numbering import fence_of, number, renumber
from procession_services.runs.state import Bare, HookByPlan, Placed, PlannedOp, RunState, Sent, Then

LOCAL = "orchestrator"
"""The service name of operations that need no other service."""
_NO_RETRY = frozenset({Hook.INPUT.value, Hook.OUTPUT_RESULT.value})
_BARRED = frozenset({"model", "tools"})
_ENDING_MS = 15_000
_ENDING_REASONS = frozenset({"error", "length", "content-filter"})


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
    return state.model_copy(update=own)


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
        state.queued, first = False, first.model_copy(update={"waited": True})
    ops = program.start(state, first)
    if state.plan.factories:
        _go(state, [*ops, *program.arrays()], "planned")
    else:
        _go(state, [*ops, *program.first_attempt(state)], "modelled")


def _go(state: RunState, ops: list[PlannedOp], then: Then) -> None:
    """Makes `ops` what the run does next, and sends the first stretch that one service can do."""
    state.pending, state.then = ops, then
    while not state.pending:
        _decide(state)
    if _barred(state, state.pending[0]):
        state.ending = True
        state.pending, state.then = program.cancelled(state.plan), "done"
    _send(state)


def _barred(state: RunState, planned: PlannedOp) -> bool:
    """Whether a cancelled run must not begin this any more (R-CX-2)."""
    return state.cancel and not state.ending and planned.op.op in _BARRED


def _send(state: RunState, *, version: int | None = None) -> None:
    host: str | None = None
    count = 0
    for planned in state.pending:
        if count and _barred(state, planned):
            break
        wanted = None if planned.lent and host == program.GATEWAY else planned.host
        if wanted is not None and host is not None and wanted != host:
            break
        host = host or wanted
        count += 1
    number(state)
    state.sent = Sent(service=host or LOCAL, ops=count, version=state.version if version is None else version)


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
        state.facts = state.facts.model_copy(update={"outcomes": result.facts.outcomes})
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
            state.error = result.error or _unknown()
            _go(state, program.hook_ops(state.plan, Hook.API_ERROR), "recovered")
        case "cancelled":
            _left(state, ops[min(result.at, len(ops) - 1)])
        case "suspended" if state.cancel:
            state.ending = True
            _go(state, program.cancelled(state.plan), "done")
        case "suspended":
            state.waiting = result.suspend or []
            _go(state, program.suspended(state), "suspended")
        case "failed":
            _failed(state, _placed(result.error or _unknown(), ops[: result.at + 1]), sent)


def _left(state: RunState, op: Bare) -> None:
    """The run was cancelled in an operation, which may not have ended; one that judges the end is not begun again."""
    end = state.pending[-1].op
    told = isinstance(end, ResultOp) and end.status == "cancelled"
    judges = isinstance(op, HookByPlan) and op.hook == Hook.OUTPUT_RESULT
    state.ending = True
    _go(state, program.unjudged(told=told) if told or judges else program.cancelled(state.plan), "done")


def _unknown() -> Failure:
    return Failure(code="INTERNAL", message="the service gave no reason")


def _through(state: RunState, ops: list[Bare], result: WorkResult) -> None:
    """The command did all its operations, or stopped where the rest was for another outcome."""
    state.pending = [] if result.stopped else state.pending[len(ops) :]
    if not result.stopped and any(op.op == "unlessTools" for op in ops):
        state.ending, state.then = True, "done"  # it was the last step
        _forget_step(state)
    if result.stopped and state.then == "stepped":
        state.then = "tooled"
    if result.retry:  # the first error processor that says so decides (R-AE-6)
        state.recover, state.pending = True, []
    if result.arrays is not None:
        made = {
            kind: [Placed.model_validate(each) for each in array] for kind, array in result.arrays.items()
        }
        state.plan = with_arrays(state.plan, made)
    if result.stop:
        state.facts = state.facts.model_copy(update={"stop": True})
    if state.cancel and not state.ending and not state.pending and state.then != "recovered":
        state.ending = True
        _go(state, program.cancelled(state.plan), "done")
    elif result.result is not None and not state.pending:
        _told(state, result.result)
    else:
        _go(state, state.pending, state.then)


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


def _decide(state: RunState) -> None:
    """What comes after the pending operations."""
    match state.then:
        case "planned":
            state.pending, state.then = program.first_attempt(state), "modelled"
        case "modelled":
            state.pending, state.then = program.judge(state.plan), "judged"
        case "judged":
            if state.facts.tool_calls:
                state.pending, state.then = _tools(state)
            else:
                _accepted(state)
        case "tooled":
            _accepted(state)
        case "stepped":
            _next_step(state)
        case "decide":
            _step_over(state, accepted=True)
        case "recovered":
            _recovered(state)
        case "suspended" | "done":
            raise AssertionError(f"a run that is {state.then} has no next operation")


def _tools(state: RunState) -> tuple[list[PlannedOp], Then]:
    """What the answer's tools have to do; the step ends with it where only their outcomes decide what follows."""
    ops = program.tools(state.plan)
    if state.plan.stop_when or not _may_continue(state):
        return ops, "tooled"
    return [*ops, *program.step_on(state.facts.finish_reason)], "stepped"


def _accepted(state: RunState) -> None:
    if state.plan.stop_when and _continues(state):
        state.pending, state.then = program.stop_conditions(), "decide"
    else:
        _step_over(state, accepted=False)


def _may_continue(state: RunState) -> bool:
    """Whether there is another step if tools have outcomes."""
    limit = state.plan.max_steps
    wants = state.facts.finish_reason not in _ENDING_REASONS
    return wants and not state.facts.stop and (limit is None or state.step + 1 < limit)


def _continues(state: RunState) -> bool:
    """R-LP-5: only local tool outcomes make another step (A-23)."""
    return state.facts.outcomes > 0 and _may_continue(state)


def _step_over(state: RunState, *, accepted: bool) -> None:
    """The step is accepted: the next one, or the end."""
    continued, reason = _continues(state), state.facts.finish_reason
    ops = program.step_over(reason, continued=continued, accepted=accepted)
    if continued:
        _next_step(state)
        state.pending = [*ops, *state.pending]
    else:
        _forget_step(state)
        state.ending = True
        state.pending, state.then = [*ops, *program.finish(state.plan, reason)], "done"


def _next_step(state: RunState) -> None:
    _forget_step(state)
    state.step += 1
    state.pending, state.then = program.attempt(state.plan), "modelled"


def _forget_step(state: RunState) -> None:
    state.feedback, state.facts, state.decisions, state.model_index = [], StepFacts(), {}, 0


def _has_budget(state: RunState) -> bool:
    return state.plan.budget is not None and state.retries < state.plan.budget


def _again(state: RunState, tripwire: Tripwire | None) -> list[PlannedOp]:
    """Grants a retry of the same step (R-AB-28)."""
    ending = program.retry(tripwire)
    state.retries += 1
    state.facts, state.decisions = StepFacts(), {}
    if tripwire:
        state.feedback = [*state.feedback, feedback(tripwire.reason)]
    return [*ending, *program.attempt(state.plan)]


def _tripped(state: RunState, tripwire: Tripwire, op: Bare, *, guarded: bool) -> None:
    """A processor aborted in an operation; `guarded`: as processInput beside it, so there is no step to try again."""
    plain = state.ending or state.cancel or guarded or not _replayable(op)
    if tripwire.retry and not plain and _has_budget(state):
        _go(state, _again(state, tripwire), "modelled")
        return
    responded = isinstance(op, HookByPlan) and op.hook == Hook.OUTPUT_STEP
    state.ending = True
    _go(state, program.blocked(tripwire, responded=responded), "done")


def _replayable(op: Bare) -> bool:
    """Whether there is a step to try again: none before the loop and after it, nor when a step is over (R-AB-27)."""
    if isinstance(op, StepFinishOp):
        return op.reason == "retry"
    return not (isinstance(op, HookByPlan) and op.hook in _NO_RETRY)


def _recovered(state: RunState) -> None:
    """The error processors have spoken (R-AE-6..9, R-FB-2)."""
    error, wants = state.error or _unknown(), state.recover
    state.error, state.recover = None, False
    if wants and _has_budget(state) and state.cancel:
        state.ending = True
        state.pending, state.then = program.cancelled(state.plan), "done"
    elif wants and _has_budget(state):
        state.pending, state.then = _again(state, None), "modelled"
    elif not state.facts.started and state.model_index + 1 < len(state.plan.models) and not state.cancel:
        state.model_index += 1
        state.pending, state.then = program.attempt(state.plan), "modelled"
    else:
        state.ending = True
        state.pending, state.then = program.model_failed(state.plan, error), "done"


def _placed(error: Failure, ops: list[Bare]) -> Failure:
    """The failure; one of operations with processOutputResult among them is of that: nothing is told unjudged (D-1)."""
    judged = any(isinstance(op, HookByPlan) and op.hook == Hook.OUTPUT_RESULT for op in ops)
    return error.model_copy(update={"hook": Hook.OUTPUT_RESULT.value}) if judged and not error.hook else error


def _failed(state: RunState, error: Failure, sent: Sent) -> None:
    if sent.version == ANY_VERSION:  # what was to tell of a failure failed
        _told(state, _bare_result(state, error))
        return
    state.ending = True
    state.pending, state.then = program.failed(error), "done"
    _send(state, version=ANY_VERSION)


def _bare_result(state: RunState, error: Failure) -> RunResult:
    return RunResult(run_id=state.run, agent=state.agent, status="failed", finish_reason="error", error=error)


def _cancel(state: RunState) -> tuple[RunState, list[Effect]]:
    if state.ending and not state.cancel:
        return state, outstanding(state)
    state.cancel = True
    if state.queued:
        state.queued, state.ending = False, True
        _go(state, program.never_begun(state), "done")
    if state.status == "suspended":
        state.status, state.result, state.ending, state.waiting = "running", None, True, []
        _go(state, program.cancelled(state.plan), "done")
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
            _go(state, *_tools(state))
    goes_on = state.status == "running" and call_id in state.decisions
    return state, [*([TellResumed()] if goes_on else []), *outstanding(state)]


def _deadline(state: RunState, at_ms: int) -> tuple[RunState, list[Effect]]:
    """Ends the run without waiting for whoever holds it up; whoever does so gets a moment for it."""
    if at_ms < state.deadline_ms:
        return state, [] if state.ending else outstanding(state)
    state.deadline_ms = at_ms + _ENDING_MS
    told = "the run waited for its turn" if state.queued else "the run did not end"
    error = Failure(code="DEADLINE_EXCEEDED", message=f"{told} within its timeout")
    if state.status == "suspended":
        within = f"within {state.suspended_ms // 1000} s (PROCESSION_SUSPENDED_TIMEOUT)"
        error.message = f"nobody decided about the tool calls for which the run waits {within}"
        state.status, state.result, state.waiting = "running", None, []
    error = _placed(error, [planned.op for planned in state.pending[:1]])
    if state.ending and state.sent and state.sent.service == LOCAL:
        _told(state, _bare_result(state, error))
        return state, outstanding(state)
    state.ending, state.queued = True, False
    state.pending, state.then = program.failed(error), "done"
    _send(state, version=ANY_VERSION)
    return state, [SignalCancel(), *outstanding(state)]


def _count(state: RunState, result: WorkResult) -> None:
    """Adds the tallies of a command to those of the run."""
    for report in result.reports:
        key = f"{report.processor} {report.hook}"
        have = state.reports.get(key)
        state.reports[key] = have.plus(report) if have else report
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
