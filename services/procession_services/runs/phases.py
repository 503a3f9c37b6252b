"""What a run does next: its pending operations, and what follows when they are through."""

from procession.system_messages import feedback
from procession_schemas.run import Failure, Tripwire
from procession_schemas.work import ANY_VERSION, StepFacts
from procession_services.runs import program
from procession_services.runs.numbering import number
from procession_services.runs.state import PlannedOp, RunState, Sent, Then

_BARRED = frozenset({"model", "tools"})
_ENDING_REASONS = frozenset({"error", "length", "content-filter"})


def go(state: RunState, ops: list[PlannedOp], then: Then) -> None:
    """Makes `ops` what the run does next, and sends the first stretch that one service can do."""
    state.pending, state.then = ops, then
    while not state.pending:
        _decide(state)
    if state.pending[0].op.op in _barred(state):
        _last(state, program.cancelled(state.plan))
    _send(state)


def end(state: RunState, ops: list[PlannedOp]) -> None:
    """Makes `ops` the last that the run does, and sends the first stretch of them."""
    _last(state, ops)
    _send(state)


def end_anyway(state: RunState, error: Failure) -> None:
    """Ends the run with an error, whatever has become of its context."""
    _last(state, program.failed(error))
    _send(state, version=ANY_VERSION)


def _last(state: RunState, ops: list[PlannedOp]) -> None:
    state.pending, state.then, state.ending = ops, "done", True


def _barred(state: RunState) -> frozenset[str]:
    """What a cancelled run must not begin any more (R-CX-2)."""
    return _BARRED if state.cancel and not state.ending else frozenset()


def _send(state: RunState, *, version: int | None = None) -> None:
    """Sends as many of the pending operations as one service can do; on whatever `version` of the context is given."""
    host: str | None = None
    count, barred = 0, _barred(state)
    for planned in state.pending:
        if count and planned.op.op in barred:
            break
        wanted = None if planned.lent and host == program.GATEWAY else planned.host
        if wanted is not None and host is not None and wanted != host:
            break
        host = host or wanted
        count += 1
    number(state)
    state.sent = Sent(
        service=host or program.LOCAL, ops=count, version=state.version if version is None else version
    )


def _decide(state: RunState) -> None:
    """What comes after the pending operations."""
    match state.then:
        case "planned":
            state.pending, state.then = program.first_attempt(state), "modelled"
        case "modelled":
            state.pending, state.then = program.judge(state.plan), "judged"
        case "judged":
            if state.facts.tool_calls:
                state.pending, state.then = tools(state)
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


def tools(state: RunState) -> tuple[list[PlannedOp], Then]:
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
    """R-LP-5: only local tool outcomes make another step (A-23), and none while a call is the caller's (R-TX-5)."""
    return 0 < state.facts.tool_calls <= state.facts.outcomes and _may_continue(state)


def _step_over(state: RunState, *, accepted: bool) -> None:
    """The step is accepted: the next one, or the end."""
    continued, reason = _continues(state), state.facts.finish_reason
    ops = program.step_over(reason, continued=continued, accepted=accepted)
    if continued:
        _next_step(state)
        state.pending = [*ops, *state.pending]
    else:
        forget_step(state)
        _last(state, [*ops, *program.finish(state.plan, reason)])


def _next_step(state: RunState) -> None:
    forget_step(state)
    state.step += 1
    state.pending, state.then = program.attempt(state.plan), "modelled"


def forget_step(state: RunState) -> None:
    """Forgets what was of the step alone: the next one begins anew."""
    state.feedback, state.facts, state.decisions, state.model_index = [], StepFacts(), {}, 0


def _recovered(state: RunState) -> None:
    """The error processors have spoken (R-AE-6..9, R-FB-2)."""
    error, wants = state.error or unexplained(), state.recover
    state.error, state.recover = None, False
    if wants and has_budget(state) and state.cancel:
        _last(state, program.cancelled(state.plan))
    elif wants and has_budget(state):
        state.pending, state.then = again(state, None), "modelled"
    elif not state.facts.started and state.model_index + 1 < len(state.plan.models) and not state.cancel:
        state.model_index += 1
        state.pending, state.then = program.attempt(state.plan), "modelled"
    else:
        _last(state, program.model_failed(state.plan, error))


def has_budget(state: RunState) -> bool:
    """Whether processors may have a further attempt."""
    return state.plan.budget is not None and state.retries < state.plan.budget


def again(state: RunState, tripwire: Tripwire | None) -> list[PlannedOp]:
    """Grants a retry of the same step (R-AB-28)."""
    ending = program.retry(tripwire)
    state.retries += 1
    state.facts, state.decisions = StepFacts(), {}
    if tripwire:
        state.feedback = [*state.feedback, feedback(tripwire.reason)]
    return [*ending, *program.attempt(state.plan)]


def unexplained() -> Failure:
    """The failure of which a service has told nothing."""
    return Failure(code="INTERNAL", message="the service gave no reason")
