"""JSON Schema validation that names every wrong field in words a model can act on (D-38)."""

from typing import Any, Final

from procession.json_schema import UnusableSchemaError, misfits, unknown_names
from procession_schemas.base import JsonObject

_LONGEST: Final = 300
_MOST: Final = 100


def wrong_fields(schema: JsonObject, value: Any, root: str = "arguments") -> dict[str, str]:
    """What is wrong with a value, by dotted path; empty when it fits. `root` names the value as a whole.

    Raises:
        UnusableSchemaError: No value can be checked against this schema; the message says why.
    """
    found: dict[str, str] = {}
    try:
        errors = sorted(misfits(schema, value), key=lambda e: str(e.json_path))
    except UnusableSchemaError as unusable:
        raise UnusableSchemaError(_short(str(unusable))) from unusable
    for error in errors:
        for path, what in _problems(error, root):
            found[path] = f"{found[path]}; {what}" if path in found else what
    if len(found) > _MOST:
        more = len(found) - _MOST
        found = dict(list(found.items())[:_MOST]) | {"...": f"and {more} more"}
    return found


def _problems(error: Any, root: str) -> list[tuple[str, str]]:
    """The path and problem of a jsonschema error; one each for properties that lack or are too many."""
    at = ".".join(map(str, error.absolute_path))
    inside = f"{at}." if at else ""
    if error.validator == "required":
        missing = (name for name in error.validator_value if error.message.startswith(repr(name)))
        return [(f"{inside}{name}" or '""', "is required") for name in missing]
    if error.validator == "additionalProperties" and error.validator_value is False:
        known = ", ".join(error.schema.get("properties", {})) or "none"
        return [
            (f"{inside}{name}" or '""', f"is not known; known: {known}")
            for name in unknown_names(error.schema, error.instance)
        ]
    if error.context:
        reasons = dict.fromkeys(_short(inner.message) for inner in error.context)
        return [(at or root, "fits no alternative: " + " or ".join(reasons))]
    return [(at or root, _short(error.message))]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"
