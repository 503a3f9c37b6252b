"""What a run ends with (core.md 10.1)."""

import pytest

from procession_schemas.run import Failure
from procession_schemas.work import ResultOp
from procession_services.processor_host.results import compile_result
from tests.unit.procession.making import context, delta
from tests.unit.procession.test_steps import FILE, RICH, SOURCE, step_of


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


@pytest.mark.parametrize("status", ["finished", "blocked"])
def test_a_step_without_sources_is_told_as_it_is_kept(status):
    ctx = context()
    kept = step_of(ctx, delta("hello"))
    assert result_of(ctx, status).steps == [kept]


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


def test_a_run_without_a_step_has_nothing_to_say():
    result = result_of(context(), "failed")
    assert (result.provider_metadata, result.warnings, result.total_usage) == (None, [], result.usage)
    assert "timestamp" not in result.response


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
