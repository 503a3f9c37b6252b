"""Fills a JSON schema with values that a user's text suggests: tool arguments and structured answers."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

Schema = Mapping[str, Any]

_AFTER_IN: Final = re.compile(r"\bin\s+(?=([^,.;:!?()\n]+))", re.IGNORECASE)
_NO_PLACE: Final = re.compile(
    r"an?|and|at|by|celsius|degrees|fahrenheit|for|general|its?|like|me|my|next|now|of|on|or|our|please|right"
    r"|that|the|there|this|to|today|tomorrow|tonight|with|your",
    re.IGNORECASE,
)
_FIRST_HALVES: Final = frozenset(
    {"buenos", "cape", "hong", "las", "los", "new", "rio", "saint", "san", "tel"}
)
_PLACE_NAMES: Final = frozenset({"city", "location", "place", "town"})
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_QUOTED: Final = re.compile(r"[\"“]([^\"”]+)[\"”]")
# A schema that refers to itself ends here.
_MAX_DEPTH: Final = 12


def place_in(text: str) -> str | None:
    """Return the place that a text names after "in": capitalised words, or a word or two in lower case."""
    for match in _AFTER_IN.finditer(text):
        words: list[str] = list(takewhile(_may_be_place, match[1].split()))
        capitalised: list[str] = list(takewhile(_is_capitalised, words))
        if capitalised:
            return " ".join(capitalised)
        if words and words[0].isalpha():
            return " ".join(words[: 2 if words[0] in _FIRST_HALVES else 1]).title()
    return None


def _may_be_place(word: str) -> bool:
    return _NO_PLACE.fullmatch(word) is None


def _is_capitalised(word: str) -> bool:
    return word[0].isupper()


@dataclass(frozen=True, slots=True)
class Filler:
    """Makes a value for a schema out of `text`; strings that the text does not tell become `fallback`."""

    root: Schema
    text: str
    fallback: str

    def fill(self) -> Any:
        """Return a value for the whole schema."""
        return self._value(self.root, "", 0)

    def _value(self, schema: Schema, name: str, depth: int) -> Any:
        schema = self._resolve(schema)
        if depth > _MAX_DEPTH:
            return None
        for keyword in ("const", "default"):
            if keyword in schema:
                return schema[keyword]
        if "enum" in schema:
            return self._choice(schema["enum"])
        match _type_of(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                items = schema.get("items") or {}
                return [self._value(items, name, depth + 1) for _ in range(schema.get("minItems", 0))]
            case "integer" | "number" as kind:
                return self._number(schema, kind)
            case "boolean":
                return False
            case "null":
                return None
            case _:
                return self._string(name)

    def _resolve(self, schema: Schema) -> Schema:
        for _ in range(_MAX_DEPTH):
            reference = schema.get("$ref", "")
            if reference.startswith("#/"):
                target: Any = self.root
                for step in reference[2:].split("/"):
                    target = target.get(step, {})
                schema = target
                continue
            options = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
            if not options:
                return schema
            schema = next((option for option in options if option.get("type") != "null"), options[0])
        return {}

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties: Mapping[str, Schema] = schema.get("properties") or {}
        names = schema.get("required") or list(properties)
        return {name: self._value(properties.get(name, {}), name, depth + 1) for name in names}

    def _choice(self, options: list[Any]) -> Any:
        lowered = self.text.lower()
        return next((item for item in options if str(item).lower() in lowered), options[0])

    def _number(self, schema: Schema, kind: str) -> float:
        found = _NUMBER.search(self.text)
        value = float(found[0]) if found else 0.0
        value = min(max(value, schema.get("minimum", -math.inf)), schema.get("maximum", math.inf))
        return int(value) if kind == "integer" or value == int(value) else value

    def _string(self, name: str) -> str:
        if name.lower() in _PLACE_NAMES and (place := place_in(self.text)):
            return place
        quoted = _QUOTED.search(self.text)
        return quoted[1] if quoted else self.fallback


def _type_of(schema: Schema) -> str:
    kind = schema.get("type") or ("object" if "properties" in schema else "string")
    return next((item for item in kind if item != "null"), "null") if isinstance(kind, list) else str(kind)
