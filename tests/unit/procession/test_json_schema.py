"""Schemas of others can neither fetch anything nor hold a process up."""

import json
from time import monotonic, sleep, thread_time
from typing import Any

import pytest

from procession.json_schema import UnusableSchemaError, misfits, unknown_names
from tests.support.cost import seconds

SLOW = "^(a|aa|a?)+$"
LONG = "a" * 60 + "!"
NESTED = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)} | {"d40": False}


def told(schema: Any, value: Any) -> list[str]:
    return [error.message for error in misfits(schema, value)]


def test_what_is_wrong_is_told() -> None:
    schema = {
        "properties": {"a": {"pattern": "^x"}},
        "patternProperties": {"^n_": {"type": "number"}},
        "additionalProperties": False,
    }
    assert told(schema, {"a": "xy", "n_1": 1}) == []
    assert told(schema, {"a": "y", "n_1": "1", "b": 1}) == [
        "'y' does not match '^x'", "'1' is not of type 'number'", "Additional properties are not allowed ('b')",
    ]  # fmt: skip
    assert told({"additionalProperties": {"type": "number"}}, {"b": "1"}) == ["'1' is not of type 'number'"]
    assert unknown_names(schema, {"a": 1, "n_1": 1, "b": 1}) == ["b"]
    assert told({"pattern": "x", "patternProperties": {"x": False}, "additionalProperties": False}, 1) == []


def test_a_schema_of_an_older_draft_is_read_as_such() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"pattern": "^x"}]}
    assert told(schema, ["y"]) == ["'y' does not match '^x'"]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": SLOW}, LONG),
        ({"patternProperties": {SLOW: True}}, {LONG: 1}),
        ({"patternProperties": {SLOW: True}, "additionalProperties": False}, {LONG: 1}),
        ({"additionalProperties": False, "patternProperties": {SLOW: True}}, {LONG: 1}),
        ({"propertyNames": {"pattern": SLOW}}, {LONG: 1}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "pattern": SLOW}, LONG),
        ({"$defs": NESTED, "$ref": "#/$defs/d0"}, 1),
    ],
    ids=[
        "pattern",
        "names",
        "names, then others",
        "others, then names",
        "propertyNames",
        "draft 7",
        "nested",
    ],
)
def test_a_check_that_takes_long_is_given_up(schema: dict[str, Any], value: Any) -> None:
    begun = monotonic()
    with pytest.raises(UnusableSchemaError, match="takes more than"):
        misfits(schema, value)
    assert monotonic() - begun < 5


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:1/any.json"},
        {"$ref": "file:///etc/hostname"},
        {"$ref": "#/$defs/none"},
        {"$ref": "#"},
        {"pattern": "("},
        {"type": "nothing"},
        {"pattern": "(?:a{1000}){1000}"},
        {"pattern": "[ab]" * 2_501},
        {"unevaluatedProperties": False, "patternProperties": {SLOW: True}},
    ],
    ids=["http", "file", "dead", "endless", "pattern", "type", "repeated", "long", "unevaluated"],
)
def test_a_schema_that_cannot_be_used_is_told(schema: dict[str, Any]) -> None:
    with pytest.raises(UnusableSchemaError, match=r"^\w+: "):
        misfits(schema, {"a": "a"} if "type" in schema or "patternProperties" in schema else "a")


class Late(dict[str, Any]):
    """An object whose reader is kept waiting, as for a CPU on a busy machine."""

    def items(self) -> Any:
        sleep(0.3)
        return super().items()


def test_a_check_may_wait_for_a_cpu() -> None:
    assert told({"patternProperties": {"a": {"type": "string"}}}, Late(a=1)) == ["1 is not of type 'string'"]


class Interrupted(dict[str, Any]):
    """An object whose first reader loses his time, as to a garbage collection."""

    seen = False

    def items(self) -> Any:
        until = thread_time() + (0 if self.seen else 0.3)
        self.seen = True
        while thread_time() < until:
            pass
        return super().items()


def test_a_check_may_lose_its_time_once() -> None:
    schema = {"patternProperties": {"a": {"type": "string"}}}
    assert told(schema, Interrupted(a=1)) == ["1 is not of type 'string'"]


def test_a_long_schema_takes_no_longer_than_its_check() -> None:
    schema = {"properties": {f"p{n}": {"type": "string", "pattern": "^x"} for n in range(2_000)}}
    assert told(schema, {"p0": 1}) == ["1 is not of type 'string'"]
    plain = seconds(lambda: json.loads(json.dumps(schema)))
    assert seconds(lambda: misfits(schema, {"p0": 1})) < 8 * plain


@pytest.mark.parametrize("wrong", [{"type": "strin"}, {"pattern": "("}, {"minLength": "x"}])
def test_what_is_wrong_in_a_long_schema_is_told_where_it_is_asked(wrong: dict[str, Any]) -> None:
    schema = {"properties": {f"p{n}": {"type": "string"} for n in range(2_000)} | {"q": wrong}}
    with pytest.raises(UnusableSchemaError):
        misfits(schema, {"q": "x"})


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([1, 1.0], False),
        ([1, True], True),
        ([0, False, "0", None, [], {}], True),
        ([[1], [True]], True),
        ([None, None], False),
        ([{"a": 1, "b": [True]}, {"b": [True], "a": 1.0}], False),
        ([{"a": 1}, {"a": 2}], True),
    ],
)
def test_items_are_unique_by_their_value(items: list[Any], unique: bool) -> None:
    assert told({"uniqueItems": True}, items) == ([] if unique else [f"{items!r} has non-unique elements"])
    assert told({"uniqueItems": False}, items) == []


def test_many_objects_do_not_hold_a_process_up() -> None:
    began = thread_time()
    assert told({"uniqueItems": True}, [{"a": n} for n in range(10_000)]) == []
    assert thread_time() - began < 1


@pytest.mark.parametrize("keyword", ["unevaluatedItems", "unevaluatedProperties"])
def test_what_is_unevaluated_is_looked_for_among_few(keyword: str) -> None:
    many: Any = [0] * 10_000 if keyword == "unevaluatedItems" else {str(n): 0 for n in range(10_000)}
    part: dict[str, Any] = {"prefixItems": [{}] * 10_000, "properties": {key: {} for key in many}}
    began = thread_time()
    with pytest.raises(UnusableSchemaError, match="are not supported for values with more than 1,000 items"):
        misfits({"allOf": [part], keyword: False}, many)
    assert thread_time() - began < 1
    assert told({keyword: False}, type(many)()) == []
