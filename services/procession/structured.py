"""Structured output: the object grows while its text streams, and is validated at the end (R-SO-2)."""

import json
import re
from typing import Any, Final

import orjson
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from procession.json_schema import UnusableSchemaError, dead_reference, misfits
from procession.json_values import NotJsonError, given
from procession_schemas.base import from_json
from procession_schemas.chunks import Chunk

_OPENING: Final = re.compile(r"\s*```[a-zA-Z]*\s*")
_CLOSING: Final = "```"
_UNSET = object()
_WORDY: Final = json.JSONDecoder(strict=False)
"""Allows line ends in strings."""
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_EACH: Final = 16 * 1024
"""Characters up to which each delta may make an object; of a longer text, each that adds a sixty-fourth."""
_STEPS: Final = 64
_ENDS: Final = frozenset({"text-end", "step-finish", "finish"})


class ObjectStream:
    """Makes `object` chunks from the text that goes by.

    Each holds the whole value, so that not every delta of a long text makes one; the last one is the whole.
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        self._size = self._read = 0
        self._last: Any = _UNSET

    def before(self, chunk: Chunk) -> list[Chunk]:
        """The chunks to send in front of this one: an `object` when the partial value changed."""
        if chunk["type"] != "text-delta":
            return self.rest() if chunk["type"] in _ENDS else []
        text = (chunk.get("payload") or {}).get("text") or ""
        self._text.append(text)
        self._size += len(text)
        if self._size > _EACH and (self._size - self._read) * _STEPS < self._size:
            return []
        return self._changed()

    def rest(self) -> list[Chunk]:
        """The chunks to send at the end of the text."""
        return self._changed() if self._read < self._size else []

    def _changed(self) -> list[Chunk]:
        self._read = self._size
        value = partial("".join(self._text))
        if value is _UNSET or value == self._last or not isinstance(value, dict | list):
            return []
        self._last = value
        return [{"type": "object", "object": value}]


def partial(text: str) -> Any:
    """The value that an unfinished JSON text already says, or a marker when it says nothing."""
    try:
        value = _begun(_strip(text))
        orjson.dumps(value)  # which a number of more than 64 bits prevents
    except (ValueError, TypeError):
        return _UNSET
    return value


def _begun(text: str) -> Any:
    """The value of an unfinished text; line ends in its strings may be as they are, as they may in a finished one."""
    try:
        return from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return from_json(_STRING.sub(_escaped, text), allow_partial="trailing-strings")


def _escaped(string: re.Match[str]) -> str:
    return string[0].replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _strip(text: str) -> str:
    """The text without a fence around it; a pattern for the closing one would look from each space to the last."""
    if opening := _OPENING.match(text):
        text = text[opening.end() :]
    inner = text.rstrip()
    return inner.removesuffix(_CLOSING).rstrip() if inner.endswith(_CLOSING) else text


def parse_object(text: str, schema: dict[str, Any]) -> tuple[Any, str | None]:
    """Parses and validates a finished answer.

    Returns:
        The object and None, or None and what is wrong with it.
    """
    try:
        value = from_json(_strip(text), allow_inf_nan=False)
    except ValueError as error:
        value = _only_object(text)
        if value is _UNSET:
            return None, f"the answer is not JSON: {error}"
    try:
        given(value, "answer")
    except NotJsonError as error:
        return None, f"the answer is not JSON: {error}"
    try:
        problems = {line for error in misfits(schema, value) for line in _told(error)}
    except UnusableSchemaError as error:
        return None, f"The schema of the answer is unusable: {error}"
    if problems:
        return None, "Structured output validation failed: " + "\n".join(sorted(problems))
    return value, None


def _only_object(text: str) -> Any:
    """The object in a text that says more beside it ("Here it is: {...}"), or whose strings have line ends.

    A marker where there is none, where it is cut off, and where there are several: a guardrail's model may have quoted
    one of the text that it judges (D-103).
    """
    start = text.find("{")
    if start < 0:
        return _UNSET
    try:
        value, end = _WORDY.raw_decode(text, start)
        return _UNSET if "{" in text[end:] else from_json(json.dumps(value), allow_inf_nan=False)
    except (ValueError, RecursionError):
        return _UNSET


def schema_problem(schema: dict[str, Any]) -> tuple[list[str], str] | None:
    """Where and why something is no JSON Schema, of the version that it names, or not whole; None where it is."""
    named = isinstance(schema.get("$schema"), str)
    kind = validator_for(schema, default=Draft202012Validator) if named else Draft202012Validator
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        return [str(step) for step in error.absolute_path], f"is not a valid JSON Schema: {error.message}"
    if reference := dead_reference(schema):
        return [], f"refers to {reference!r}, which it does not contain; other schemas are not fetched"
    return None


def _told(error: Any) -> list[str]:
    """What is wrong, a line for each wrong field."""
    path = [str(step) for step in error.absolute_path]
    if error.validator == "required":
        properties = error.schema.get("properties", {})
        missing = [name for name in error.validator_value if name not in error.instance]
        return [_line([*path, name], _type(properties.get(name)), "undefined") for name in missing]
    if error.validator == "type":
        return [_line(path, error.validator_value, _kind(error.instance))]
    return [f"- {_place(path)}: {error.message}"]


def _line(path: list[str], wanted: Any, got: str) -> str:
    wanted = " or ".join(wanted) if isinstance(wanted, list) else wanted or "a value"
    return f"- {_place(path)}: Invalid input: expected {wanted}, received {got}"


def _place(path: list[str]) -> str:
    return ".".join(path) or "root"


def _type(schema: Any) -> Any:
    """The type that a schema demands; a schema may also be True or say nothing about it."""
    return schema.get("type") if isinstance(schema, dict) else None


def _kind(value: Any) -> str:
    """The JSON type of a value."""
    names: list[tuple[type | tuple[type, ...], str]] = [
        (bool, "boolean"), ((int, float), "number"), (str, "string"), (list, "array"), (dict, "object"),
    ]  # fmt: skip
    return next((name for types, name in names if isinstance(value, types)), "null")
