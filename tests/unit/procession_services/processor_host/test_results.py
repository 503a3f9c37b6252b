"""What a run ends with (core.md 10.1)."""

import pytest

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
    assert "sources" not in result.steps[0]


@pytest.mark.parametrize("status", ["finished", "blocked"])
def test_a_step_without_sources_is_told_as_it_is_kept(status):
    ctx = context()
    kept = step_of(ctx, delta("hello"))
    assert result_of(ctx, status).steps == [kept]
