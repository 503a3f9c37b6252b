"""Runs as they are stored: the plan once, the state without it."""

import pytest

from procession.processor import Hook
from procession_schemas.work import StepConfig
from procession_services.runs.state import Line
from procession_services.runs.stored import Remains, UnreadableError, read_state, remains
from tests.unit.procession_services.runs.driving import Run, make_plan, make_state, placed


def test_a_state_holds_neither_the_plan_nor_what_operations_have_of_it():
    config = StepConfig(model="m/one", model_settings={"temperature": 0.25})
    plan = make_plan(config=config, output=[placed("out-long-name", Hook.OUTPUT_STREAM, Hook.OUTPUT_RESULT)])
    state = Run(plan).state.to_json()
    assert b"out-long-name" not in state
    assert b"temperature" not in state


def test_what_the_request_says_is_gone_once_the_run_is_open():
    run = Run(input=[placed("in", Hook.INPUT)])
    assert run.state.to_json().count(b'"hello"') == 1
    assert b'"hello"' not in run.until("model").state.to_json()


def test_runs_of_one_plan_share_it():
    plan, other = make_plan(), make_plan(max_steps=7)
    first, second = (read_state(make_state(plan).to_json(), plan.stored) for _ in range(2))
    assert first.plan is second.plan
    assert read_state(make_state(other).to_json(), other.stored).plan == other


def test_a_long_plan_is_not_kept():
    plan = make_plan(config=StepConfig(model="m/one", model_settings={"x": "y" * 40_000}))
    first, second = (read_state(make_state(plan).to_json(), plan.stored) for _ in range(2))
    assert first.plan == plan
    assert first.plan is not second.plan


@pytest.mark.parametrize(("life", "leap"), [(7, False), (8, True), (6, False), (0, False)])
def test_a_run_of_an_earlier_life_of_redis_leaves_out_numbers(life, leap):
    """0: Redis does not say which it is."""
    plan = make_plan()
    saved = make_state(plan).but(life=7)
    run = read_state(saved.to_json(), plan.stored, life)
    assert (run.leap, run.life) == (leap, max(life, 7))


@pytest.mark.parametrize(("state", "plan"), [(b"{", None), (b"{}", None), (b"{}", b"{}"), (b"{}", b"{")])
def test_what_is_no_run_is_refused(state, plan):
    with pytest.raises(UnreadableError):
        read_state(state, plan)


def test_a_state_whose_plan_is_gone_is_refused():
    with pytest.raises(UnreadableError, match="plan"):
        read_state(make_state(make_plan()).to_json(), None)


def test_what_the_end_of_a_run_needs_is_read_of_a_state_that_cannot_be():
    line = Line(resource="ann", thread="t")
    state = make_state(make_plan()).but(line=line, then="of a later version")
    assert remains(state.to_json()) == Remains(state.agent, state.fingerprint, line)


@pytest.mark.parametrize("state", [b"{", b"[]", b"{}", b'{"line": 1}'])
def test_of_what_is_no_run_nothing_is_read(state):
    assert remains(state) == Remains()
