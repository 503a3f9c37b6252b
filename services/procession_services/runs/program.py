"""Compiles phases of a run into operations (core.md 2.1)."""

from collections.abc import Callable
from functools import wraps
from itertools import takewhile
from typing import TypeVar, cast

from procession.processor import Hook
from procession_schemas.run import Failure, Tripwire
from procession_schemas.work import (
    AcceptOp,
    ArraysOp,
    BaselineOp,
    BeginOp,
    EmitOp,
    FailOp,
    Guard,
    HookOp,
    IfOutcomesOp,
    ModelOp,
    Op,
    OpenOp,
    RejectOp,
    ResultOp,
    StepFinishOp,
    StopOp,
    StreamOp,
    ToolResultsOp,
    ToolsOp,
    UnlessToolsOp,
    WorkCommand,
)
from procession_services.runs.state import (
    ArraysByPlan,
    Bare,
    BeginByPlan,
    ByPlan,
    HookByPlan,
    ModelByPlan,
    Plan,
    PlannedOp,
    RunState,
    Sent,
    StopByPlan,
    ToolResultsByPlan,
    ToolsByPlan,
    told_places,
)

LOCAL = "orchestrator"
"""The service name of operations that need no other service."""
GATEWAY = "llm_gateway"
OUTPUT = "output_processors"
T = TypeVar("T")
_BASELINE = PlannedOp(op=BaselineOp())
_ARRAYS = PlannedOp(op=ArraysByPlan())
_BEGIN = PlannedOp(op=BeginByPlan())
_MODEL = PlannedOp(op=ModelByPlan(), host=GATEWAY)
_UNLESS_TOOLS = PlannedOp(op=UnlessToolsOp())
_IF_OUTCOMES = PlannedOp(op=IfOutcomesOp())
_ACCEPT = PlannedOp(op=AcceptOp())
_TOOLS = PlannedOp(op=ToolsByPlan(), host="tools")
_STOP = PlannedOp(op=StopByPlan())
_ABORT = EmitOp(chunks=[{"type": "abort", "payload": {}}])


def anywhere(*ops: Bare) -> list[PlannedOp]:
    """Operations that join whatever service comes next."""
    return [PlannedOp(op=op) for op in ops]


def _once(make: Callable[[Plan], T]) -> Callable[[Plan], T]:
    """For what depends on the plan alone: it is made once for each, and never changed."""

    @wraps(make)
    def made(plan: Plan) -> T:
        if make.__name__ not in plan.made:
            plan.made[make.__name__] = make(plan)
        return cast("T", plan.made[make.__name__])

    return made


@_once
def guards(plan: Plan) -> list[Guard]:
    """The input processors that run beside the model."""
    return [Guard(processor=p.ref, index=index) for index, p in enumerate(plan.input) if p.beside]


def hook_ops(plan: Plan, hook: Hook, finish_reason: str | None = None) -> list[PlannedOp]:
    """One operation for each stretch of the array that one service runs; none when no processor has the hook."""
    return [
        PlannedOp(
            op=HookByPlan(hook=hook.value, offset=stretch.places[0], finish_reason=finish_reason),
            host=stretch.host,
        )
        for stretch in plan.stretches.get(hook, ())
    ]


def start(state: RunState, first: OpenOp) -> list[PlannedOp]:
    """The request, and processInput."""
    return [PlannedOp(op=first), *hook_ops(state.plan, Hook.INPUT)]


def arrays() -> list[PlannedOp]:
    """What a request has functions for, which may look at what processInput has made of its context."""
    return [_ARRAYS]


def first_attempt(state: RunState) -> list[PlannedOp]:
    """The start of the stream and the first attempt."""
    return [_BASELINE, *anywhere(EmitOp(chunks=[_start_chunk(state)])), *attempt(state.plan)]


def _start_chunk(state: RunState) -> dict[str, object]:
    return {"type": "start", "payload": {"id": state.agent, "messageId": state.message_id}}


@_once
def attempt(plan: Plan) -> list[PlannedOp]:
    """From processInputStep to the model's answer."""
    return [
        _BEGIN,
        *hook_ops(plan, Hook.INPUT_STEP),
        *hook_ops(plan, Hook.LLM_REQUEST),
        _MODEL,
        *(_last_step(plan) if not judge(plan) else []),
    ]


def _last_step(plan: Plan) -> list[PlannedOp]:
    """What follows an answer without tool calls that nobody judges: it joins the command of the model."""
    ops = [step_finish(None, continued=False), _ACCEPT, *finish(plan, None)]
    return [_UNLESS_TOOLS, *(_lent(ops) if plan.chain else ops)]


