"""Which operations a phase becomes, where they run, and how many messages that costs."""

from typing import Any

import pytest

from procession.processor import Hook
from procession_schemas.agent import FactoryRef, ModelEntry
from procession_schemas.run import Failure, Tripwire
from procession_schemas.work import HookOp, OpenOp, StepConfig, StepFacts
from procession_services.runs import program
from procession_services.runs.state import Placed, PlannedOp
from tests.unit.procession_services.runs.driving import (
    Run,
    ids,
    make_plan,
    make_state,
    name_of,
    placed,
)

INPUT = (Hook.INPUT, Hook.INPUT_STEP, Hook.LLM_REQUEST, Hook.LLM_RESPONSE)
OUTPUT = (Hook.OUTPUT_STREAM, Hook.OUTPUT_STEP, Hook.TOOL_RESULT, Hook.OUTPUT_RESULT)


def names(ops: list[PlannedOp]) -> list[str]:
    return [name_of(planned.op) for planned in ops]


LAST = ["unlessTools", "stepFinish", "accept"]
"""What follows an answer without tool calls in the same command."""
STEP = ["toolResults", "ifOutcomes", "stepFinish", "accept"]
"""What follows tools whose outcomes make another step."""


def test_a_bare_agent_costs_one_command():
    run = Run().to_end()
    assert run.shapes() == [
        ("llm_gateway", ["open", "baseline", "emit", "begin", "model", *LAST, "result"]),
    ]


def test_a_bare_agent_with_a_tool_costs_one_command_for_the_tools_and_one_for_each_answer():
    run = Run().uses_tools().to_end()
    assert run.shapes() == [
        ("llm_gateway", ["open", "baseline", "emit", "begin", "model", *LAST, "result"]),
        ("tools", ["tools", *STEP]),
        ("llm_gateway", ["begin", "model", *LAST, "result"]),
    ]


def test_a_stream_chain_adds_no_command():
    run = Run(output=[placed("out", Hook.OUTPUT_STREAM)]).uses_tools().to_end()
    assert [service for service, _ in run.shapes()] == ["llm_gateway", "tools", "llm_gateway"]


def test_what_ends_the_run_is_in_the_command_of_the_model_whose_stream_a_replica_has():
    run = Run(output=[placed("out", Hook.OUTPUT_STREAM, Hook.OUTPUT_RESULT)]).until("model")
    assert run.ops[-5:] == ["unlessTools", "stepFinish", "accept", "processOutputResult", "result"]
    assert [service for service, _ in run.to_end().shapes()] == ["llm_gateway"]


def test_what_another_service_has_to_do_at_the_end_is_a_command_of_its_own():
    saves = placed("out2", Hook.OUTPUT_RESULT).but(host="memory")
    output = [placed("out", Hook.OUTPUT_STREAM, Hook.OUTPUT_RESULT), saves]
    run = Run(output=output).until("model")
    assert run.ops[-4:] == ["unlessTools", "stepFinish", "accept", "processOutputResult"]
    assert [service for service, _ in run.to_end().shapes()] == ["llm_gateway", "memory"]


def test_without_a_stream_its_service_has_a_command_of_its_own_for_what_ends_the_run():
    run = Run(output=[placed("out", Hook.OUTPUT_RESULT)]).until("model")
    assert run.ops[-3:] == ["unlessTools", "stepFinish", "accept"]
    assert [service for service, _ in run.to_end().shapes()] == ["llm_gateway", "output_processors"]


def test_an_answer_that_is_judged_does_not_end_the_run_in_its_own_command():
    assert Run(input=[placed("in", Hook.LLM_RESPONSE)]).until("model").ops[-1] == "model"
    assert Run(output=[placed("out", Hook.OUTPUT_STEP)]).until("model").ops[-1] == "model"


def test_every_phase_comes_in_the_order_of_the_contract():
    """R-LC-1: A, then B D E F G H I for each step, then J."""
    run = Run(input=[placed("in", *INPUT)], output=[placed("out", *OUTPUT)]).uses_tools().to_end()
    assert run.shapes() == [
        (
            "input_processors",
            ["open", "processInput", "baseline", "emit", "begin", "processInputStep", "processLLMRequest"],
        ),
        ("llm_gateway", ["model"]),
        ("input_processors", ["processLLMResponse"]),
        ("output_processors", ["processOutputStep"]),
        ("tools", ["tools", *STEP]),
        ("input_processors", ["begin", "processInputStep", "processLLMRequest"]),
        ("llm_gateway", ["model"]),
        ("input_processors", ["processLLMResponse"]),
        ("output_processors", ["processOutputStep"]),
        ("output_processors", ["stepFinish", "accept", "processOutputResult", "result"]),
    ]


