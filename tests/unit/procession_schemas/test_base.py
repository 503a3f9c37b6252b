"""Structs on the wire: what is written is read again, also where pydantic's models are in them or around them."""

import copy
import json
from typing import Annotated, Any

import pytest
from msgspec import field
from pydantic import Field, TypeAdapter, ValidationError

from procession_schemas.base import JsonObject, StrictModel, UnfitError, WireModel, WireStruct, from_json


class Written(StrictModel):
    """Pydantic's, written by people."""

    say_it: str
    no: str | None = None


class Inner(WireStruct):
    """Written by people, and sent often."""

    FORM = StrictModel

    id: Annotated[str, Field(min_length=1, description="Which one.")]
    as_: Annotated[str | None, Field(alias="as", description="Its name.")] = field(name="as", default=None)
    some_options: JsonObject = field(default_factory=dict)


class Outer(WireStruct, tag_field="op", tag="outer"):
    """Between services."""

    count: int = 0
    inner: Inner | None = None
    many: dict[str, Inner] = field(default_factory=dict)
    written: Written | None = None
    required: float


class Around(WireModel):
    """Pydantic's, with structs in it."""

    outer: Outer | None = None
    inners: list[Inner] = Field(default_factory=list)


NAMED = Inner(id="a", as_="b", some_options={"x": [None, 1.5]})
FULL = Outer(
    count=2,
    inner=NAMED,
    many={"k": Inner(id="c")},
    written=Written(say_it="hello"),
    required=0.5,
)
SENT: dict[str, Any] = {
    "op": "outer",
    "count": 2,
    "inner": {"id": "a", "as": "b", "someOptions": {"x": [None, 1.5]}},
    "many": {"k": {"id": "c"}},
    "written": {"sayIt": "hello"},
    "required": 0.5,
}


def test_what_has_its_default_is_left_out_and_means_the_same():
    assert json.loads(FULL.to_json()) == FULL.to_dict() == SENT
    assert Outer.from_json(FULL.to_json()) == Outer.of(SENT) == FULL
    assert Outer(required=1.0).to_dict() == {"op": "outer", "required": 1.0}
    assert Outer.of({"required": 1}) == Outer(required=1.0)


def test_a_field_of_tomorrow_is_passed_over():
    assert Outer.of(SENT | {"fromTomorrow": 1}) == FULL


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"[]",
        b"{}",
        b'{"op": "other", "required": 1}',
        b'{"required": "purple"}',
        b'{"required": 1, "inner": {"id": {"said": "purple"}}}',
        b'{"required": 1, "written": {"sayIt": {"said": "purple"}}}',
        b'{"required": 1, "many": ' + b"[" * 100_000 + b"}",
        b'{"required": 1, "inner": {"id": "\xff"}}',
    ],
)
def test_what_does_not_fit_is_refused_and_not_quoted(wrong):
    with pytest.raises(UnfitError) as caught:
        Outer.from_json(wrong)
    assert "purple" not in str(caught.value)


def test_decoded_json_that_does_not_fit_is_refused():
    with pytest.raises(UnfitError, match=r"\$\.inner\.id"):
        Outer.of({"required": 1, "inner": {"id": 1}})


def test_what_is_no_json_is_not_written():
    with pytest.raises(TypeError, match="a value of type object is not JSON"):
        Outer(required=1.0, inner=Inner(id="a", some_options={"x": object()})).to_json()


def test_a_copy_shares_what_has_not_changed_and_a_deep_one_nothing():
    other = FULL.but(count=3)
    assert (other.count, FULL.count) == (3, 2)
    assert other.inner is FULL.inner
    deep = copy.deepcopy(FULL)
    assert deep == FULL
    assert deep.inner is not FULL.inner


def test_what_people_see_has_defaults_and_no_none():
    assert Inner(id="a").shown() == {"id": "a", "someOptions": {}}


def test_pydantic_reads_and_writes_structs_in_its_models():
    around = Around.model_validate(
        {"outer": SENT, "inners": [{"id": "d", "some_options": {"y": 1}}, FULL.inner]}
    )
    assert around == Around(outer=FULL, inners=[Inner(id="d", some_options={"y": 1}), NAMED])
    assert json.loads(around.to_json()) == {
        "outer": SENT,
        "inners": [{"id": "d", "someOptions": {"y": 1}}, SENT["inner"]],
    }


def test_what_a_person_wrote_is_checked_by_the_rules_for_people():
    assert Inner.checked({"id": "a", "some_options": {}}) == Inner(id="a")
    with pytest.raises(ValidationError) as caught:
        Around.model_validate({"inners": [{"id": "", "sme": 1}]})
    assert {error["loc"] for error in caught.value.errors()} == {("inners", 0, "id"), ("inners", 0, "sme")}


def test_what_a_person_made_is_checked_when_it_is_used():
    with pytest.raises(ValidationError) as caught:
        Around.model_validate({"inners": [NAMED, Inner(id="")]})
    assert [error["loc"] for error in caught.value.errors()] == [("inners", 1, "id")]


def test_the_schema_is_that_of_a_model_with_these_fields():
    schema = TypeAdapter(Inner).json_schema()
    assert schema["required"] == ["id"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["id"] == {
        "type": "string",
        "minLength": 1,
        "description": "Which one.",
        "title": "Id",
    }
    assert set(schema["properties"]) == {"id", "as", "someOptions"}


class Sent(WireModel):
    """Pydantic's, between services."""

    say_it: str


def said_by(model):
    return lambda body: model.model_validate_json(body).say_it


@pytest.mark.parametrize("read", [said_by(Sent), said_by(Written), lambda body: from_json(body)["sayIt"]])
def test_texts_that_are_read_are_not_kept(read):
    """From pydantic's cache, it would be the same object each time."""
    first, second = read('{"sayIt":"a short text"}'), read('{"sayIt":"a short text"}')
    assert first == second
    assert first is not second


def test_a_struct_in_what_a_client_reads_needs_pydantic_only_where_that_makes_it_fit(monkeypatch) -> None:
    unfit = {"op": "outer", "count": "3", "required": 1, "new": 1}
    assert Around.model_validate({"outer": unfit}).outer == Outer(count=3, required=1.0)
    assert Around.model_validate({"outer": {"required": 1.5}}).outer == Outer(required=1.5)
    with pytest.raises(ValidationError, match=r"outer\.required"):
        Around.model_validate({"outer": {"op": "outer", "count": 3}})

    monkeypatch.delattr(WireStruct, "_of_form")
    assert Around.model_validate_json(json.dumps({"outer": SENT})).outer == FULL
    assert Around.model_validate({"outer": SENT}).outer == FULL