def _lent(ops: list[PlannedOp]) -> list[PlannedOp]:
    """Lends the first operations to the output replica that has the model's stream."""
    lent = list(takewhile(lambda planned: planned.host in {None, OUTPUT}, ops))
    return [*(planned.but(lent=True) for planned in lent), *ops[len(lent) :]]


@_once
def judge(plan: Plan) -> list[PlannedOp]:
    """processLLMResponse, then processOutputStep."""
    return [*hook_ops(plan, Hook.LLM_RESPONSE), *hook_ops(plan, Hook.OUTPUT_STEP)]


@_once
def tools(plan: Plan) -> list[PlannedOp]:
    """The tools of the accepted response and what becomes of their results: a replica of the chain does that."""
    host = OUTPUT if Hook.TOOL_RESULT in plan.stretches and not plan.chain else None
    return [_TOOLS, PlannedOp(op=ToolResultsByPlan(), host=host)]


def stop_conditions() -> list[PlannedOp]:
    """The stop conditions, which need the step that was just accepted."""
    return [_ACCEPT, _STOP]


def step_finish(reason: str | None, *, continued: bool, tripwire: Tripwire | None = None) -> PlannedOp:
    """`step-finish`, through the output chain."""
    return PlannedOp(op=StepFinishOp(reason=reason, is_continued=continued, tripwire=tripwire))


def step_over(reason: str, *, continued: bool, accepted: bool) -> list[PlannedOp]:
    """The end of a step; it is accepted only when the output chain has let `step-finish` pass."""
    finished = step_finish(reason, continued=continued)
    return [finished] if accepted else [finished, _ACCEPT]


def step_on(reason: str) -> list[PlannedOp]:
    """The end of a step after whose tools another step follows; it is in the command of the tools."""
    return [_IF_OUTCOMES, *step_over(reason, continued=True, accepted=False)]


def retry(tripwire: Tripwire | None) -> list[PlannedOp]:
    """The end of a rejected attempt whose retry was granted (R-AB-28)."""
    finish = step_finish("retry", continued=True, tripwire=tripwire)
    return [finish, *anywhere(RejectOp(tripwire=tripwire, finish_reason="retry"))]


def finish(plan: Plan, reason: str | None) -> list[PlannedOp]:
    """ProcessOutputResult and the normal end."""
    return [
        *hook_ops(plan, Hook.OUTPUT_RESULT, reason),
        *anywhere(ResultOp(finish_reason=reason, status="finished")),
    ]


def blocked(tripwire: Tripwire, *, responded: bool) -> list[PlannedOp]:
    """The end of a blocked run: nothing is saved, the tripwire is the last chunk (R-AB-10).

    `responded`: a complete response was blocked, so that it is listed among the steps.
    """
    chunk = {"type": "tripwire", "payload": tripwire.model_dump(by_alias=True, exclude_none=True)}
    return anywhere(
        RejectOp(tripwire=tripwire, finish_reason="tripwire", listed=responded),
        EmitOp(chunks=[chunk]),
        ResultOp(finish_reason="other", status="blocked", finish=False, tripwire=tripwire),
    )


def failed(error: Failure) -> list[PlannedOp]:
    """The end of a run whose processor, tool host or configuration failed (D-30)."""
    return anywhere(
        EmitOp(chunks=[error_chunk(error)]),
        ResultOp(finish_reason="error", status="failed", finish=False, error=error),
    )


def error_chunk(error: Failure) -> dict[str, object]:
    """The `error` chunk of a failure."""
    return {"type": "error", "payload": {"error": error.model_dump(by_alias=True, exclude_none=True)}}


def model_failed(plan: Plan, error: Failure) -> list[PlannedOp]:
    """The end of a run whose model failed for good: the result hooks run, memory keeps what there is (R-AE-13, 14)."""
    return [
        *anywhere(StreamOp(chunks=[error_chunk(error)])),
        step_finish("error", continued=False),
        *anywhere(FailOp(error=error)),
        *hook_ops(plan, Hook.OUTPUT_RESULT, "error"),
        *anywhere(ResultOp(finish_reason="error", status="failed", error=error)),
    ]


def cancelled(plan: Plan) -> list[PlannedOp]:
    """The end of a cancelled run (R-CX-3, R-CX-4)."""
    return [
        *anywhere(_ABORT),
        *hook_ops(plan, Hook.OUTPUT_RESULT, "aborted"),
        *anywhere(ResultOp(finish_reason="aborted", status="cancelled")),
    ]


def left_waiting(state: RunState) -> list[PlannedOp]:
    """The end of a run that was cancelled while calls waited: what others of the step gave is recorded (R-CX-2)."""
    return [*(tools(state.plan)[1:] if state.facts.outcomes else []), *cancelled(state.plan)]


