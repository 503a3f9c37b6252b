import inspect

import pytest
from pydantic import ValidationError

from procession_schemas import agent, run, subjects
from procession_schemas.base import StrictModel
from procession_schemas.memory import RequestMemory
from procession_schemas.run import RunRequest
from procession_schemas.run_ids import valid_id
from procession_schemas.work import WorkCommand

BAD = ["", "a.b", "*", ">", "a b", "acme\n", "\u00e9", "a/b", "x" * 201]
CHECKED = {
    "run tenant": lambda token: subjects.run(token, "demo"),
    "run agent": lambda token: subjects.run("acme", token),
    "work tenant": lambda token: subjects.work("tools", token, "r1"),
    "work run": lambda token: subjects.work("tools", "acme", token),
    "control tenant": lambda token: subjects.control(token, "r1"),
    "control run": lambda token: subjects.control("acme", token),
    "event tenant": lambda token: subjects.event(token, "r1", "run.accepted"),
    "event run": lambda token: subjects.event("acme", token, "run.accepted"),
    "chunk tenant": lambda token: subjects.chunk(token, "r1"),
    "chunk run": lambda token: subjects.chunk("acme", token),
    "violation tenant": lambda token: subjects.violation(token, "guard"),
}
STRICT = [
    model
    for module in (agent, run)
    for _, model in inspect.getmembers(module, inspect.isclass)
    if issubclass(model, StrictModel) and model is not StrictModel
]


@pytest.mark.parametrize("token", BAD, ids=repr)
@pytest.mark.parametrize("make", CHECKED.values(), ids=CHECKED)
def test_what_cannot_be_a_token_is_refused(make, token):
    with pytest.raises(subjects.InvalidSubjectError):
        make(token)


def test_the_refusal_says_what_was_wrong():
    with pytest.raises(subjects.InvalidSubjectError, match=r"tenant 'a\.b' must be 1 to 200 letters"):
        subjects.run("a.b", "demo")


def test_a_run_id_may_be_as_long_as_that_of_a_request():
    longest = "r" * 128
    assert valid_id(longest) == RunRequest(input="x", run_id=longest).run_id == longest
    with pytest.raises(subjects.InvalidSubjectError, match=r"run id 'r+' must be 1 to 128 letters"):
        valid_id("r" * 129)
    with pytest.raises(ValidationError, match="at most 128 characters"):
        RunRequest(input="x", run_id="r" * 129)


def test_a_processor_id_becomes_one_token():
    assert subjects.violation("acme", "my.guard v2").rsplit(".", 1)[-1] == "my_guard_v2"


def test_a_subject_gives_its_tokens_back():
    assert subjects.parse(subjects.work("tools", "acme", "r1")) == ["work", "tools", "acme", "r1"]


@pytest.mark.parametrize("model", STRICT, ids=lambda model: model.__name__)
def test_a_misspelt_key_is_named(model):
    with pytest.raises(ValidationError) as raised:
        model.model_validate({"surprise": 1})
    assert ("surprise",) in {
        error["loc"] for error in raised.value.errors() if error["type"] == "extra_forbidden"
    }


def test_a_misspelt_key_inside_is_named_with_its_place():
    request = {"input": "Hi", "agent": {"name": "a", "memory": {"lastMesages": 3}}}
    with pytest.raises(ValidationError) as raised:
        RunRequest.model_validate(request)
    assert [error["loc"] for error in raised.value.errors()] == [("agent", "memory", "lastMesages")]


@pytest.mark.parametrize("spelling", ["maxSteps", "max_steps"])
def test_people_may_write_either_spelling(spelling):
    assert RunRequest.model_validate({"input": "Hi", spelling: 3}).max_steps == 3


@pytest.mark.parametrize("count", [-1, True, 1.5])
def test_how_many_messages_are_recalled_is_a_count_or_false(count):
    with pytest.raises(ValidationError):
        RequestMemory(thread="t", resource="r", last_messages=count)


def test_commands_of_two_tenants_are_two_commands_though_their_runs_share_an_id():
    facts = {
        "run": "r1",
        "agent": "a",
        "seq": 1,
        "service": "tools",
        "version": 0,
        "outSeq": 0,
        "messageId": "m",
    }
    ids = {WorkCommand.of({**facts, "tenant": tenant, "ops": []}).id for tenant in ("acme", "globex")}
    assert len(ids) == 2
