"""JSON Schema validation that names every wrong field in words a model can act on (D-38)."""

import json
import re
from functools import lru_cache
from typing import Any, Final

from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry

from procession_schemas.base import JsonObject

_LONGEST: Final = 300
_MOST: Final = 100


class UnusableSchemaError(Exception):
    """The schema itself is at fault: not JSON Schema, or it refers to something that is not in it."""


def wrong_fields(schema: JsonObject, value: Any, root: str = "arguments") -> dict[str, str]:
    """What is wrong with a value, by dotted path; empty when it fits. `root` names the value as a whole.

    Nothing is fetched: a schema may come with a request, so a reference to another document is an error.

    Raises:
        UnusableSchemaError: No value can be checked against this schema; the message says why.
    """
    found: dict[str, str] = {}
    try:
        for error in sorted(
            _validator(json.dumps(schema)).iter_errors(value), key=lambda e: str(e.json_path)
        ):
            for path, what in _problems(error, root):
                found[path] = f"{found[path]}; {what}" if path in found else what
    except Exception as error:  # a bad pattern, a dead reference, endless recursion: each raises its own
        raise UnusableSchemaError(f"{type(error).__name__}: {_short(str(error))}") from error
    if len(found) > _MOST:
        more = len(found) - _MOST
        found = dict(list(found.items())[:_MOST]) | {"...": f"and {more} more"}
    return found


@lru_cache(maxsize=1024)
def _validator(schema: str) -> Validator:
    loaded = json.loads(schema)
    kind = validator_for(loaded)
    kind.check_schema(loaded)
    validator: Validator = kind(loaded, registry=Registry())
    return validator


def _problems(error: Any, root: str) -> list[tuple[str, str]]:
    """The path and problem of a jsonschema error; one each for properties that lack or are too many."""
    at = ".".join(map(str, error.absolute_path))
    inside = f"{at}." if at else ""
    if error.validator == "required":
        missing = (name for name in error.validator_value if error.message.startswith(repr(name)))
        return [(f"{inside}{name}" or '""', "is required") for name in missing]
    if error.validator == "additionalProperties" and error.validator_value is False:
        known = ", ".join(error.schema.get("properties", {})) or "none"
        return [(f"{inside}{name}" or '""', f"is not known; known: {known}") for name in _extras(error)]
    if error.context:
        reasons = dict.fromkeys(_short(inner.message) for inner in error.context)
        return [(at or root, "fits no alternative: " + " or ".join(reasons))]
    return [(at or root, _short(error.message))]


def _extras(error: Any) -> list[str]:
    schema = error.schema
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    return [
        name for name in error.instance if name not in known and not any(re.search(p, name) for p in patterns)
    ]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"
