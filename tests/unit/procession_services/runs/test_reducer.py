"""What a run does next, rule by rule."""

from typing import Any

import pytest

from procession.processor import Hook
from procession_schemas.agent import ProcessorRef
from procession_schemas.run import Failure, HookReport, ModelReport
from procession_schemas.work import ANY_VERSION, Control, StepFacts, WorkResult
from procession_services.runs.events import (
    DeadlinePassed,
    Ended,
    Forgotten,
    Interrupt,
    PassTurn,
    Send,
    SignalCancel,
    Started,
    TellFinished,
    TellResumed,
    TellSuspended,
)
from procession_services.runs.numbering import SKIPPED, fence_of
from procession_services.runs.reducer import outstanding
from procession_services.runs.state import Line
from procession_services.runs.stored import read_state
from tests.unit.procession_services.runs.driving import Run, ids, make_plan, make_state, placed

ERR = placed("err", Hook.API_ERROR)
STOP = [ProcessorRef(id="enough")]


def in_loop_hooks() -> list[tuple[str, dict[str, Any]]]:
    """Every place in the loop where a processor can abort, and the arrays that lead there."""
    chain = {"output": [placed("out", Hook.OUTPUT_STREAM)]}
    return [
        ("processInputStep", {"input": [placed("in", Hook.INPUT_STEP)]}),
        ("processLLMRequest", {"input": [placed("in", Hook.LLM_REQUEST)]}),
        ("model", chain),
        ("processLLMResponse", {"input": [placed("in", Hook.LLM_RESPONSE)]}),
        ("processOutputStep", {"output": [placed("out", Hook.OUTPUT_STEP)]}),
    ]


class TestAnswers:
    def test_an_answer_to_an_older_command_changes_nothing(self):
        run = Run().until("model")
        model = run.command
        run.says(calls=1)
        before, command = run.state, run.command
        late = run.effects
        run.tell(_late(model.seq))
        assert run.state == before
        assert run.effects == late == [Send(command)]

    def test_versions_and_chunk_numbers_go_on_from_the_answer(self):
        run = Run().until("model")
        version, out_seq = run.command.version, run.command.out_seq
        run.says(calls=1)
        assert (run.command.version, run.command.out_seq) == (version + 1, out_seq + 1)

    def test_the_request_again_gives_what_is_outstanding(self):
        run = Run().says(calls=1)
        before = run.state
        run.tell(Started())
        assert (run.state, run.effects) == (before, [Send(run.command)])

    def test_reports_of_all_commands_add_up(self):
        run = Run(input=[placed("in", Hook.INPUT_STEP, Hook.LLM_RESPONSE)])
        run.answer(reports=[HookReport(processor="in", hook="processInputStep", calls=1, micros=2)])
        run.answer(
            facts=StepFacts(finish_reason="stop", tool_calls=1),
            model=ModelReport(model="m/one", calls=1, usage={"totalTokens": 3}, cost=0.5),
        )
        run.answer().answer(facts=StepFacts(outcomes=1))
        run.answer(reports=[HookReport(processor="in", hook="processInputStep", calls=1, micros=3)])
        run.answer(
            facts=StepFacts(finish_reason="stop"),
            model=ModelReport(model="m/one", calls=1, usage={"totalTokens": 4, "inputTokens": 1}),
        )
        run.to_end()
        assert run.result.processors == [
            HookReport(processor="in", hook="processInputStep", calls=2, micros=5)
        ]
        (model,) = run.result.models
        assert (model.calls, model.usage, model.cost) == (2, {"totalTokens": 7, "inputTokens": 1}, 0.5)

    def test_the_replica_that_had_the_stream_is_asked_again(self):
        run = Run(output=[placed("out", Hook.OUTPUT_STREAM)]).until("model")
        run.answer(replica="two", facts=StepFacts(tool_calls=1), stopped=True)
        run.answer(facts=StepFacts(outcomes=1))
        assert run.until("model").op("model").replica == "two"


TOOLS = ["tools", "toolResults", "ifOutcomes", "stepFinish", "accept"]
"""The command of tools whose outcomes make another step."""


class TestLastSteps:
    """The command of the model goes on to the end of the run, where the answer has no calls."""

    def test_an_answer_without_calls_ends_the_run(self):
        run = Run().says()
        assert (run.result.status, run.result.finish_reason) == ("finished", "stop")

    def test_an_answer_with_calls_stops_the_command_before_its_end(self):
        run = Run().says(calls=1)
        assert run.ops == TOOLS
        assert run.state.ending is False

    def test_what_other_services_do_at_the_end_follows(self):
        run = Run(output=[placed("mem", Hook.OUTPUT_RESULT)]).says()
        assert run.state.ending is True
        assert run.answer().result.status == "finished"

    def test_an_abort_over_step_finish_blocks_the_run_and_is_not_tried_again(self):
        """R-AB-27: the step is over."""
        run = (
            Run(budget=1, output=[placed("out", Hook.OUTPUT_STREAM)]).trips("stepFinish", retry=True).to_end()
        )
        assert (run.result.status, run.models_called()) == ("blocked", 1)


