"""Settings that hold for some steps."""

import pytest

from procession.errors import InvalidOptionsError
from procession.testing import ProcessorKit, check_processor
from procession_services.processors.prepare_step import PrepareStep

RULES = [
    {"until": 0, "model": "test/small", "activeTools": []},
    {"afterTool": "search", "model": "test/large", "modelSettings": {"temperature": 0}},
    {"since": 2, "toolChoice": "none"},
]


async def test_the_first_rule_that_holds_counts():
    kit = ProcessorKit(PrepareStep, {"rules": RULES}, model="test/medium")
    first = (await kit.input_step()).config
    assert (first.model, first.active_tools, first.tool_choice) == ("test/small", [], "auto")
    kit.answer(tool_calls=[{"toolName": "search"}])
    second = (await kit.input_step()).config
    assert (second.model, second.active_tools, second.model_settings) == (
        "test/large",
        None,
        {"temperature": 0},
    )
    kit.answer("done")
    third = (await kit.input_step()).config
    assert (third.model, third.tool_choice) == ("test/medium", "none")


async def test_without_a_rule_nothing_changes():
    config = (await ProcessorKit(PrepareStep, model="test/medium").input_step()).config
    assert (config.model, config.tool_choice) == ("test/medium", "auto")


async def test_it_may_decide_in_code():
    class Own(PrepareStep):
        async def prepare_step(self, args):
            return {"model": f"test/step-{args.step_number}"}

    assert (await ProcessorKit(Own).input_step()).config.model == "test/step-0"


@pytest.mark.parametrize("rule", [{"since": 2, "until": 1}, {"since": -1}, {"model": ""}, {"prompt": "x"}])
def test_rules_that_make_no_sense_are_refused(rule):
    with pytest.raises(InvalidOptionsError, match=r"rules\.0"):
        PrepareStep.build({"rules": [rule]})


async def test_conformance():
    await check_processor(PrepareStep)
