"""What is to be done with each call, before anything runs."""

from typing import Any

import pytest

from procession_services.tools.core.plan import ClientSide, Offer, Plan, Ready, Settled, plan

ECHO = Offer({"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]})
BEGUN = {"toolCallId": "c1", "toolName": "echo", "args": {"x": 1}}


def one(call: dict[str, Any], offer: Offer = ECHO, decision: dict[str, Any] | None = None) -> Plan:
    whole = {"toolCallId": "c1", "toolName": "echo", **call}
    return plan([whole], {"echo": offer}, decisions={"c1": decision} if decision else {})[0]


def error(planned: Plan) -> dict[str, str]:
    assert isinstance(planned, Settled)
    found: dict[str, str] = planned.outcome["error"]
    return found


def test_a_good_call_is_ready() -> None:
    assert one({"args": {"x": 1}}) == Ready(BEGUN)


def test_an_unknown_tool_is_told_with_the_names_that_exist() -> None:
    offers = {"echo": ECHO, "weather": ECHO}
    (planned,) = plan([{"toolCallId": "c1", "toolName": "nope", "args": {}}], offers, decisions={})
    assert error(planned) == {
        "name": "ToolNotFoundError",
        "message": "There is no tool 'nope'. Available tools: echo, weather. Use one of these names exactly.",
    }


def test_an_unknown_tool_where_there_are_none() -> None:
    (planned,) = plan([{"toolCallId": "c1", "toolName": "nope", "args": {}}], {}, decisions={})
    assert "no tools are available" in error(planned)["message"]


def test_arguments_that_never_came_are_no_empty_ones() -> None:
    planned = one({"argsText": ""}, Offer({"type": "object"}))
    assert error(planned)["name"] == "InvalidArgumentsError"


def test_arguments_that_are_not_json_are_told_with_the_place() -> None:
    planned = one({"argsText": '{"x": '})
    assert error(planned)["name"] == "InvalidArgumentsError"
    assert (
        "'echo' are not valid JSON (Expecting value: line 1 column 7 (char 6))" in error(planned)["message"]
    )
    assert isinstance(planned, Settled)
    assert planned.outcome["args"] == {}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("1" + "0" * 20, "arguments['x'] is an integer of more than 64 bits"),
        ("[" * 200 + "]" * 200, "too deep"),
    ],
    ids=["number", "depth"],
)
def test_arguments_that_cannot_be_handed_on_are_told_to_the_model(value: str, told: str) -> None:
    message = error(one({"argsText": f'{{"x": {value}}}'}))["message"]
    assert "'echo' are not valid JSON" in message
    assert told in message


def test_arguments_that_came_as_text_are_read() -> None:
    assert one({"argsText": '{"x": 1}'}) == Ready(BEGUN)
    assert one({}, Offer({"type": "object"})) == Ready({**BEGUN, "args": {}})


def test_arguments_that_do_not_fit_are_told_field_by_field() -> None:
    offer = Offer({"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "string"}}})
    told = error(one({"args": {"x": "one", "y": 2}}, offer))
    assert told == {
        "name": "InvalidArgumentsError",
        "message": "The arguments do not fit the tool 'echo':\n"
        "- x: 'one' is not of type 'number'\n- y: 2 is not of type 'string'",
    }


def test_a_schema_that_is_wrong_itself_is_blamed() -> None:
    told = error(one({"args": {}}, Offer({"type": "thing"})))["message"]
    assert told.startswith("The arguments of the tool 'echo' cannot be checked; its JSON Schema is unusable:")


def test_a_tool_that_cannot_run_says_why() -> None:
    assert error(one({"args": {"x": 1}}, Offer({}, broken="no key"))) == {
        "name": "ToolUnavailableError",
        "message": "The tool 'echo' cannot run: no key",
    }


def test_a_client_side_tool_is_left_to_the_caller_if_the_call_is_good() -> None:
    offer = Offer(ECHO.parameters, client_side=True)
    assert one({"args": {"x": 1}}, offer) == ClientSide(BEGUN)
    assert error(one({"args": {}}, offer))["message"].endswith("- x: is required")


@pytest.mark.parametrize(
    ("decision", "approved", "data"),
    [
        ({"approved": True}, True, None),
        ({"approved": True, "resumeData": [1]}, True, [1]),
        ({"resumeData": [1]}, False, [1]),
        ({"approved": None}, False, None),
        ({"approved": 1}, False, None),
        ({"approved": "yes"}, False, None),
    ],
)
def test_only_a_plain_yes_approves(decision: dict[str, Any], approved: bool, data: Any) -> None:
    assert one({"args": {"x": 1}}, decision=decision) == Ready(BEGUN, approved, data)


def test_resume_data_must_fit() -> None:
    offer = Offer(ECHO.parameters, resume_schema={"type": "object", "required": ["city"]})
    told = error(one({"args": {"x": 1}}, offer, {"resumeData": {}}))["message"]
    assert told == "The resume data do not fit the tool 'echo':\n- city: is required"
    assert isinstance(one({"args": {"x": 1}}, offer, {"resumeData": {"city": 1}}), Ready)


def test_provider_executed_calls_are_not_ours_and_done_ones_stay_done() -> None:
    calls: list[dict[str, Any]] = [
        {"toolCallId": "c0", "toolName": "search", "args": {}, "providerExecuted": True},
        {**BEGUN, "args": {"x": "wrong by now"}},
        {**BEGUN, "toolCallId": "c2"},
    ]
    done = {**BEGUN, "result": 1}
    planned = plan(calls, {"echo": ECHO}, decisions={"c1": {"approved": False}}, done=[done])
    assert planned == [Settled(done), Ready({**BEGUN, "toolCallId": "c2"})]
