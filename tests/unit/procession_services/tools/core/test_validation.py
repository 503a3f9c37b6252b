"""Every wrong field is named, in words that a model can act on."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.json_schema import UnusableSchemaError
from procession_services.tools.core.validation import wrong_fields

TRIP = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1},
        "days": {"type": "integer", "minimum": 1},
        "stops": {"type": "array", "items": {"$ref": "#/$defs/Stop"}},
        "budget": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {
        "Stop": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at", "for"]},
    },
}


def test_what_fits_has_no_wrong_fields() -> None:
    assert (
        wrong_fields(TRIP, {"city": "Paris", "days": 2, "stops": [{"at": "x", "for": 1}], "budget": None})
        == {}
    )


def test_every_wrong_field_is_named() -> None:
    value = {
        "days": 0,
        "stops": [{"at": "x", "for": 1}, {"at": 3}],
        "budget": "low",
        "colour": "red",
        "zip": 1,
    }
    assert wrong_fields(TRIP, value) == {
        "city": "is required",
        "days": "0 is less than the minimum of 1",
        "stops.1.at": "3 is not of type 'string'",
        "stops.1.for": "is required",
        "budget": "fits no alternative: 'low' is not of type 'number' or 'low' is not of type 'null'",
        "colour": "is not known; known: city, days, stops, budget",
        "zip": "is not known; known: city, days, stops, budget",
    }


def test_two_problems_of_one_field_are_both_told() -> None:
    schema = {"properties": {"code": {"minLength": 4, "pattern": "^[a-z]+$"}}}
    told = wrong_fields(schema, {"code": "A1"})["code"]
    assert "'A1' is too short" in told
    assert "does not match" in told


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_what_is_no_object_is_told_under_the_name_of_the_whole(value: Any) -> None:
    told = wrong_fields(TRIP, value, "arguments")
    assert told == {"arguments": f"{value!r} is not of type 'object'"}


def test_pattern_properties_are_known() -> None:
    schema = {"patternProperties": {"^x-": {}}, "additionalProperties": False}
    assert wrong_fields(schema, {"x-a": 1, "y": 2}) == {"y": "is not known; known: none"}


def test_long_values_and_many_errors_are_cut() -> None:
    told = wrong_fields({"properties": {"a": {"type": "integer"}}}, {"a": "x" * 100_000})["a"]
    assert len(told) < 400
    assert told.endswith("is not of type 'integer'")
    told_all = wrong_fields({"items": {"type": "string"}}, list(range(1000)))
    assert len(told_all) == 101
    assert told_all["..."] == "and 900 more"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin"},
        {"properties": {"a": {"pattern": "("}}},
        {"properties": {"a": {"$ref": "#/$defs/missing"}}},
        {"properties": {"a": {"$ref": "https://example.invalid/schema.json"}}},
        {"$ref": "#"},
    ],
)
def test_an_unusable_schema_is_told_apart_from_wrong_arguments(schema: dict[str, Any]) -> None:
    with pytest.raises(UnusableSchemaError):
        wrong_fields(schema, {"a": "x"})


@pytest.mark.filterwarnings("ignore:Automatically retrieving remote references:DeprecationWarning")
def test_nothing_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "any.json").write_text("{}")
    with pytest.raises(UnusableSchemaError, match=r"any\.json"):
        wrong_fields({"$ref": (tmp_path / "any.json").as_uri()}, {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_any_value_is_judged_without_an_error(value: Any) -> None:
    told = wrong_fields(TRIP, value)
    assert all(path and what for path, what in told.items())
    if not (isinstance(value, dict) and "city" in value):
        assert told
