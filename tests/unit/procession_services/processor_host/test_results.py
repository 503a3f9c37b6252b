"""What a run ends with (core.md 10.1)."""

import pytest

from procession.steps import current_step
from procession_schemas.run import Failure
from procession_schemas.work import ResultOp
from procession_services.processor_host.results import compile_result
from tests.unit.procession.making import context, delta
from tests.unit.procession.test_steps import CALL, FILE, RICH, SOURCE, step_of


def result_of(ctx, status="finished"):
    return compile_result(ResultOp(status=status), ctx)


def test_sources_and_files_of_all_steps_are_told():
    """R-FR-1; files are not told with the steps a second time."""
    ctx = context()
    step_of(ctx, *RICH)
    step_of(ctx, delta("more"))
    result = result_of(ctx)
    assert (result.sources, result.files) == ([SOURCE], [FILE])
    assert [step.get("sources") for step in result.steps] == [[SOURCE], None]
    assert not any({"files", "segment"} & step.keys() for step in result.steps)


def test_a_blocked_run_tells_neither():
    """A-13."""
    ctx = context()
    step_of(ctx, *RICH)
    result = result_of(ctx, "blocked")
    assert (result.sources, result.files) == ([], [])
    assert not {"sources", "files"} & result.steps[0].keys()


def test_of_a_blocked_run_neither_calls_nor_the_object_are_told():
    """A-13."""
    ctx = context()
    step_of(ctx, {"type": "tool-call", "payload": CALL})
    ctx.steps[0]["toolResults"], ctx.object = [{"toolCallId": "c"}], {"x": 1}
    finished, blocked = result_of(ctx), result_of(ctx, "blocked")
    assert [len(told) for told in (finished.tool_calls, finished.tool_results)] == [1, 1]
    assert (blocked.tool_calls, blocked.tool_results, blocked.object) == ([], [], None)


@pytest.mark.parametrize("status", ["finished", "blocked"])
def test_a_step_without_sources_is_told_as_it_is_kept(status):
    ctx = context()
    kept = step_of(ctx, delta("hello"))
    assert result_of(ctx, status).steps == [{k: v for k, v in kept.items() if k != "segment"}]


def shout(ctx):
    """A processor that rewrites the run's message at the end."""
    for message in ctx.messages.get.response.db():
        for part in message["content"]["parts"]:
            if part["type"] == "text":
                part["text"] = part["text"].upper()


def told(ctx, status="finished"):
    result = result_of(ctx, status)
    return result.text, [step["text"] for step in result.steps]


@pytest.mark.parametrize("status", ["finished", "failed", "blocked"])
def test_the_text_of_every_step_is_what_processors_left_of_it(status):
    """R-OR-5, however the run ends: a run of several steps told what was taken out of the earlier ones."""
    ctx = context()
    step_of(ctx, delta("one "))
    ctx.steps.append({"text": "", "finishReason": "retry"})
    step_of(ctx, delta("two"))
    shout(ctx)
    assert told(ctx, status) == ("ONE TWO", ["ONE ", "", "TWO"])


def test_what_streamed_is_kept_for_hooks():
    ctx = context()
    step_of(ctx, delta("one "))
    shout(ctx)
    assert ctx.text() == "one "


def test_of_a_message_that_processors_removed_no_step_tells():
    ctx = context()
    step_of(ctx, delta("one "))
    step_of(ctx, delta("two"))
    ctx.messages.remove_by_ids([ctx.message_id])
    assert told(ctx) == ("", ["", ""])


def test_of_a_message_that_processors_removed_no_step_tells_where_they_wrote_data_since():
    """What is stored in its place is theirs; the texts of all but the last step were told."""
    ctx = context()
    step_of(ctx, delta("one "))
    step_of(ctx, delta("two"))
    ctx.messages.remove_by_ids([ctx.message_id])
    ctx.messages.append_response_parts([{"type": "data-removed", "data": 1}])
    assert told(ctx) == ("", ["", ""])


@pytest.mark.parametrize("steps", [1, 2])
def test_what_a_processor_put_in_the_place_of_the_message_is_the_text_and_has_the_data_that_it_wrote(steps):
    """D-35: the text was empty, since the data made a message of their own behind the processor's."""
    ctx = context()
    for _ in range(steps):
        step_of(ctx, delta("secret"))
    ctx.messages.remove_by_ids([ctx.message_id])
    ctx.messages.add({"role": "assistant", "content": "a notice"}, "response")
    ctx.messages.append_response_parts([{"type": "data-removed", "data": 1}])
    assert told(ctx) == ("a notice", [*[""] * (steps - 1), "a notice"])
    (message,) = ctx.messages.get.response.db()
    assert [part["type"] for part in message["content"]["parts"]] == ["text", "data-removed"]