class TestRetries:
    @pytest.mark.parametrize(("at", "arrays"), in_loop_hooks())
    def test_every_hook_in_the_loop_can_have_the_step_tried_again(self, at, arrays):
        """R-AB-27, A-3."""
        run = Run(budget=1, **arrays).trips(at, retry=True)
        assert run.until("model").models_called() == (
            2 if at not in ("processInputStep", "processLLMRequest") else 1
        )
        assert run.state.retries == 1
        assert run.to_end().result.status == "finished"

    @pytest.mark.parametrize(
        ("at", "arrays"),
        [
            ("processInput", {"input": [placed("in", Hook.INPUT)]}),
            ("processOutputResult", {"output": [placed("out", Hook.OUTPUT_RESULT)]}),
        ],
    )
    def test_before_and_after_the_loop_a_retry_is_a_plain_abort(self, at, arrays):
        run = Run(budget=3, **arrays).trips(at, retry=True).to_end()
        assert run.result.status == "blocked"
        assert run.tripwire.retry is True
        assert run.result.retries == 0

    @pytest.mark.parametrize("budget", [None, 0])
    def test_without_a_budget_a_retry_is_a_plain_abort(self, budget):
        """R-AB-21, R-AB-23."""
        run = Run(budget=budget, output=[placed("out", Hook.OUTPUT_STEP)])
        run.trips("processOutputStep", retry=True).to_end()
        assert (run.result.status, run.models_called()) == ("blocked", 1)

    @pytest.mark.parametrize("budget", [1, 3])
    def test_n_retries_are_n_and_one_attempts(self, budget):
        """R-AB-23, R-AB-36: then the run ends with `retry` in the tripwire."""
        run = Run(budget=budget, output=[placed("out", Hook.OUTPUT_STEP)])
        while run.state.status == "running" and not run.state.ending:
            run.trips("processOutputStep", retry=True)
        run.to_end()
        assert run.models_called() == budget + 1
        assert run.result.status == "blocked"
        assert run.tripwire.retry is True

    def test_aborts_and_failed_calls_share_one_budget(self):
        """R-AB-24."""
        run = Run(budget=1, error=[ERR], output=[placed("out", Hook.OUTPUT_STEP)])
        run.trips("processOutputStep", retry=True).fails().answer(retry=True).to_end()
        assert (run.result.status, run.error.code) == ("failed", "MODEL_FAILED")

    def test_the_budget_is_for_the_whole_run(self):
        """R-AB-25, A-4: an accepted step does not give it back."""
        run = Run(budget=1, output=[placed("out", Hook.OUTPUT_STEP)])
        run.trips("processOutputStep", retry=True).uses_tools()
        run.trips("processOutputStep", retry=True).to_end()
        assert run.result.status == "blocked"

    def test_a_plain_abort_never_retries(self):
        run = Run(budget=5, output=[placed("out", Hook.OUTPUT_STEP)]).trips("processOutputStep").to_end()
        assert (run.result.status, run.models_called()) == ("blocked", 1)

    def test_a_retry_ends_the_attempt_and_begins_it_again(self):
        """R-AB-28: `step-finish` with reason retry, then the rollback, then the same step."""
        run = Run(budget=1, output=[placed("out", Hook.OUTPUT_STEP)]).uses_tools()
        run.trips("processOutputStep", retry=True)
        assert run.ops == ["stepFinish", "reject", "begin", "model"]
        finish, reject, begin = run.op("stepFinish"), run.op("reject"), run.op("begin")
        assert (finish.reason, finish.is_continued, finish.tripwire.reason) == ("retry", True, "too rude")
        assert (reject.finish_reason, reject.tripwire, reject.listed) == ("retry", finish.tripwire, True)
        assert (begin.step, begin.retry_count) == (1, 1)

    def test_tools_of_a_rejected_answer_do_not_run(self):
        """R-AB-28 (2), A-8."""
        run = Run(budget=1, output=[placed("out", Hook.OUTPUT_STEP)]).says(calls=2)
        run.trips("processOutputStep", retry=True).to_end()
        assert all("tools" not in ops for _, ops in run.shapes())

    def test_every_reason_so_far_is_fed_back_oldest_first(self):
        """R-AB-29, R-AB-30."""
        run = Run(budget=3, output=[placed("out", Hook.OUTPUT_STEP)])
        run.trips("processOutputStep", retry=True, reason="too rude")
        assert [("too rude" in text, "Processor feedback" in text) for text in run.op("begin").feedback] == [
            (True, True)
        ]
        run.trips("processOutputStep", retry=True, reason="too long")
        first, second = run.op("begin").feedback
        assert "too rude" in first
        assert "too long" in second

    def test_feedback_is_dropped_when_the_step_is_accepted(self):
        """A-15."""
        run = Run(budget=1, output=[placed("out", Hook.OUTPUT_STEP)])
        run.trips("processOutputStep", retry=True).uses_tools()
        assert run.until("begin").op("begin").feedback == []

    def test_a_retry_does_not_use_up_steps(self):
        """R-AB-34, A-14."""
        run = Run(budget=1, max_steps=1, output=[placed("out", Hook.OUTPUT_STEP)])
        run.trips("processOutputStep", retry=True).to_end()
        assert (run.result.status, run.models_called()) == ("finished", 2)

    @pytest.mark.parametrize("retry", [True, False])
    def test_an_abort_over_a_tool_result_is_like_any_other_in_the_loop(self, retry):
        """D-29, D-31."""
        run = Run(budget=1, output=[placed("out", Hook.TOOL_RESULT)]).says(calls=1)
        run.trips("toolResults", retry=retry).to_end()
        assert (run.result.status, run.models_called()) == (("finished", 2) if retry else ("blocked", 1))

    @pytest.mark.parametrize("steps", [1, 2])
    def test_an_abort_over_the_step_finish_of_a_good_answer_ends_the_run(self, steps):
        """Its tools have run: there is no answer to take back before them. Nor is it accepted yet (R-AB-14)."""
        run = Run(budget=1, max_steps=steps, output=[placed("out", Hook.OUTPUT_STREAM)]).says(calls=1)
        run.trips("stepFinish", retry=True)
        assert run.ops == ["reject", "emit", "result"]
        assert run.to_end().result.status == "blocked"

    def test_an_abort_over_the_step_finish_of_a_rejected_answer_ends_the_run(self):
        """One that wants a retry is none: the attempt has been rejected."""
        arrays = [placed("out", Hook.OUTPUT_STREAM, Hook.OUTPUT_STEP)]
        run = Run(budget=2, output=arrays).trips("processOutputStep", retry=True)
        assert run.trips("stepFinish").to_end().result.status == "blocked"