def test_hooks_over_tool_results_have_a_command_of_their_own_where_no_replica_is_lent_the_results():
    run = Run(output=[placed("out", Hook.TOOL_RESULT)]).uses_tools()
    assert run.shapes()[-2:] == [("tools", ["tools"]), ("output_processors", STEP)]


@pytest.mark.parametrize(
    ("hook", "commands"),
    [
        (Hook.INPUT, 2),
        (Hook.INPUT_STEP, 2),
        (Hook.LLM_REQUEST, 2),
        (Hook.LLM_RESPONSE, 3),
    ],
)
def test_one_input_hook_costs_one_message(hook, commands):
    assert len(Run(input=[placed("in", hook)]).to_end().sent) == commands


@pytest.mark.parametrize(
    ("hook", "commands"),
    [
        (Hook.OUTPUT_STREAM, 1),  # through a stream lease
        (Hook.OUTPUT_STEP, 3),
        (Hook.TOOL_RESULT, 1),  # no tool ran
        (Hook.OUTPUT_RESULT, 2),
    ],
)
def test_what_one_output_hook_costs(hook, commands):
    assert len(Run(output=[placed("out", hook)]).to_end().sent) == commands


def test_a_hook_in_the_wrong_array_is_never_called():
    """R-PR-4: an array triggers only its own hooks, even where a plan says that a processor has others."""
    run = Run(input=[placed("in", Hook.OUTPUT_STEP, Hook.OUTPUT_RESULT)], output=[placed("out", Hook.INPUT)])
    assert len(run.to_end().sent) == 1


def test_processors_of_a_hook_keep_the_order_of_their_array():
    array = [placed("in-1", Hook.INPUT), placed("in-2", Hook.INPUT_STEP), placed("in-3", Hook.INPUT)]
    assert ids(Run(input=array).op("processInput").processors) == ["in-1", "in-3"]


def test_an_array_over_several_services_is_cut_where_the_service_changes():
    array = [
        placed("mem-1", Hook.INPUT),
        placed("in-1", Hook.INPUT),
        placed("in-2", Hook.INPUT),
        placed("mem-2", Hook.INPUT),
    ]
    sent = Run(input=array).until("model").sent
    hooks = [(command.service, op) for command in sent for op in command.ops if isinstance(op, HookOp)]
    assert [(service, op.offset, ids(op.processors)) for service, op in hooks] == [
        ("memory", 0, ["mem-1"]),
        ("input_processors", 1, ["in-1", "in-2"]),
        ("memory", 3, ["mem-2"]),
    ]
    assert [op.places for _, op in hooks] == [None, None, None]


def test_who_stands_behind_one_without_the_hook_keeps_its_place():
    array = [placed("in-1", Hook.INPUT), placed("in-2", Hook.INPUT_STEP), placed("in-3", Hook.INPUT)]
    assert Run(input=array).op("processInput").places == [0, 2]


def test_the_places_of_the_output_chain_go_with_every_command_unless_its_processors_are_the_first():
    chain = [placed("out-1", Hook.OUTPUT_STREAM), placed("out-2", Hook.TOOL_RESULT)]
    assert Run(output=chain).until("model").command.chain_places is None
    run = Run(output=chain[::-1]).until("model")
    assert run.command.chain_places == [1]
    behind = Run(output=[placed("out-0", Hook.OUTPUT_STEP), chain[1]]).says(calls=1).until("toolResults")
    assert behind.op("toolResults").places == [1]


def test_memory_first_and_last_are_two_messages_of_the_memory_service():
    run = Run(
        input=[placed("mem", Hook.INPUT), placed("in", Hook.INPUT)],
        output=[placed("out", Hook.OUTPUT_RESULT), placed("mem", Hook.OUTPUT_RESULT)],
    ).to_end()
    assert run.shapes() == [
        ("memory", ["open", "processInput"]),
        ("input_processors", ["processInput", "baseline", "emit", "begin"]),
        ("llm_gateway", ["model", *LAST]),
        ("output_processors", ["processOutputResult"]),
        ("memory", ["processOutputResult", "result"]),
    ]


def test_nothing_is_sent_to_the_client_before_process_input_has_passed():
    """R-LC-4: an abort there is the only chunk of the stream."""
    state = make_state(make_plan(input=[placed("in", Hook.INPUT)]))
    assert names(program.start(state, OpenOp())) == ["open", "processInput"]
    assert names(program.first_attempt(state))[:2] == ["baseline", "emit"]


