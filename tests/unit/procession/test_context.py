import json
from datetime import datetime

import orjson
import pytest
from msgspec.structs import fields

from procession.context import RunContext, add_usage, is_rejected
from procession.errors import ProcessorError
from procession.steps import for_hooks
from tests.unit.procession.making import NOW, context


def test_usage_adds_up_and_what_nobody_reports_stays_unknown():
    """R-US-4."""
    total = add_usage({"inputTokens": 1, "outputTokens": None}, {"inputTokens": 2, "reasoningTokens": 3})
    assert total == {"inputTokens": 3, "reasoningTokens": 3}
    assert add_usage({}, {}) == {}
    assert add_usage({"inputTokens": 0}, {}) == {"inputTokens": 0}


def test_a_state_is_made_once_and_stays_the_same_object():
    ctx = context()
    ctx.state("a")["x"] = 1
    assert ctx.state("a") is ctx.states["a"]
    assert ctx.state("b") == {}


@pytest.mark.parametrize(
    ("step", "rejected"),
    [
        ({"finishReason": "stop"}, False),
        ({"finishReason": "retry"}, True),
        ({"tripwire": {}}, True),
        ({}, False),
    ],
)
def test_rejected_attempts_are_no_steps(step, rejected):
    """R-AB-32."""
    assert is_rejected(step) is rejected
    ctx = context()
    step["text"] = "b"
    ctx.steps = [{"text": "a"}, step]
    assert ctx.text() == ("a" if rejected else "ab")
    assert len(ctx.accepted_steps()) == 2 - rejected


def test_the_text_of_an_attempt_counts_until_it_is_accepted():
    ctx = context()
    assert ctx.unaccepted_text() == ""
    ctx.response = {"text": "half"}
    assert ctx.unaccepted_text() == "half"
    ctx.response["accepted"] = True
    assert ctx.unaccepted_text() == ""


def test_a_context_survives_the_journey():
    ctx = context()
    ctx.messages.add("hello", "input")
    ctx.messages.add_system("be kind")
    ctx.messages.freeze_baseline()
    ctx.messages.begin_response("answer")
    ctx.state("p")["n"] = [1]
    ctx.request_context["user"] = "u"
    ctx.steps = [{"text": "x", "stepNumber": 0}]
    ctx.response = {"text": "x", "toolCalls": []}
    ctx.config = ctx.config.but(model="p/m", active_tools=["a"])
    ctx.step_number, ctx.retry_count, ctx.pending_parts = 2, 1, [{"type": "data-x"}]
    data = json.loads(json.dumps(ctx.to_dict()))
    again = RunContext.from_dict(data, new_id=iter("xyz").__next__, now=lambda: NOW)
    assert again.to_dict() == ctx.to_dict()
    assert again.request_context.has("user")
    again.messages.append_response_parts([{"type": "text", "text": "answer"}])
    again.messages.rollback_response()
    assert len(again.messages.get.all.db()) == 1


def test_every_field_travels_but_what_is_said_of_one_place_alone():
    names = {field.name.replace("_", "") for field in fields(RunContext)}
    names |= {"streams"}  # the number of their ids
    assert {name.lower() for name in context().to_dict()} == names - {"stepsshown"}


@pytest.mark.parametrize("steps", [[], [{"text": "x", "stepNumber": 0}]])
@pytest.mark.parametrize("shown", [False, True])
def test_its_json_is_the_same_whether_or_not_hooks_got_the_steps(steps, shown):
    ctx = context()
    ctx.messages.add("hello", "input")
    ctx.steps = steps
    if shown:
        for_hooks(ctx, ctx.steps)
    assert json.loads(ctx.to_json()) == json.loads(json.dumps(ctx.to_dict()))


@pytest.mark.parametrize("spoilt", [float("nan"), datetime(2026, 1, 1)])  # noqa: DTZ001 - any will do
def test_steps_that_hooks_have_spoilt_are_found(spoilt):
    ctx = context()
    ctx.steps = [{"text": "x", "toolResults": [{"toolCallId": "c", "toolName": "t", "output": {"n": 1}}]}]
    for_hooks(ctx, ctx.steps)[0]["toolResults"][0]["output"]["n"] = spoilt
    with pytest.raises(ProcessorError, match=r"run\['steps'\]\[0\]") as caught:
        ctx.to_json()
    assert caught.value.code == "CONTEXT_NOT_JSON"


def test_settings_of_a_step_that_contain_themselves_are_no_json():
    ctx = context()
    ctx.config.model_settings["x"] = ctx.config.model_settings
    with pytest.raises(ProcessorError) as caught:
        ctx.to_json()
    assert caught.value.code == "CONTEXT_NOT_JSON"


def test_a_context_that_is_no_json_names_the_place_and_whose_state_it_is():
    ctx = context()
    ctx.request_context["x"] = float("nan")
    with pytest.raises(ProcessorError, match=r"run\['requestContext'\]\['x'\] is nan") as caught:
        ctx.to_json("processInput")
    assert (caught.value.code, caught.value.hook) == ("CONTEXT_NOT_JSON", "processInput")
    ctx.state("p")["x"] = [{1}]
    with pytest.raises(ProcessorError, match=r"state\['x'\]\[0\] is of type set") as caught:
        ctx.to_json()
    assert (caught.value.code, caught.value.processor_id) == ("STATE_NOT_JSON", "p")


@pytest.mark.parametrize(("state", "whose"), [("x" * 900, "p"), ("x", "")])
def test_a_context_that_is_too_long_names_what_has_most_of_it(monkeypatch, state, whose):
    monkeypatch.setattr("procession.context._MOST_BYTES", 1_000)
    ctx = context()
    ctx.state("p")["x"] = state
    ctx.request_context["x"] = "y" * (900 if whose == "" else 0)
    with pytest.raises(
        ProcessorError,
        match=r"the data of the run has \d+ bytes, \d+ of them in .*; at most 1000 are allowed",
    ) as caught:
        ctx.to_json("processInput")
    told = caught.value
    assert (told.code, told.processor_id, told.hook) == ("CONTEXT_TOO_LONG", whose, "processInput")
    monkeypatch.setattr("procession.context._MOST_BYTES", len(orjson.dumps(ctx.to_dict())) + 10)
    assert orjson.loads(ctx.to_json()) == ctx.to_dict()


@pytest.mark.parametrize("where", ["outcomes", "steps", "messages"])
def test_a_context_that_is_too_long_names_a_tool_whose_results_have_most_of_it(monkeypatch, where):
    monkeypatch.setattr("procession.context._MOST_BYTES", 1_000)
    ctx, given = context(), [{"toolCallId": f"c{n}", "toolName": "t", "result": "x" * 998} for n in range(3)]
    if where == "outcomes":
        ctx.outcomes = given
    elif where == "steps":
        ctx.steps = [{"toolResults": [{"toolName": "t", "output": each["result"]} for each in given]}]
    else:
        parts = [
            {"type": "tool-invocation", "toolInvocation": {"state": "result", "args": {}, **each}}
            for each in given
        ]
        ctx.messages.add({"role": "assistant", "content": {"format": 2, "parts": parts}}, "response")
    with pytest.raises(ProcessorError, match="3000 of them in results of the tool 't'; at most") as caught:
        ctx.to_json()
    assert caught.value.processor_id == ""