class TestBlocked:
    @pytest.mark.parametrize(
        ("at", "listed"), [("processOutputStep", True), ("processLLMResponse", False), ("model", False)]
    )
    def test_a_blocked_response_is_listed_only_where_it_was_judged_as_a_whole(self, at, listed):
        run = Run(**dict(in_loop_hooks())[at]).trips(at)
        assert run.op("reject").listed is listed
        assert run.op("reject").finish_reason == "tripwire"

    @pytest.mark.parametrize(("at", "arrays"), in_loop_hooks())
    def test_no_hook_and_no_tool_runs_after_an_abort(self, at, arrays):
        """2.2, D-29."""
        run = Run(**arrays).trips(at)
        assert run.ops == ["reject", "emit", "result"]
        assert run.command.service == "orchestrator"
        run.to_end()
        assert (run.result.status, run.result.finish_reason) == ("blocked", "other")

    def test_error_processors_are_not_asked_about_a_tripwire(self):
        """R-AB-18."""
        run = Run(error=[ERR], output=[placed("out", Hook.OUTPUT_STREAM)]).trips("model")
        assert "processAPIError" not in run.ops


class TestModelErrors:
    def test_without_error_processors_the_run_fails_and_the_result_hooks_run(self):
        """R-AE-13, R-AE-14."""
        run = Run(output=[placed("out", Hook.OUTPUT_RESULT)]).fails()
        assert run.ops == ["stream", "stepFinish", "fail", "processOutputResult", "result"]
        run.to_end()
        assert (run.result.status, run.error.message) == ("failed", "overloaded")

    def test_a_granted_retry_begins_the_same_step_again_without_feedback(self):
        """R-AE-10, R-AE-11."""
        run = Run(budget=1, error=[ERR]).uses_tools().fails().answer(retry=True)
        assert run.ops[:4] == ["stepFinish", "reject", "begin", "model"]
        begin = run.op("begin")
        assert (begin.step, begin.retry_count, begin.feedback) == (1, 1, [])
        assert run.op("stepFinish").tripwire is None
        assert run.to_end().result.status == "finished"

    @pytest.mark.parametrize("retry", [False, None])
    def test_an_error_nobody_handles_surfaces(self, retry):
        run = Run(budget=1, error=[ERR]).fails().answer(retry=retry).to_end()
        assert (run.result.status, run.models_called()) == ("failed", 1)

    def test_error_processors_are_asked_when_the_budget_is_used_up_and_not_heard(self):
        """R-AE-9."""
        run = Run(budget=0, error=[ERR]).fails()
        assert run.ops == ["processAPIError"]
        assert run.answer(retry=True).to_end().result.status == "failed"

    def test_an_error_processor_is_asked_again_after_the_next_failure(self):
        run = Run(budget=2, error=[ERR]).fails().answer(retry=True).fails(message="again")
        assert run.ops == ["processAPIError"]
        assert run.answer(retry=False).to_end().error.message == "again"

    def test_the_first_that_wants_a_retry_decides_also_over_services(self):
        """R-AE-6: the error processors of the other service are not called."""
        run = Run(budget=1, error=[ERR, placed("mem", Hook.API_ERROR)]).fails()
        assert ids(run.op("processAPIError").processors) == ["err"]
        assert "begin" in run.answer(retry=True).ops

    def test_the_next_service_is_asked_when_the_first_does_not_handle_the_error(self):
        run = Run(budget=1, error=[ERR, placed("mem", Hook.API_ERROR)]).fails().answer(retry=False)
        assert run.command.service == "memory"
        assert "begin" in run.answer(retry=True).ops

    def test_an_abort_in_an_error_processor_is_a_tripwire(self):
        """R-AE-8, D-32."""
        run = Run(budget=1, error=[ERR]).fails().trips("processAPIError").to_end()
        assert (run.result.status, run.models_called()) == ("blocked", 1)

    def test_it_may_ask_for_a_retry_by_an_abort(self):
        """R-AB-27."""
        run = Run(budget=1, error=[ERR]).fails().trips("processAPIError", retry=True, reason="hotter")
        assert "hotter" in run.op("begin").feedback[0]

    def test_a_failing_result_hook_after_a_model_error_is_told_like_any_failure(self):
        """D-30: with its own error chunk."""
        run = Run(output=[placed("out", Hook.OUTPUT_RESULT)]).fails()
        run.answer("failed", at="processOutputResult", error=Failure(code="PROCESSOR_FAILED", message="x"))
        assert (run.ops, run.command.version) == (["emit", "result"], ANY_VERSION)
        assert run.to_end().error.code == "PROCESSOR_FAILED"


