"""Compiles phases of a run into operations (core.md 2.1)."""

from itertools import groupby, takewhile

from procession.processor import Hook
from procession_schemas.agent import ProcessorRef
from procession_schemas.run import Failure, Tripwire
from procession_schemas.work import (
    AcceptOp,
    BaselineOp,
    BeginOp,
    EmitOp,
    FailOp,
    Guard,
    HookOp,
    ModelOp,
    Op,
    RejectOp,
    ResultOp,
    StepFinishOp,
    StopOp,
    StreamOp,
    ToolResultsOp,
    ToolsOp,
    UnlessToolsOp,
)
from procession_services.runs.merging import deep_merge
from procession_services.runs.state import Placed, Plan, PlannedOp, RunState

GATEWAY = "llm_gateway"
OUTPUT = "output_processors"


def anywhere(*ops: Op) -> list[PlannedOp]:
    """Operations that join whatever service comes next."""
    return [PlannedOp(op=op) for op in ops]


def refs_with(placed: list[Placed], hook: Hook) -> list[ProcessorRef]:
    """The processors of an array that have a hook."""
    return [p.ref for p in placed if hook in p.hooks]


def stream_refs(plan: Plan) -> list[ProcessorRef]:
    """The output chain."""
    return refs_with(plan.output, Hook.OUTPUT_STREAM)


def guards(plan: Plan) -> list[Guard]:
    """The input processors that run beside the model."""
    return [Guard(processor=p.ref, index=index) for index, p in enumerate(plan.input) if p.beside]


def hook_ops(
    plan: Plan, array: list[Placed], hook: Hook, finish_reason: str | None = None
) -> list[PlannedOp]:
    """One operation for each stretch of the array that one service runs; none when no processor has the hook."""
    having = [(index, placed) for index, placed in enumerate(array) if hook in placed.hooks]
    data_chain = stream_refs(plan) if plan.data_parts else []
    ops = []
    for host, group in groupby(having, key=lambda entry: entry[1].host):
        members = list(group)
        op = HookOp(
            hook=hook.value,
            processors=[placed.ref for _, placed in members],
            offset=members[0][0],
            finish_reason=finish_reason,
            stream_processors=data_chain,
        )
        ops.append(PlannedOp(op=op, host=host))
    return ops


def start(state: RunState) -> list[PlannedOp]:
    """From the request to the first attempt."""
    plan = state.plan
    return [
        *anywhere(plan.open),
        *hook_ops(plan, plan.input, Hook.INPUT),
        *anywhere(BaselineOp(), EmitOp(chunks=[_start_chunk(state)])),
        *attempt(state),
    ]


def _start_chunk(state: RunState) -> dict[str, object]:
    return {"type": "start", "payload": {"id": state.agent, "messageId": state.message_id}}


def attempt(state: RunState) -> list[PlannedOp]:
    """From processInputStep to the model's answer."""
    plan = state.plan
    entry = plan.models[state.model_index]
    config = plan.config.model_copy(
        update={
            "model": entry.model,
            "model_settings": {**plan.config.model_settings, **entry.model_settings},
            "provider_options": deep_merge(plan.config.provider_options, entry.provider_options),
        }
    )
    model = ModelOp(
        processors=stream_refs(plan),
        guards=[] if state.guarded else guards(plan),
        keep_chunks=bool(refs_with(plan.input, Hook.LLM_RESPONSE)),
        entry=entry,
        max_retries=plan.max_retries if entry.max_retries is None else entry.max_retries,
        api_base=plan.api_base,
        include_raw_chunks=plan.include_raw_chunks,
        replica=state.replica,
    )
    return [
        *anywhere(
            BeginOp(step=state.step, retry_count=state.retries, feedback=state.feedback, config=config)
        ),
        *hook_ops(plan, plan.input, Hook.INPUT_STEP),
        *hook_ops(plan, plan.input, Hook.LLM_REQUEST),
        PlannedOp(op=model, host=GATEWAY),
        *(_last_step(state) if not judge(state) else []),
    ]


def _last_step(state: RunState) -> list[PlannedOp]:
    """What follows an answer without tool calls that nobody judges: it joins the command of the model."""
    chain = stream_refs(state.plan)
    ops = [
        *anywhere(StepFinishOp(is_continued=False, processors=chain), AcceptOp()),
        *finish(state, None),
    ]
    return [*anywhere(UnlessToolsOp()), *(_lent(ops) if chain else ops)]


def _lent(ops: list[PlannedOp]) -> list[PlannedOp]:
    """Lends the first operations to the output replica that has the model's stream."""
    lent = list(takewhile(lambda planned: planned.host in {None, OUTPUT}, ops))
    return [*(planned.model_copy(update={"lent": True}) for planned in lent), *ops[len(lent) :]]


