"""Which model answers a request."""

import json
from typing import ClassVar

import pytest

from procession.errors import InvalidOptionsError
from procession.messages import new_message
from procession.services import ModelCallError
from procession.testing import check_processor
from procession_services.processors.model_selection import ModelSelection, Selection
from tests.support.detectors import ScriptedKit

CHOICES = [{"model": "p/small", "criteria": "easy"}, {"model": "p/big", "criteria": "hard", "name": "big"}]
BASE = {"model": "openai/judge", "choices": CHOICES}
QUESTIONS = {"code": {"type": "boolean", "question": "Is it about code?"}}
RULES = {
    "model": "openai/judge",
    "questions": QUESTIONS,
    "rules": [{"when": {"question": "code", "atLeast": 0.7}, "model": "p/coder"}],
}


def choice(name, **probabilities):
    return json.dumps(
        {"model": {"choice": name, **({"probabilities": probabilities} if probabilities else {})}}
    )


class Deciding(ModelSelection):
    decisions: ClassVar[list[Selection]] = []

    async def on_decision(self, selection):
        self.decisions.append(selection)


def kit(replies, options=None, processor=Deciding, **more):
    Deciding.decisions.clear()
    return ScriptedKit(processor, replies, {**(options or BASE), **more}, model="p/configured")


async def model_of(run, text="hello"):
    await run.input(text)
    return (await run.input_step()).config.model


async def test_the_chosen_model_answers():
    run = kit([choice("big", big=0.9)])
    assert await model_of(run) == "p/big"
    assert Deciding.decisions == [Selection("p/big", "big", 0.9)]
    (asked,) = run.models.requests
    assert "- big: hard" in asked.prompt[0]["content"]
    assert asked.prompt[1]["content"][0]["text"].splitlines()[1:-1] == ["hello"]


@pytest.mark.parametrize(
    ("reply", "more", "why"),
    [
        (ModelCallError("down"), {}, "error"),
        ("?", {}, "error"),
        ('{"model": {}}', {}, "error"),
        (choice("p/small", **{"p/small": 2}), {}, "error"),
        (choice("p/huge"), {}, "no-model-for-choice"),
        (choice("p/small"), {"minProbability": 0.1}, "below-threshold"),
        (choice("p/small", **{"p/small": 0.4}), {"minProbability": 0.5}, "below-threshold"),
    ],
)
async def test_without_a_usable_decision_the_configured_model_answers(reply, more, why):
    run = kit([reply], **more)
    assert await model_of(run) == "p/configured"
    assert [each.abstained for each in Deciding.decisions] == [why]
    (report,) = [each for (_, hook), each in run.calls.reports.items() if hook == "processInput"]
    assert report.warnings == (why == "error")


async def test_only_the_latest_user_message_is_asked_about():
    run = kit([choice("big")])
    await run.input([new_message("user", "old"), new_message("user", " ")])
    assert run.models.requests == []
    assert [each.abstained for each in Deciding.decisions] == ["no-text"]


async def test_every_step_gets_the_model_or_only_the_first():
    for scope, second in (("run", "p/big"), ("first-step", "p/configured")):
        run = kit([choice("big")], scope=scope)
        assert await model_of(run) == "p/big"
        run.answer("x", tool_calls=[{"toolName": "t"}])
        assert (await run.input_step()).config.model == second
        assert len(run.models.requests) == 1


async def test_a_fallback_keeps_its_place():
    run = kit([choice("big")])
    assert await model_of(run) == "p/big"
    assert (await run.input_step(model="p/fallback")).config.model == "p/fallback"
    assert (await run.input_step(model="p/configured")).config.model == "p/configured"


async def test_rules_choose_by_answers():
    def answer(p):
        return json.dumps({"code": {"probability": p}})

    assert await model_of(kit([answer(0.7)], RULES)) == "p/coder"
    assert await model_of(kit([answer(0.6)], RULES)) == "p/configured"


async def test_code_chooses_in_a_subclass_and_its_exceptions_leave_the_configured_model():
    class Mine(Deciding):
        def select(self, answers):
            if answers["code"]["probability"] > 0.9:
                raise ValueError("bug")
            return "p/mine"

    replies = [json.dumps({"code": {"probability": p}}) for p in (0.1, 0.95)]
    questions = {"model": "openai/judge", "questions": QUESTIONS}
    assert await model_of(kit(replies[:1], questions, Mine)) == "p/mine"
    assert await model_of(kit(replies[1:], questions, Mine)) == "p/configured"
    assert [each.abstained for each in Deciding.decisions] == ["error"]


async def test_a_listener_that_raises_changes_nothing():
    class Loud(ModelSelection):
        async def on_decision(self, selection):
            raise RuntimeError("listener")

    assert await model_of(kit([choice("big")], processor=Loud)) == "p/big"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({**BASE, "choices": CHOICES[:1]}, "MODEL_SELECTION_INSUFFICIENT_CHOICES"),
        ({**BASE, "choices": [CHOICES[0], CHOICES[0]]}, "MODEL_SELECTION_DUPLICATE_CHOICE"),
        (
            {**BASE, "choices": [CHOICES[0], {"model": "p/x", "criteria": " "}]},
            "MODEL_SELECTION_MISSING_CRITERIA",
        ),
        ({"model": "a/b"}, "MODEL_SELECTION_QUESTIONS_REQUIRED"),
        ({"model": "a/b", "questions": {}}, "MODEL_SELECTION_QUESTIONS_REQUIRED"),
        ({**BASE, **RULES}, "either"),
        ({**RULES, "rules": [{"when": {"question": "law"}, "model": "p/x"}]}, "no question 'law'"),
        ({**BASE, "minProbability": 2}, "minProbability"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, told):
    with pytest.raises(InvalidOptionsError, match=told):
        ModelSelection.build(options)


async def test_it_keeps_the_contract():
    await check_processor(ModelSelection, BASE)