class TestFallback:
    def test_the_next_model_is_tried_within_the_step(self):
        """R-FB-2, R-FB-4: the step's hooks run again, nothing is counted."""
        plan = make_plan("m/one", "m/two", input=[placed("in", Hook.INPUT_STEP)])
        run = Run(plan).fails(started=False)
        assert run.ops == ["begin", "processInputStep"]
        begin = run.op("begin")
        assert (begin.config.model, begin.step, begin.retry_count) == ("m/two", 0, 0)
        assert run.until("model").op("model").entry.model == "m/two"

    def test_an_error_in_a_started_stream_does_not_fall_over(self):
        """R-FB-3."""
        run = Run(make_plan("m/one", "m/two")).fails(started=True).to_end()
        assert (run.result.status, run.models_called()) == ("failed", 1)

    def test_the_last_error_surfaces(self):
        """R-FB-5."""
        run = Run(make_plan("m/one", "m/two")).fails(started=False, message="first")
        run.fails(started=False, message="second").to_end()
        assert run.error.message == "second"

    def test_error_processors_are_asked_for_each_model_and_a_retry_stays_on_it(self):
        """R-AE-15."""
        run = Run(make_plan("m/one", "m/two", budget=1, error=[ERR])).fails(started=False)
        assert run.ops == ["processAPIError"]
        run.answer(retry=False).fails(started=False)
        assert run.ops == ["processAPIError"]
        assert run.answer(retry=True).op("begin").config.model == "m/two"

    def test_a_tripwire_does_not_fall_over(self):
        """R-FB-3, R-AB-18."""
        run = Run(make_plan("m/one", "m/two", output=[placed("out", Hook.OUTPUT_STREAM)])).trips("model")
        assert run.to_end().models_called() == 1

    def test_the_next_step_begins_with_the_first_model_again(self):
        run = Run(make_plan("m/one", "m/two")).fails(started=False).uses_tools()
        assert run.until("begin").op("begin").config.model == "m/one"


class TestSteps:
    def test_a_step_without_tool_calls_is_the_last(self):
        run = Run().to_end()
        assert (run.result.status, run.result.finish_reason, run.models_called()) == ("finished", "stop", 1)

    def test_tool_outcomes_make_another_step(self):
        """R-LP-5."""
        run = Run().says(calls=1)
        assert run.op("stepFinish").is_continued
        assert run.answer(facts=StepFacts(outcomes=1)).op("begin").step == 1

    def test_calls_without_an_outcome_end_the_run(self):
        """R-TX-5: client-side tools."""
        run = Run().uses_tools(outcomes=0)
        assert run.op("stepFinish").is_continued is False
        run.to_end()
        assert (run.result.finish_reason, run.models_called()) == ("tool-calls", 1)

    @pytest.mark.parametrize("stop_when", [[], STOP])
    def test_no_step_follows_while_one_of_the_calls_is_the_callers(self, stop_when):
        """R-TX-5, also where a tool beside it has run."""
        run = Run(make_plan(stop_when=stop_when)).says(calls=2).until("tools")
        run.answer(facts=StepFacts(outcomes=1), stopped="ifOutcomes" in run.ops)
        assert run.op("stepFinish").is_continued is False
        run.to_end()
        assert (run.result.finish_reason, run.models_called()) == ("tool-calls", 1)

    @pytest.mark.parametrize("reason", ["error", "length", "content-filter"])
    def test_some_reasons_end_the_run_after_its_tools(self, reason):
        run = Run().says(calls=1, reason=reason).answer(facts=StepFacts(outcomes=1)).to_end()
        assert (run.result.finish_reason, run.models_called()) == (reason, 1)

    def test_a_tool_call_overrides_a_stop(self):
        run = Run().says(calls=1, reason="stop")
        assert run.op("stepFinish").is_continued
        assert run.answer(facts=StepFacts(outcomes=1)).op("begin").step == 1

    @pytest.mark.parametrize("limit", [1, 3])
    def test_the_run_stops_after_so_many_steps_when_their_tools_have_run(self, limit):
        """R-LP-2, R-LP-4."""
        run = Run(max_steps=limit)
        for _ in range(limit):
            run.uses_tools()
        assert run.ops[:2] == ["stepFinish", "accept"]
        assert run.op("stepFinish").is_continued is False
        run.to_end()
        assert (run.result.finish_reason, run.models_called()) == ("tool-calls", limit)

    def test_a_stop_condition_is_asked_after_each_step_that_would_continue(self):
        """R-LP-3: it sees the step, so the step is accepted first."""
        run = Run(max_steps=None, stop_when=STOP).uses_tools()
        assert run.ops == ["accept", "stop"]
        run.answer(stop=False)
        assert run.ops[:3] == ["stepFinish", "begin", "model"]
        run.uses_tools().answer(stop=True)
        assert run.ops == ["stepFinish", "result"]
        assert run.to_end().result.finish_reason == "tool-calls"

    def test_no_stop_condition_is_asked_at_the_end(self):
        run = Run(max_steps=1, stop_when=STOP).uses_tools()
        assert "stop" not in run.ops
        assert all("stop" not in ops for _, ops in Run(stop_when=STOP).to_end().shapes())

    def test_stop_conditions_and_limit_whichever_comes_first(self):
        run = Run(max_steps=2, stop_when=STOP).uses_tools().answer(stop=False).uses_tools()
        assert run.to_end().models_called() == 2