def test_a_step_that_a_processor_took_out_with_its_mark_before_it_was_accepted_has_no_text():
    """R-OR-5; the text of the step before was told twice."""
    ctx = context()
    step_of(ctx, delta("one "))
    ctx.messages.begin_response(ctx.message_id)
    ctx.response = {"text": "two"}
    ctx.messages.append_response_parts([{"type": "text", "text": "two"}])
    del ctx.messages.get.response.db()[0]["content"]["parts"][1:]
    ctx.steps.append(current_step(ctx))
    ctx.messages.accept_response()
    assert told(ctx) == ("one ", ["one ", ""])


def test_a_step_that_left_the_conversation_before_the_next_one_keeps_its_text():
    """R-IS-9, R-FR-2: a processor that shortens the prompt takes nothing out of the answer."""
    ctx = context()
    step_of(ctx, delta("one "))
    ctx.messages.remove_by_ids([ctx.message_id])
    step_of(ctx, delta("two"))
    shout(ctx)
    assert told(ctx) == ("one TWO", ["one ", "TWO"])


@pytest.mark.parametrize("when", [1, 2])
def test_no_text_is_lost_where_a_processor_has_put_a_mark_between_steps(when):
    ctx = context()
    for number, text in enumerate(("one ", "two"), start=1):
        step_of(ctx, delta(text))
        if number == when:
            parts = ctx.messages.get.response.db()[0]["content"]["parts"]
            parts.insert(0, {"type": "step-start"})
    assert told(ctx) == ("one two", ["one ", "two"])
    ctx.messages.get.response.db()[0]["content"]["parts"][-1]["text"] = "TWO"
    assert told(ctx) == ("one TWO", ["one ", "TWO"])
    shout(ctx)
    assert told(ctx)[0] == "ONE TWO"


def test_of_steps_that_a_processor_made_one_its_text_is_told():
    ctx = context()
    step_of(ctx, delta("one "))
    step_of(ctx, delta("two"))
    ctx.messages.get.response.db()[0]["content"]["parts"][:] = [{"type": "text", "text": "both"}]
    assert told(ctx)[0] == "both"


def test_a_message_that_a_processor_puts_last_is_the_text():
    ctx = context()
    step_of(ctx, delta("one"))
    ctx.messages.add({"role": "assistant", "content": "instead"}, "response", merge=False)
    assert told(ctx) == ("instead", ["instead"])
    assert told(ctx, "failed") == ("one", ["one"])


@pytest.mark.parametrize("role", ["assistant", "user"])
def test_a_message_that_a_processor_puts_before_the_answer_or_asks_behind_it_is_not_the_text(role):
    ctx = context()
    if role == "assistant":
        ctx.messages.add({"role": role, "content": "before"}, "response", merge=False)
    step_of(ctx, delta("one"))
    if role == "user":
        ctx.messages.add({"role": role, "content": "behind"}, "response", merge=False)
    assert told(ctx) == ("one", ["one"])


def test_a_message_of_a_processor_is_not_what_a_cancelled_run_had_not_accepted():
    ctx = context()
    step_of(ctx, delta("one"))
    ctx.response = {"text": "one", "accepted": True}
    ctx.messages.add({"role": "assistant", "content": "beside"}, "response", merge=False)
    assert told(ctx, "cancelled") == ("one", ["one"])


def test_what_processors_left_of_a_cancelled_answer_is_its_text():
    """It is a message of its own behind those of the steps."""
    ctx = context()
    step_of(ctx, delta("one "))
    ctx.messages.begin_response(ctx.message_id)
    ctx.response = {"text": "two"}
    ctx.messages.add({"role": "assistant", "content": "two"}, "response", merge=False)
    shout(ctx)
    assert told(ctx, "cancelled") == ("ONE TWO", ["ONE "])
    ctx.messages.remove_by_ids([ctx.messages.get.response.db()[-1]["id"]])
    assert told(ctx, "cancelled") == ("ONE ", ["ONE "])


def test_what_processors_left_of_an_answer_whose_tools_were_cancelled_is_its_text():
    ctx = context()
    step_of(ctx, delta("one "))
    ctx.messages.begin_response(ctx.message_id)
    ctx.response = {"text": "two"}
    ctx.messages.append_response_parts([{"type": "text", "text": "two"}])
    shout(ctx)
    assert told(ctx, "cancelled") == ("ONE TWO", ["ONE "])


def test_a_step_without_a_place_in_the_message_has_what_is_left_of_the_whole():
    """It has no `segment`."""
    ctx = context()
    step_of(ctx, delta("one"))
    del ctx.steps[0]["segment"]
    shout(ctx)
    assert told(ctx) == ("ONE", ["ONE"])


def test_what_the_last_step_says_of_its_call_is_told():
    """R-FR-1."""
    ctx = context()
    step_of(ctx, *RICH)
    result = result_of(ctx)
    assert result.provider_metadata == {"p": {"x": 1}}
    ctx.steps.append({"text": "", "finishReason": "retry"})
    assert result_of(ctx).provider_metadata == {"p": {"x": 1}}
    at = "2026-01-01T00:00:00.000Z"
    step_of(ctx, {"type": "response-metadata", "payload": {"timestamp": at}}, delta("more"))
    ctx.steps[-1]["warnings"] = ["w"]
    result = result_of(ctx)
    assert (result.provider_metadata, result.warnings, result.response["timestamp"]) == (None, ["w"], at)


