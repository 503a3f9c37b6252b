"""What somebody is told whose request does not fit."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from procession_schemas.validation import RefusedError, in_words, misfit, wrong_fields


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


def test_every_wrong_field_is_told_and_the_first_is_the_field() -> None:
    told = misfit(refused({"steps": "x"}))
    assert (told.code, told.field) == ("INVALID_REQUEST", "input")
    assert told.message.startswith("input: Field required; steps: ")


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
    assert (told.field, told.message.count("input: ")) == ("input", 2)


def test_a_misfit_can_be_raised() -> None:
    told = RefusedError.because(refused({}), "body")
    assert (str(told), told.failure.field) == ("body.input: Field required", "body.input")


def test_fields_in_words() -> None:
    assert in_words(wrong_fields(refused({})).items(), "options") == "input: Field required"
    assert in_words({"": "wrong"}.items(), "options") == "options: wrong"