class TestApproval:
    def test_a_call_that_waits_suspends_the_run(self):
        """R-AP-2: without the result hooks."""
        run = Run(output=[placed("out", Hook.OUTPUT_RESULT)]).waits("1")
        assert run.ops == ["stream", "result"]
        assert run.op("result").suspend_payload["calls"][0]["toolCallId"] == "1"
        run.answer()
        assert run.effects == [TellSuspended(run.result)]
        assert (run.state.status, run.result.status) == ("suspended", "suspended")
        assert run.state.sent is None

    @pytest.mark.parametrize("again", ["begun", "done"])
    def test_a_run_that_waits_is_not_moved_by_what_comes_again(self, again):
        """Whoever was to note that it had begun, or was to hear that its command was done, may have died."""
        run = Run().waits("1")
        result = WorkResult(
            run="r", tenant="t", seq=run.command.seq, service="s", outcome="ok", version=9, out_seq=9
        )
        run.answer()
        before = run.state
        assert run.tell(Started() if again == "begun" else result).effects == [TellSuspended(run.result)]
        assert run.state == before

    @pytest.mark.parametrize(
        ("fields", "decision"),
        [
            ({"approved": True}, {"approved": True}),
            ({"approved": False, "reason": "no"}, {"approved": False, "reason": "no"}),
            ({"resume_data": {"x": 1}}, {"resumeData": {"x": 1}}),
            ({"resume_data": {"approved": True}}, {"approved": True}),
            ({"resume_data": {"approved": False, "reason": "no"}}, {"approved": False, "reason": "no"}),
            ({"resume_data": {"approved": "yes"}}, {"resumeData": {"approved": "yes"}}),
            (
                {"approved": False, "resume_data": {"approved": True}},
                {"approved": False, "resumeData": {"approved": True}},
            ),
        ],
    )
    def test_a_decision_goes_on_with_the_tools(self, fields, decision):
        """R-AP-3, R-LC-8: nothing is repeated, the step goes on where it was."""
        run = Run(input=[placed("in", Hook.INPUT, Hook.INPUT_STEP)]).waits("1").answer()
        run.tell(Control(type="resume", tool_call_id="1", **fields))
        assert run.ops == TOOLS
        assert run.op("tools").decisions == {"1": decision}
        run.answer(facts=StepFacts(outcomes=1))
        assert "processInput" not in run.ops
        assert run.op("begin").step == 1
        assert run.to_end().result.status == "finished"

    def test_data_of_a_tool_are_no_approval(self):
        run = Run().waits("1", kind="suspended").answer()
        run.tell(Control(type="resume", tool_call_id="1", resume_data={"approved": True}))
        assert run.op("tools").decisions == {"1": {"resumeData": {"approved": True}}}

    def test_the_run_waits_for_every_call(self):
        run = Run().waits("1", "2").answer().approve("2")
        assert run.state.status == "suspended"
        assert run.effects == [TellSuspended(run.result)]
        (left,) = (run.result.suspend_payload or {})["calls"]
        assert left["toolCallId"] == "1"
        run.approve("1", approved=False)
        assert run.op("tools").decisions == {"1": {"approved": False}, "2": {"approved": True}}

    def test_the_first_decision_about_a_call_counts(self):
        run = Run().waits("1", "2").answer().approve("1").approve("1", approved=False).approve("2")
        assert run.op("tools").decisions["1"] == {"approved": True}

    @pytest.mark.parametrize("call", ["nobody's", None])
    def test_a_decision_about_another_call_changes_nothing(self, call):
        run = Run().waits("1").answer()
        before = run.state
        assert run.tell(Control(type="resume", tool_call_id=call, approved=True)).state == before

    def test_a_decision_that_comes_again_changes_nothing(self):
        run = Run().waits("1").answer().approve("1")
        before = run.state
        run.approve("1")
        assert (run.state, run.effects) == (before, [TellResumed(), Send(run.command)])

    def test_a_decision_before_the_run_waits_changes_nothing(self):
        run = Run().waits("1")
        before = run.state
        assert run.approve("1").state == before
        assert run.effects == [Send(run.command)]

    def test_a_call_that_waits_a_second_time_is_asked_about_again(self):
        """An approved tool that then wants data: the approval stays, and is no answer to the second question."""
        run = Run().waits("1", "2").answer().approve("1").approve("2")
        run.waits("1", "2", kind="suspended").answer()
        run.tell(Control(type="resume", tool_call_id="2", resume_data=2))
        assert run.state.status == "suspended"
        run.tell(Control(type="resume", tool_call_id="1", resume_data=1))
        assert run.op("tools").decisions == {
            "1": {"approved": True, "resumeData": 1},
            "2": {"approved": True, "resumeData": 2},
        }

    def test_a_decision_of_before_is_no_answer_to_what_is_asked_next_about_the_same_call(self):
        """NATS may deliver it again; a tool may ask twice, and a model count its calls from one in each answer."""
        run = Run().waits("1").answer()
        before = Control(type="resume", tool_call_id="1", resume_data=1, fence=fence_of(run.state.seq + 1))
        run.tell(before).waits("1", kind="suspended").answer()
        waits = run.state
        assert run.tell(before).state == waits
        now = before.model_copy(update={"resume_data": 2, "fence": fence_of(run.state.seq + 1)})
        assert run.tell(now).op("tools").decisions == {"1": {"resumeData": 2}}

    def test_decisions_end_with_their_step(self):
        run = Run().waits("1").answer().approve("1").answer(facts=StepFacts(outcomes=1))
        assert run.says(calls=1).until("tools").op("tools").decisions == {}

    def test_decisions_end_with_the_attempt_that_is_rejected(self):
        """A model may count its calls from one in each answer."""
        run = Run(budget=1, output=[placed("out", Hook.TOOL_RESULT)]).waits("1").answer().approve("1")
        run.trips("toolResults", retry=True).says(calls=1)
        assert run.until("tools").op("tools").decisions == {}


