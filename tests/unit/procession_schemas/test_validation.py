"""What somebody is told whose request does not fit."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from procession_schemas.run import RunRequest
from procession_schemas.validation import RefusedError, explained, in_words, misfit, wrong_fields
from tests.support.cost import seconds


class Part(BaseModel):
    type: str
    text: str


class Request(BaseModel):
    input: str | list[str | Part]
    steps: int = 1


def refused(body: Any) -> ValidationError:
    read = Request.model_validate_json if isinstance(body, bytes) else Request.model_validate
    with pytest.raises(ValidationError) as caught:
        read(body)
    return caught.value


def test_what_is_no_json_says_so() -> None:
    told = misfit(refused(b"{"))
    assert (told.code, told.field) == ("INVALID_JSON", None)


@pytest.mark.parametrize("text", [rb"hi \ud83d", rb"\ud83d there", rb"\ude00", rb"\ud83d\u0041"])
def test_half_a_character_is_called_so(text: bytes) -> None:
    told = misfit(refused(b'{"input": "%s"}' % text))
    assert told.code == "INVALID_JSON"
    assert told.message.endswith("; a text was cut in the middle of a character (a lone surrogate)")


def test_every_wrong_field_is_told_and_the_first_is_the_field() -> None:
    told = misfit(refused({"steps": "x"}))
    assert (told.code, told.field) == ("INVALID_REQUEST", "input")
    assert told.message.startswith("input: Field required; steps: ")


def test_of_very_much_that_is_wrong_some_is_told() -> None:
    body = {"input": [{"type": 1, "text": 1}] * 50_000}
    told = misfit(refused(body), body=body)
    assert told.field == "input.0.type"
    assert told.message.count("Input should be") == 20
    assert told.message.endswith("; and more")


def test_a_request_with_very_much_that_is_wrong_is_judged_in_linear_time() -> None:
    def judged(size: int) -> float:
        error = refused({"input": [{"type": 1, "text": 1}] * size})
        return seconds(lambda: misfit(error))

    assert judged(16_000) < 12 * judged(4_000)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (
            {"input": "Hi", "temperature": 3},
            "temperature: {}; this belongs in `modelSettings`, as `temperature`",
        ),
        (
            {"input": "Hi", "agent": {"name": "a", "max_tokens": 3}},
            "agent.max_tokens: {}; this belongs in `modelSettings`, as `maxOutputTokens`",
        ),
        (
            {"input": "Hi", "agent": {"name": "a", "instruction": "x"}},
            "agent.instruction: {}; did you mean 'instructions'?",
        ),
        ({"input": "Hi", "memory": {"thread": "t", "resource": "r", "seed": 1}}, "memory.seed: {}"),
        (
            {"input": "Hi", "memory": {"thread": "t", "resource": "r", "last_message": 1}},
            "memory.last_message: {}; did you mean 'lastMessages'?",
        ),
        ({"input": "Hi", "temprature": 3}, "temprature: {}"),
        ({"input": "Hi", "max_step": 3}, "max_step: {}; did you mean 'maxSteps'?"),
        ({"input": "Hi", "thread": "t"}, "thread: {}; this belongs in `memory`"),
        ({"input": "Hi", "MaxSteps": 3}, "MaxSteps: {}; did you mean 'maxSteps'?"),
        ({"input": "Hi", "maxSteps": 2, "max_steps": 3}, "max_steps: {}; `maxSteps` is also given"),
        ({"input": "Hi", "thread_id": "t"}, "thread_id: {}; this belongs in `memory`, as `thread`"),
        ({"input": "Hi", "messages": []}, "messages: {}; it is `input` here"),
        (
            {"input": "Hi", "tenant": "t"},
            "tenant: {}; it is a part of the subject, and of `Procession(url, tenant=...)`",
        ),
    ],
)
def test_an_unknown_field_of_a_request_is_told_what_it_may_have_been_meant_for(
    body: dict[str, Any], hint: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        RunRequest.model_validate(body)
    assert misfit(caught.value, body=body).message == hint.format("Extra inputs are not permitted")


def test_a_run_id_with_other_characters_is_told_which_may_be_used() -> None:
    with pytest.raises(ValidationError) as caught:
        RunRequest.model_validate({"input": "Hi", "runId": "a b"})
    assert misfit(caught.value).message == "runId: should have only letters, digits, '_' and '-'"
    [told] = explained(caught.value).errors()
    assert told["msg"] == "should have only letters, digits, '_' and '-'"


def test_only_those_unknown_fields_have_a_hint_that_are_told() -> None:
    body = {"input": "Hi"} | {f"maxStep{number}": 1 for number in range(30)}
    with pytest.raises(ValidationError) as caught:
        RunRequest.model_validate(body)
    assert misfit(caught.value, body=body).message.count("did you mean") == 20
    assert sum("did you mean" in each["msg"] for each in explained(caught.value).errors()) == 20


def test_an_option_of_a_processor_is_no_setting_of_the_model() -> None:
    with pytest.raises(ValidationError) as caught:
        RunRequest.model_validate({"input": "Hi", "seed": 1})
    assert wrong_fields(caught.value) == {"seed": "Extra inputs are not permitted"}


def test_what_is_no_list_is_told_to_be_one_where_we_keep_a_tuple() -> None:
    class Words(BaseModel):
        words: tuple[str, ...]

    with pytest.raises(ValidationError) as caught:
        Words.model_validate({"words": "dumb"})
    assert wrong_fields(caught.value) == {"words": "Input should be a valid list"}


def test_an_error_that_is_explained_is_the_same_but_for_its_words() -> None:
    error = refused({"input": [{"type": "{x}", "text": 1}], "steps": "{x}"})
    told = explained(error)
    assert [each["loc"] for each in told.errors()] == [each["loc"] for each in error.errors()]
    assert [each["msg"] for each in told.errors()] == [each["msg"] for each in error.errors()]
    assert [each["type"] for each in told.errors()] == [each["type"] for each in error.errors()]


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        (
            {"output_processors": [{"id": "x", "option": 1}]},
            ("output_processors", 0, "option"),
            "Extra inputs",
        ),
        ({"outputProcessors": [3]}, ("outputProcessors", 0), "Input should be a valid dictionary"),
        ({"input": None}, ("input",), "Input should be a valid string or Input should be a valid dictionary"),
    ],
)
def test_what_fits_no_branch_of_a_union_is_told_once_where_its_author_has_written_it(
    fields: dict[str, Any], place: tuple[str | int, ...], words: str
) -> None:
    body = {"input": "Hi", **fields}
    with pytest.raises(ValidationError) as caught:
        RunRequest.model_validate(body)
    [told] = explained(caught.value, body).errors()
    assert told["loc"] == place
    assert told["msg"].startswith(words)


def test_long_names_of_others_are_cut() -> None:
    told = in_words([("p" * 100_000, "w" * 100_000)], "request")
    assert told == f"{'p' * 300}…: {'w' * 300}…"


def test_a_value_that_is_none_is_called_the_request() -> None:
    told = misfit(refused([]))
    assert told.field is None
    assert told.message.startswith("request: ")


def test_places_are_those_that_the_sender_has_written() -> None:
    body = {"input": ["a", {"type": "text"}]}
    assert misfit(refused(body), body=body).field == "input.1.text"
    assert misfit(refused(body), "request", body).field == "request.input.1.text"


def test_each_branch_of_a_union_is_told_where_none_came_farther() -> None:
    body = {"input": 5}
    told = misfit(refused(body), body=body)
    assert told.field == "input"
    assert told.message == "input: Input should be a valid string or Input should be a valid list"


def test_a_misfit_can_be_raised() -> None:
    told = RefusedError.because(refused({}), "body")
    assert (str(told), told.failure.field) == ("body.input: Field required", "body.input")


def test_fields_in_words() -> None:
    assert in_words(wrong_fields(refused({})).items(), "options") == "input: Field required"
    assert in_words({"": "wrong"}.items(), "options") == "options: wrong"