def test_arrays_that_factories_make_come_when_process_input_has_passed():
    """R-CF-3."""
    run = Run(input=[placed("in", Hook.INPUT)], factories={"output": FactoryRef(factory="chain")})
    assert run.shapes() == [("input_processors", ["open", "processInput", "arrays"])]
    assert run.op("arrays").factories["output"].factory == "chain"
    made = placed("out", Hook.OUTPUT_STREAM).to_dict()
    run.answer(arrays={"output": [made]})
    assert run.shapes()[1:] == [("llm_gateway", ["baseline", "emit", "begin", "model", *LAST, "result"])]
    assert ids(run.until("model").op("model").processors) == ["out"]
    assert run.state.plan.factories == {}


def test_the_output_chain_goes_with_every_operation_that_streams():
    chain = [placed("out-1", Hook.OUTPUT_STREAM), placed("out-2", Hook.OUTPUT_STEP)]
    run = Run(output=chain).until("model")
    assert ids(run.op("model").processors) == ["out-1"]
    assert ids(run.says(calls=1).until("tools").op("tools").processors) == ["out-1"]
    assert ids(run.until("toolResults").op("toolResults").processors) == ["out-1"]
    assert ids(run.until("stepFinish").op("stepFinish").processors) == ["out-1"]


def test_tool_results_go_to_the_output_processors_where_one_wants_them():
    run = Run(output=[placed("out", Hook.TOOL_RESULT)]).says(calls=1).until("toolResults")
    assert run.command.service == "output_processors"
    assert ids(run.op("toolResults").result_processors) == ["out"]
    assert run.op("toolResults").processors == []


@pytest.mark.parametrize(("hook", "kept"), [(Hook.LLM_RESPONSE, True), (Hook.LLM_REQUEST, False)])
def test_chunks_are_kept_only_for_process_llm_response(hook, kept):
    assert Run(input=[placed("in", hook)]).until("model").op("model").keep_chunks is kept


@pytest.mark.parametrize("wanted", [True, False])
def test_hooks_know_the_output_chain_where_it_wants_data_parts(wanted):
    """R-WR-7."""
    plan = make_plan(
        input=[placed("in", Hook.INPUT_STEP)], output=[placed("out", Hook.OUTPUT_STREAM)], data_parts=wanted
    )
    assert ids(Run(plan).op("processInputStep").stream_processors) == (["out"] if wanted else [])


def test_a_model_of_the_list_brings_its_own_settings():
    """R-FB-1; settings and provider options are merged in depth."""
    plan = make_plan(
        ModelEntry(
            model="m/one",
            model_settings={"temperature": 0, "headers": {"x-a": "2"}},
            provider_options={"m": {"effort": "low"}},
            max_retries=3,
        ),
        config=StepConfig(
            model="m/one",
            model_settings={"temperature": 1, "headers": {"x-a": "1", "x-b": "1"}},
            provider_options={"m": {"effort": "high", "cache": True}, "n": {"x": 1}},
        ),
        max_retries=1,
    )
    run = Run(plan)
    assert run.op("begin").config.model_settings == {
        "temperature": 0,
        "headers": {"x-a": "2", "x-b": "1"},
    }
    assert run.op("begin").config.provider_options == {"m": {"effort": "low", "cache": True}, "n": {"x": 1}}
    assert run.op("model").max_retries == 3


def test_a_model_without_retries_of_its_own_has_those_of_the_run():
    """R-MS-3."""
    assert Run(max_retries=2).op("model").max_retries == 2


def test_a_blocked_run_takes_the_answer_back_and_ends_with_the_tripwire():
    """R-AB-10, R-AB-16: no hook runs, so that nothing is saved."""
    tripwire = Tripwire(reason="no", processor_id="p", retry=True)
    ops = program.blocked(tripwire, responded=False)
    assert names(ops) == ["reject", "emit", "result"]
    assert all(planned.host is None for planned in ops)
    chunk = {"type": "tripwire", "payload": {"reason": "no", "processorId": "p", "retry": True}}
    assert ops[1].op.chunks == [chunk]  # type: ignore[union-attr]


def test_a_failed_run_sends_one_error_chunk_and_no_finish():
    """D-30."""
    failure = Failure(code="PROCESSOR_FAILED", message="broken", processor_id="p", hook="processInput")
    emit, result = (planned.op for planned in program.failed(failure))
    payload = {
        "error": {
            "code": "PROCESSOR_FAILED",
            "message": "broken",
            "processorId": "p",
            "hook": "processInput",
        }
    }
    assert emit.chunks == [{"type": "error", "payload": payload}]  # type: ignore[union-attr]
    assert (result.status, result.finish) == ("failed", False)  # type: ignore[union-attr]