class TestCancel:
    def test_work_in_flight_is_told_and_its_answer_waited_for(self):
        run = Run()
        command = run.command
        run.cancel()
        assert run.effects == [SignalCancel(), Send(command)]

    def test_a_repeated_cancel_is_told_again(self):
        """The first replica may have died before it could."""
        run = Run().cancel()
        assert run.cancel().effects == [SignalCancel(), Send(run.command)]

    def test_an_answer_that_was_cut_off_ends_the_run(self):
        """R-CX-3, R-CX-4."""
        run = Run(output=[placed("mem", Hook.OUTPUT_RESULT)]).cancel().answer("cancelled", at="model")
        assert run.ops == ["emit", "processOutputResult", "result"]
        run.to_end()
        assert (run.result.status, run.result.finish_reason) == ("cancelled", "aborted")

    def test_an_answer_that_was_complete_ends_the_run_too(self):
        run = Run(output=[placed("out", Hook.OUTPUT_STEP)]).until("model").cancel().says(calls=1)
        assert run.ops == ["emit", "result"]

    def test_results_of_tools_that_were_running_are_recorded(self):
        """R-CX-2."""
        run = Run(output=[placed("out", Hook.TOOL_RESULT)]).says(calls=1).cancel()
        run.answer(facts=StepFacts(outcomes=1))
        assert run.ops == TOOLS[1:]
        assert run.answer(stopped=True, at="ifOutcomes").ops == ["emit", "result"]

    def test_no_model_is_called_after_the_input_hooks(self):
        """R-CX-5."""
        run = Run(input=[placed("in", Hook.INPUT), placed("mem", Hook.INPUT)]).cancel().answer()
        assert run.ops[0] == "processInput"
        run.answer().to_end()
        assert (run.result.status, run.models_called()) == ("cancelled", 0)

    def test_a_run_cancelled_before_it_began_opens_and_ends(self):
        """R-CX-5: `start`, `abort`, `finish`."""
        run = Run(make_plan())
        run.state = make_state(make_plan(), cancel=True)
        run.sent.clear()
        run.tell(Started()).to_end()
        assert run.shapes() == [
            ("orchestrator", ["open", "baseline", "emit", "begin"]),
            ("orchestrator", ["emit", "result"]),
        ]

    def test_a_failed_call_is_not_tried_again(self):
        run = Run(make_plan("m/one", "m/two", budget=1, error=[ERR])).cancel().fails(started=False)
        run.answer(retry=True).to_end()
        assert (run.result.status, run.models_called(), run.result.retries) == ("cancelled", 1, 0)

    def test_an_abort_is_not_tried_again(self):
        """R-CX-6."""
        run = Run(budget=1, output=[placed("out", Hook.OUTPUT_STREAM)]).cancel().trips("model", retry=True)
        assert run.to_end().result.status == "blocked"

    def test_a_suspended_run_ends_at_once(self):
        run = Run().waits("1").answer().cancel()
        assert run.ops == ["emit", "result"]
        assert run.to_end().result.status == "cancelled"

    def test_a_run_never_gets_suspended_once_it_is_cancelled(self):
        assert Run().cancel().says(calls=1).to_end().result.status == "cancelled"
        assert Run().says(calls=1).cancel().waits("1").to_end().result.status == "cancelled"

    def test_also_when_the_cancel_comes_while_the_suspension_is_told(self):
        run = Run().waits("1").cancel().answer()
        assert run.to_end().result.status == "cancelled"

    def test_what_other_calls_gave_is_recorded_where_one_waited(self):
        """R-CX-2."""
        ends = ["toolResults", "emit", "result"]
        assert Run().waits("1", outcomes=1).answer().cancel().ops == ends
        assert Run().waits("1", outcomes=1).cancel().answer().ops == ends
        assert Run().says(calls=2).cancel().waits("1", outcomes=1).ops == ends

    @pytest.mark.parametrize("tools", [False, True])
    def test_a_run_that_is_ending_ends_as_it_would(self, tools):
        run = Run(output=[placed("mem", Hook.OUTPUT_RESULT)])
        run = run.uses_tools(outcomes=0) if tools else run.says()
        assert run.ops[-2:] == ["processOutputResult", "result"]
        before = run.state
        run.cancel()
        assert (run.state, run.effects) == (before, [Send(run.command)])

    @pytest.mark.parametrize("names", [["out"], ["out", "mem"]])
    def test_an_end_whose_hook_was_left_is_not_begun_again(self, names):
        """What processOutputResult has not seen is not told (D-1); and `abort` comes once (R-CX-3)."""
        judges = [placed(name, Hook.OUTPUT_RESULT) for name in names]
        run = Run(output=judges).cancel().answer("cancelled", at="model")
        for _ in names[1:]:
            run.answer()
        run.answer("cancelled", at="processOutputResult")
        assert run.ops == ["result"]
        assert (run.op("result").status, run.op("result").error.hook) == ("cancelled", "processOutputResult")
        assert run.to_end().result.status == "cancelled"

    def test_nor_is_the_hook_of_an_end_that_was_cancelled(self):
        run = Run(output=[placed("out", Hook.OUTPUT_RESULT)]).until("processOutputResult")
        run.answer("cancelled", at="processOutputResult")
        assert run.ops == ["emit", "result"]
        assert run.op("result").error.code == "PROCESSOR_TIMEOUT"

    @pytest.mark.parametrize(
        "run",
        [
            lambda: Run().cancel().answer("cancelled", at="model"),
            lambda: Run().answer("cancelled", at="model").cancel(),
            lambda: Run().cancel().says(calls=1),
            lambda: Run().says(calls=1).cancel().waits("1"),
            lambda: Run().waits("1").cancel().answer(),
            lambda: Run().waits("1").answer().cancel(),
        ],
        ids=["cut off", "known first", "whole", "would wait", "is about to wait", "waits"],
    )
    def test_it_is_told_once(self, run):
        """R-CX-3."""
        sent = run().to_end().sent
        told = [
            chunk["type"] for command in sent for op in command.ops if op.op == "emit" for chunk in op.chunks
        ]
        assert told.count("abort") == 1

    def test_a_worker_may_know_of_the_cancel_first(self):
        """The mark is in Redis before the orchestrator hears of it."""
        run = Run().answer("cancelled", at="model").cancel().to_end()
        assert run.result.status == "cancelled"


