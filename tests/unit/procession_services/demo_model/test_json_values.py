from typing import Any

import jsonschema
import pytest

from procession_services.demo_model.json_values import Filler

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "label": {"type": "string"},
                "next": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]},
            },
        },
        "leaf": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
    "$ref": "#/$defs/node",
}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, 'say "this" now', "this"),
        ({"type": "string"}, "nothing quoted", "fallback"),
        ({"type": "integer"}, "about 3.7 of it", 3),
        ({"type": "number", "maximum": 2}, "3.5", 2),
        ({"type": "integer", "minimum": 1}, "none", 1),
        ({"type": "boolean"}, "true", False),
        ({"type": ["null", "boolean"]}, "", False),
        ({"type": "null"}, "", None),
        ({"enum": ["Celsius", "Fahrenheit"]}, "in fahrenheit", "Fahrenheit"),
        ({"enum": ["a", "b"]}, "neither", "a"),
        ({"const": 7}, "", 7),
        ({"type": "string", "default": "d"}, "", "d"),
        ({"type": "array", "minItems": 2, "items": {"type": "integer"}}, "5", [5, 5]),
        ({"type": "object"}, "", {}),
        (
            {
                "properties": {"location": {"type": "string"}, "x": {"type": "string"}},
                "required": ["location"],
            },
            "in Bern",
            {"location": "Bern"},
        ),
        (TREE, "4", {"label": "fallback", "next": {"n": 4}}),
    ],
)
def test_a_schema_is_filled_from_the_text(schema: dict[str, Any], text: str, value: Any) -> None:
    filled = Filler(schema, text, fallback="fallback").fill()
    assert filled == value
    jsonschema.validate(filled, schema)


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"type": "object", "properties": {"again": {"$ref": "#"}}}
    assert "again" in Filler(schema, "", fallback="").fill()
    assert Filler({"$ref": "#"}, "", fallback="f").fill() == "f"