@pytest.mark.parametrize("status", ["finished", "failed"])
def test_a_run_without_a_step_has_nothing_to_say(status):
    ctx = context()
    ctx.messages.add({"role": "assistant", "content": "of a processor"}, "response")
    result = result_of(ctx, status)
    assert (result.text, result.finish_reason, result.reasoning_text) == ("", "other", None)
    assert (result.provider_metadata, result.warnings, result.total_usage) == (None, [], result.usage)
    assert "timestamp" not in result.response


def test_without_a_model_call_the_usage_has_no_tokens_and_a_blocked_run_has_none():
    nothing = {"inputTokens": None, "outputTokens": None, "totalTokens": 0}
    assert (result_of(context()).usage, result_of(context(), "blocked").usage) == (nothing, {})


def test_a_run_ends_for_the_reason_that_was_given_or_that_of_its_last_answer():
    ctx = context()
    step_of(ctx, *RICH)
    given = compile_result(ResultOp(status="finished", finish_reason="length"), ctx)
    assert (given.finish_reason, result_of(ctx).finish_reason) == ("length", "stop")


def test_the_reasoning_of_all_steps_is_told():
    ctx = context()
    for text in ("hm, ", "so"):
        step_of(ctx, {"type": "reasoning-delta", "payload": {"id": "r", "text": text}})
    assert result_of(ctx).reasoning_text == "hm, so"


def test_total_usage_is_that_of_all_steps():
    ctx = context()
    step_of(ctx, *RICH)
    step_of(ctx, *RICH)
    result = result_of(ctx)
    assert result.total_usage == result.usage
    assert result.total_usage["totalTokens"] == 6


def test_what_memory_brought_is_told_apart():
    ctx = context()
    ctx.messages.add({"id": "old", "role": "user", "content": "old"}, "memory")
    ctx.messages.add("new", "input")
    result = result_of(ctx)
    assert [message["id"] for message in result.remembered_messages] == ["old"]
    assert len(result.messages) == 2


def test_the_metadata_of_a_blocked_answer_is_not_told():
    """A-13: it may hold the answer's tokens."""
    ctx = context()
    step_of(ctx, *RICH)
    result = result_of(ctx, "blocked")
    assert result.provider_metadata is None
    assert "providerMetadata" not in result.steps[0]


@pytest.mark.parametrize("hook", ["processOutputResult", "processOutputStep"])
def test_a_run_whose_answer_could_not_be_judged_at_the_end_tells_nothing_of_it(hook):
    """D-1, R-ER-4; what was judged before is told where another hook fails."""
    ctx = context()
    step_of(ctx, *RICH, delta("SECRET"))
    ctx.object = {"x": "SECRET"}
    error = Failure(code="PROCESSOR_FAILED", message="away", processor_id="p", hook=hook)
    result = compile_result(ResultOp(status="failed", error=error), ctx)
    withheld = hook == "processOutputResult"
    assert ("SECRET" in result.model_dump_json()) is not withheld
    assert (result.files == result.sources == []) is withheld
    assert (result.object is None) is withheld
    assert len(result.steps) == 1


def test_an_answer_that_is_blocked_at_the_end_is_told_nowhere():
    """A-13: processOutputResult has judged it; the step keeps its shape."""
    ctx = context()
    step_of(ctx, *RICH, delta("SECRET"))
    ctx.final = {}
    result = result_of(ctx, "blocked")
    assert "SECRET" not in result.model_dump_json()
    assert (result.steps[0]["toolCalls"], result.steps[0]["toolResults"]) == ([], [])
    assert result.response["modelId"] == ctx.config.model


PROVIDERS = Failure(
    code="MODEL_FAILED", message="10.0.0.7 is away", status_code=503, detail={"host": "10.0.0.7"}
)


def told_as(message, **more):
    return Failure(code="MODEL_FAILED", message=message, **more)


@pytest.mark.parametrize(
    ("told", "error"),
    [
        (None, PROVIDERS),
        (PROVIDERS.model_dump(by_alias=True, exclude_none=True), PROVIDERS),
        ({"message": "try again", "statusCode": 500}, told_as("try again", status_code=500)),
        ("try again", told_as("try again")),
        ({"message": "try again", "statusCode": "none"}, told_as("try again")),
        ({}, told_as("")),
    ],
)
def test_the_error_of_a_model_is_what_the_output_chain_has_let_through(told, error):
    ctx = context()
    ctx.told_error = told
    assert compile_result(ResultOp(status="failed", error=PROVIDERS), ctx).error == error


def test_another_error_stays_what_it_is():
    """As of a processor at the end, behind that of the model."""
    ctx = context()
    ctx.told_error = "try again"
    error = Failure(code="PROCESSOR_FAILED", message="boom", hook="processOutputResult")
    assert compile_result(ResultOp(status="failed", error=error, finish=False), ctx).error == error