def judge(state: RunState) -> list[PlannedOp]:
    """processLLMResponse, then processOutputStep."""
    plan = state.plan
    return [*hook_ops(plan, plan.input, Hook.LLM_RESPONSE), *hook_ops(plan, plan.output, Hook.OUTPUT_STEP)]


def tools(state: RunState) -> list[PlannedOp]:
    """The tools of the accepted response and what becomes of their results."""
    plan, chain = state.plan, stream_refs(state.plan)
    run = ToolsOp(require_approval=plan.require_tool_approval, decisions=state.decisions, processors=chain)
    record = ToolResultsOp(result_processors=refs_with(plan.output, Hook.TOOL_RESULT), processors=chain)
    return [
        PlannedOp(op=run, host="tools"),
        PlannedOp(op=record, host=OUTPUT if record.result_processors else None),
    ]


def stop_conditions(state: RunState) -> list[PlannedOp]:
    """The stop conditions, which need the step that was just accepted."""
    return anywhere(AcceptOp(), StopOp(conditions=state.plan.stop_when))


def step_finish(
    state: RunState, reason: str, *, continued: bool, tripwire: Tripwire | None = None
) -> PlannedOp:
    """`step-finish`, through the output chain."""
    op = StepFinishOp(
        reason=reason, is_continued=continued, tripwire=tripwire, processors=stream_refs(state.plan)
    )
    return PlannedOp(op=op)


def step_over(state: RunState, reason: str, *, continued: bool, accepted: bool) -> list[PlannedOp]:
    """The end of a step; it is accepted only when the output chain has let `step-finish` pass."""
    finished = step_finish(state, reason, continued=continued)
    return [finished] if accepted else [finished, *anywhere(AcceptOp())]


def retry(state: RunState, tripwire: Tripwire | None) -> list[PlannedOp]:
    """The end of a rejected attempt whose retry was granted (R-AB-28)."""
    finish = step_finish(state, "retry", continued=True, tripwire=tripwire)
    return [finish, *anywhere(RejectOp(tripwire=tripwire, finish_reason="retry"))]


def finish(state: RunState, reason: str | None) -> list[PlannedOp]:
    """ProcessOutputResult and the normal end."""
    return [
        *hook_ops(state.plan, state.plan.output, Hook.OUTPUT_RESULT, reason),
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


def model_failed(state: RunState, error: Failure) -> list[PlannedOp]:
    """The end of a run whose model failed for good: the result hooks run, memory keeps what there is (R-AE-13, 14)."""
    plan = state.plan
    stream = StreamOp(chunks=[error_chunk(error)], processors=stream_refs(plan))
    return [
        PlannedOp(op=stream),
        step_finish(state, "error", continued=False),
        *anywhere(FailOp(error=error)),
        *hook_ops(plan, plan.output, Hook.OUTPUT_RESULT, "error"),
        *anywhere(ResultOp(finish_reason="error", status="failed", error=error)),
    ]


def cancelled(state: RunState) -> list[PlannedOp]:
    """The end of a cancelled run (R-CX-3, R-CX-4)."""
    return [
        *anywhere(EmitOp(chunks=[{"type": "abort", "payload": {}}])),
        *hook_ops(state.plan, state.plan.output, Hook.OUTPUT_RESULT, "aborted"),
        *anywhere(ResultOp(finish_reason="aborted", status="cancelled")),
    ]


def never_begun(state: RunState) -> list[PlannedOp]:
    """The end of a run that was cancelled while it waited for its turn: it leaves nothing behind (R-CX-5)."""
    return anywhere(
        EmitOp(chunks=[_start_chunk(state), {"type": "abort", "payload": {}}]),
        ResultOp(finish_reason="aborted", status="cancelled"),
    )


def suspended(state: RunState) -> list[PlannedOp]:
    """What a client is told of calls that wait for a person (R-AP-2)."""
    chunks = []
    for entry in state.waiting:
        kind = "tool-call-approval" if entry["kind"] == "approval" else "tool-call-suspended"
        chunks.append({"type": kind, "payload": {k: v for k, v in entry.items() if k != "kind"}})
    approvals = StreamOp(
        chunks=[c for c in chunks if c["type"] == "tool-call-approval"], processors=stream_refs(state.plan)
    )
    others = EmitOp(chunks=[c for c in chunks if c["type"] != "tool-call-approval"])
    payload = {"calls": state.waiting}
    return [
        *(anywhere(approvals) if approvals.chunks else []),
        *(anywhere(others) if others.chunks else []),
        *anywhere(
            ResultOp(finish_reason="suspended", status="suspended", finish=False, suspend_payload=payload)
        ),
    ]