class TestDeadline:
    def test_the_run_fails_whoever_holds_it_up(self):
        run = Run().until("model").tell(DeadlinePassed(1))
        assert run.effects == [SignalCancel(), Send(run.command)]
        assert (run.command.service, run.ops, run.command.version) == (
            "orchestrator",
            ["emit", "result"],
            ANY_VERSION,
        )
        run.to_end()
        assert (run.result.status, run.error.code) == ("failed", "DEADLINE_EXCEEDED")
        assert "did not end within its timeout of 600 s" in run.error.message
        assert "PROCESSION_RUN_TIMEOUT" in run.error.message

    def test_the_guards_of_the_result_that_do_not_end_are_named(self):
        """D-1."""
        run = Run(output=[placed("out", Hook.OUTPUT_RESULT)]).says().tell(DeadlinePassed(1)).to_end()
        assert (run.error.code, run.error.hook) == ("DEADLINE_EXCEEDED", "processOutputResult")

    def test_the_answer_that_was_waited_for_comes_too_late(self):
        run = Run().until("model")
        late = run.command.seq
        run.tell(DeadlinePassed(1))
        before = run.state
        assert run.tell(_late(late)).state == before

    def test_a_suspended_run_ends_when_nobody_decides(self):
        run = Run().waits("1").answer().tell(DeadlinePassed(2**60)).to_end()
        assert (run.result.status, run.error.code) == ("failed", "DEADLINE_EXCEEDED")
        assert "within 2592000 s (PROCESSION_SUSPENDED_TIMEOUT)" in run.error.message

    def test_a_deadline_that_was_put_off_meanwhile_is_none(self):
        run = Run().waits("1").answer()
        before = run.state
        run.tell(DeadlinePassed(before.deadline_ms - 1))
        assert (run.state, run.effects) == (before, [TellSuspended(run.result)])

    def test_a_run_whose_end_does_not_come_is_ended_without_it(self):
        run = Run().tell(DeadlinePassed(1)).tell(DeadlinePassed(15_001))
        assert run.effects == [TellFinished(run.result)]
        assert (run.result.status, run.error.code) == ("failed", "DEADLINE_EXCEEDED")

    def test_two_who_see_it_at_the_same_time_end_the_run_once(self):
        run = Run().until("model").tell(DeadlinePassed(7))
        before = run.state
        run.tell(DeadlinePassed(8))
        assert (run.state, run.effects) == (before, [])

    def test_a_finished_run_stays_finished(self):
        run = Run().to_end()
        before = run.state
        run.tell(DeadlinePassed(1))
        assert (run.state, run.effects) == (before, [TellFinished(run.result)])


class TestTurns:
    """Runs on one thread, one after another."""

    LINE = Line(resource="ann", thread="t")

    def queued(self, **fields: Any) -> Run:
        line, plan = (
            self.LINE.but(**fields),
            make_plan(output=[placed("mem", Hook.OUTPUT_RESULT)]),
        )
        run = Run(plan)
        run.state, run.effects = make_state(plan, line=line, queued=True), []
        run.sent.clear()
        return run

    def test_a_run_that_waits_sends_nothing(self):
        assert outstanding(self.queued().state) == []

    def test_when_its_turn_comes_it_begins_and_knows_that_it_has_waited(self):
        run = self.queued().tell(Started())
        assert run.effects == [Send(run.command)]
        assert run.ops[0] == "open"
        assert run.op("open").waited
        assert not Run(line=self.LINE).op("open").waited

    def test_it_begins_once(self):
        run = self.queued().tell(Started())
        before = run.state
        assert run.tell(Started()).effects == [Send(run.command)]
        assert run.state == before

    def test_interrupt_is_told_as_long_as_it_waits(self):
        run = self.queued(policy="interrupt")
        assert outstanding(run.state) == [Interrupt()]
        assert run.tell(Started()).effects == [Send(run.command)]

    def test_cancelled_while_it_waits_it_ends_without_a_hook(self):
        run = self.queued()
        run.cancel()
        assert run.shapes() == [("orchestrator", ["emit", "result"])]
        assert [chunk["type"] for chunk in run.op("emit").chunks] == ["start", "abort"]
        run.tell(Started())  # its turn comes meanwhile
        run.to_end()
        assert run.result.status == "cancelled"
        assert run.effects == [TellFinished(run.result), PassTurn()]

    def test_its_deadline_passes_while_it_waits(self):
        run = self.queued().tell(DeadlinePassed(1)).to_end()
        assert (run.error.code, run.models_called()) == ("DEADLINE_EXCEEDED", 0)
        assert "the run waited for its turn until its timeout of 600 s" in run.error.message
        assert run.effects == [TellFinished(run.result), PassTurn()]

    def test_the_turn_is_passed_on_at_the_end_and_when_a_person_is_waited_for(self):
        run = Run(line=self.LINE).waits("1").answer()
        assert run.effects == [TellSuspended(run.result), PassTurn()]
        run.approve("1").to_end()
        assert run.effects == [TellFinished(run.result), PassTurn()]