def test_a_model_that_failed_for_good_passes_the_output_chain_and_the_result_hooks():
    """R-AE-13, R-AE-14."""
    plan = make_plan(output=[placed("out", Hook.OUTPUT_STREAM, Hook.OUTPUT_RESULT)])
    ops = program.model_failed(plan, Failure(code="MODEL_FAILED", message="no"))
    assert names(ops) == ["stream", "stepFinish", "fail", "processOutputResult", "result"]
    assert [planned.host for planned in ops] == [None, None, None, "output_processors", None]
    assert (ops[3].op.finish_reason, ops[4].op.finish) == ("error", True)  # type: ignore[union-attr]


def test_a_cancelled_run_sends_abort_and_still_lets_the_result_hooks_save():
    """R-CX-3, R-CX-4."""
    plan = make_plan(output=[placed("mem", Hook.OUTPUT_RESULT)])
    abort, hook, result = (planned.op for planned in program.cancelled(plan))
    assert abort.chunks == [{"type": "abort", "payload": {}}]  # type: ignore[union-attr]
    assert hook.finish_reason == "aborted"  # type: ignore[union-attr]
    assert (result.status, result.finish_reason, result.finish) == ("cancelled", "aborted", True)  # type: ignore[union-attr]


def test_approvals_pass_the_output_chain_and_other_suspensions_do_not():
    run = Run(output=[placed("out", Hook.OUTPUT_STREAM)]).says(calls=2).until("tools")
    waiting: list[dict[str, Any]] = [
        {"toolCallId": "1", "toolName": "t", "kind": "approval"},
        {"toolCallId": "2", "toolName": "t", "kind": "suspended", "suspendPayload": 1},
    ]
    run.answer("suspended", at="tools", suspend=waiting, facts=StepFacts())
    stream, emit, result = (run.op(name) for name in ("stream", "emit", "result"))
    assert ids(stream.processors) == ["out"]
    assert [c["type"] for c in stream.chunks] == ["tool-call-approval"]
    assert emit.chunks == [
        {
            "type": "tool-call-suspended",
            "payload": {"toolCallId": "2", "toolName": "t", "suspendPayload": 1},
        }
    ]
    assert result.suspend_payload == {"calls": waiting}
    assert result.finish is False


def beside(name: str, *hooks: Hook) -> Placed:
    """A guard beside the model, with these hooks in the array."""
    return placed(name, *hooks).but(beside=True)


def test_guards_beside_the_model_cost_no_command_and_keep_their_places():
    run = Run(input=[placed("in-1", Hook.INPUT_STEP), beside("in-2"), beside("in-3", Hook.LLM_RESPONSE)])
    run.until("model")
    assert [(guard.processor.id, guard.index) for guard in run.op("model").guards] == [
        ("in-2", 1),
        ("in-3", 2),
    ]
    run.says()
    assert run.ops[0] == "processLLMResponse"


def test_guards_are_asked_once():
    run = Run(input=[beside("in")], budget=1, output=[placed("out", Hook.OUTPUT_STREAM)])
    assert run.op("model").guards
    tripwire = Tripwire(reason="no", processor_id="out", retry=True)
    run.answer("tripwire", at="model", tripwire=tripwire, verdict="passed").until("model")
    assert run.op("model").guards == []
    run.uses_tools().until("model")
    assert run.op("model").guards == []


def test_guards_are_asked_by_the_attempt_that_gets_to_the_model():
    run = Run(input=[beside("in"), placed("in-2", Hook.INPUT_STEP)], budget=1)
    run.trips("processInputStep", retry=True).until("model")
    assert run.op("model").guards


def test_the_next_model_of_the_list_needs_no_guards():
    run = Run(make_plan("m/1", "m/2", input=[beside("in")]))
    error = Failure(code="MODEL_FAILED", message="no")
    run.answer("modelFailed", at="model", error=error, verdict="passed").until("model")
    assert (run.op("model").entry.model, run.op("model").guards) == ("m/2", [])


def test_a_guard_ends_the_run_as_process_input_does():
    """R-AB-27: there is no step to try again, whatever it asks for."""
    run = Run(input=[beside("in")], budget=3)
    tripwire = Tripwire(reason="no", processor_id="in", retry=True)
    run.answer("tripwire", at="model", tripwire=tripwire, verdict="blocked").to_end()
    assert (run.result.status, run.tripwire, run.models_called()) == ("blocked", tripwire, 1)