def unjudged(*, told: bool) -> list[PlannedOp]:
    """The end of a cancelled run whose processOutputResult was left: it has no text; `told`: nor another `abort`."""
    message = "processOutputResult did not finish soon after the run was cancelled; what it has not checked is withheld"
    error = Failure(code="PROCESSOR_TIMEOUT", message=message, hook=Hook.OUTPUT_RESULT.value)
    end = ResultOp(finish_reason="aborted", status="cancelled", error=error)
    return anywhere(end) if told else anywhere(_ABORT, end)


def never_begun(state: RunState) -> list[PlannedOp]:
    """The end of a run that was cancelled while it waited for its turn: it leaves nothing behind (R-CX-5)."""
    return anywhere(
        EmitOp(chunks=[_start_chunk(state), *_ABORT.chunks]),
        ResultOp(finish_reason="aborted", status="cancelled"),
    )


def suspended(state: RunState) -> list[PlannedOp]:
    """What a client is told of calls that wait for a person (R-AP-2)."""
    chunks = []
    for entry in state.waiting:
        kind = "tool-call-approval" if entry["kind"] == "approval" else "tool-call-suspended"
        chunks.append({"type": kind, "payload": {k: v for k, v in entry.items() if k != "kind"}})
    approvals = StreamOp(chunks=[c for c in chunks if c["type"] == "tool-call-approval"])
    others = EmitOp(chunks=[c for c in chunks if c["type"] != "tool-call-approval"])
    payload = {"calls": state.waiting}
    return [
        *(anywhere(approvals) if approvals.chunks else []),
        *(anywhere(others) if others.chunks else []),
        *anywhere(
            ResultOp(finish_reason="suspended", status="suspended", finish=False, suspend_payload=payload)
        ),
    ]


def command(state: RunState, sent: Sent) -> WorkCommand:
    """The command that is out: the same one as long as it is."""
    pending = state.pending[: sent.ops]
    return WorkCommand(
        run=state.run,
        tenant=state.tenant,
        agent=state.agent,
        seq=state.seq,
        service=sent.service,
        version=sent.version,
        out_seq=state.out_seq,
        message_id=state.message_id,
        stream=state.plan.stream,
        ops=[_whole(planned.op, state) for planned in pending],
        chain_places=told_places(state.plan.chain_places),
        renewed=state.renewed == state.seq,
    )


def _whole(op: Bare, state: RunState) -> Op:
    """The operation with what the plan says of it."""
    plan = state.plan
    if isinstance(op, HookByPlan):
        stretch = next(each for each in plan.stretches[op.hook] if each.places[0] == op.offset)
        return HookOp(
            hook=op.hook,
            processors=stretch.refs,
            offset=op.offset,
            places=told_places(stretch.places, op.offset),
            finish_reason=op.finish_reason,
            stream_processors=plan.chain if plan.data_parts else [],
        )
    if isinstance(op, (StepFinishOp, StreamOp)):
        return op.but(processors=plan.chain)
    return _by_plan(op, state) if isinstance(op, ByPlan) else op


def _by_plan(op: ByPlan, state: RunState) -> Op:
    plan = state.plan
    match op:
        case ArraysByPlan():
            return ArraysOp(factories=plan.factories)
        case BeginByPlan():
            config = plan.configs[state.model_index]
            return BeginOp(step=state.step, retry_count=state.retries, feedback=state.feedback, config=config)
        case ModelByPlan():
            return _model(state)
        case ToolsByPlan():
            return ToolsOp(
                require_approval=plan.require_tool_approval,
                decisions=state.decisions,
                processors=plan.chain,
            )
        case ToolResultsByPlan():
            stretches = plan.stretches.get(Hook.TOOL_RESULT, [])
            return ToolResultsOp(
                result_processors=[ref for stretch in stretches for ref in stretch.refs],
                places=told_places([place for stretch in stretches for place in stretch.places]),
                processors=plan.chain,
            )
        case StopByPlan():
            return StopOp(conditions=plan.stop_when)


def _model(state: RunState) -> ModelOp:
    plan = state.plan
    entry = plan.models[state.model_index]
    return ModelOp(
        processors=plan.chain,
        guards=[] if state.guarded else guards(plan),
        keep_chunks=Hook.LLM_RESPONSE in plan.stretches,
        entry=entry,
        fallback=state.model_index + 1 < len(plan.models),
        max_retries=plan.max_retries if entry.max_retries is None else entry.max_retries,
        api_base=plan.api_base,
        keyless=plan.keyless,
        include_raw_chunks=plan.include_raw_chunks,
        replica=state.replica,
    )