class TestFailure:
    @pytest.mark.parametrize("at", ["processInput", "processInputStep"])
    def test_a_failing_processor_ends_the_run_and_is_named(self, at):
        """D-30, R-ER-5: it is never tried again."""
        error = Failure(code="PROCESSOR_FAILED", message="broken", processor_id="in", hook=at)
        run = Run(budget=3, error=[ERR], input=[placed("in", Hook.INPUT, Hook.INPUT_STEP)])
        run.answer("failed", at=at, error=error)
        assert (run.ops, run.command.version) == (["emit", "result"], ANY_VERSION)
        run.to_end()
        assert (run.result.status, run.result.error) == ("failed", error)

    def test_a_failure_while_a_failure_is_told_ends_the_run_without_it(self):
        error = Failure(code="CHUNK_NOT_SENDABLE", message="too long")
        run = Run().answer("failed", at="model", error=Failure(code="X", message="x"))
        run.answer("failed", at="emit", error=error)
        assert run.effects == [TellFinished(run.result)]
        assert (run.result.status, run.result.error) == ("failed", error)

    @pytest.mark.parametrize("at", ["processOutputResult", "result"])
    def test_one_behind_the_guards_of_the_result_is_theirs(self, at):
        """D-1: what they have said is lost with the command, whatever it failed of."""
        run = Run(output=[placed("out", Hook.OUTPUT_STEP, Hook.OUTPUT_RESULT)]).until("processOutputResult")
        run.answer("failed", at=at, error=Failure(code="WORK_FAILED", message="x")).to_end()
        assert (run.error.code, run.error.hook) == ("WORK_FAILED", "processOutputResult")

    def test_one_before_them_is_not(self):
        run = Run(output=[placed("out", Hook.OUTPUT_STEP, Hook.OUTPUT_RESULT)]).until("processOutputStep")
        run.answer(
            "failed", at="processOutputStep", error=Failure(code="STATE_NOT_JSON", message="x")
        ).to_end()
        assert run.error.hook is None

    def test_a_service_that_gives_no_reason_still_ends_the_run(self):
        assert Run().answer("failed", at="model").to_end().error.code == "INTERNAL"


class TestEnd:
    @pytest.mark.parametrize(
        "event",
        [Started(), DeadlinePassed(1), Control(type="cancel"), Control(type="resume", tool_call_id="1")],
    )
    def test_after_the_terminal_event_nothing_changes(self, event):
        run = Run().to_end()
        before = run.state
        run.tell(event)
        assert (run.state, run.effects) == (before, [TellFinished(run.result)])

    def test_the_state_survives_storing_at_every_point(self):
        run = Run(budget=1, input=[placed("in", Hook.INPUT_STEP)], output=[placed("out", Hook.OUTPUT_STEP)])
        run.trips("processOutputStep", retry=True).waits("1")
        assert read_state(run.state.to_json(), run.state.plan.stored) == run.state


class TestForgotten:
    """Redis has lost what followed, or began another life in which it may have."""

    def begins_a_life(self, run: Run, life: int) -> None:
        run.state = run.state.but(life=life, leap=True)

    def test_what_was_out_is_out_again_under_a_number_that_nobody_has_used(self):
        run = Run().until("model")
        before = run.command
        run.tell(Forgotten(before.seq))
        assert run.command == before.but(seq=before.seq + SKIPPED, renewed=True)
        assert run.effects == [Send(run.command)]

    def test_it_is_renumbered_once(self):
        run = Run().until("model")
        forgotten = Forgotten(run.command.seq)
        once = run.tell(forgotten).state
        assert run.tell(forgotten).state == once

    def test_what_is_out_in_another_life_counts_and_the_next_one_leaves_out_numbers(self):
        run = Run().until("model")
        out = run.command
        self.begins_a_life(run, 60)
        assert run.tell(Started()).command == out
        run.says(calls=1)
        assert (run.command.seq, run.command.renewed) == (61 * SKIPPED, True)
        run.answer(facts=StepFacts(outcomes=1))
        assert (run.command.seq, run.command.renewed) == (61 * SKIPPED + 1, False)

    def test_no_number_of_a_life_that_was_forgotten_itself_comes_again(self):
        run = Run().until("model")
        remembered = run.state
        seqs = []
        for life in (1_000, 1_001, 1_003):
            run.state = remembered
            self.begins_a_life(run, life)
            run.says(calls=1)
            seqs.append(run.command.seq)
        assert seqs == sorted(set(seqs))

    def test_a_run_that_waits_for_its_turn_begins_behind_what_it_may_have_done(self):
        plan = make_plan()
        run = Run(plan)
        run.state = make_state(plan, line=Line(resource="r", thread="t")).but(queued=True)
        self.begins_a_life(run, 5)
        run.tell(Started())
        assert (run.command.seq, run.command.renewed) == (6 * SKIPPED, True)

    def test_an_end_that_was_told_is_the_end(self):
        run = Run(line=Line(resource="r", thread="t"))
        told = Run().to_end().result
        run.tell(Ended(told))
        assert (run.state.status, run.effects) == ("done", [TellFinished(told), PassTurn()])

    def test_a_run_that_waits_for_a_person_sends_nothing(self):
        run = Run().waits("1").answer()
        before = run.state
        assert run.tell(Forgotten(before.seq)).state == before
        assert run.effects == [TellSuspended(run.result)]


def _late(seq: int) -> WorkResult:
    return WorkResult(
        run="r", tenant="t", seq=seq, service="llm_gateway", outcome="ok", version=99, out_seq=99
    )
