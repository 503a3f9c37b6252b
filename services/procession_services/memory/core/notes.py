"""How working memory changes: whole texts, merged JSON, and entries that are added or replaced (R-WM-10..15)."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from procession_services.memory.core.templates import Template, compact

__all__ = ["LONGEST_NOTE", "InvalidUpdateError", "Update", "merge_update", "replace_update", "vnext_update"]

LONGEST_NOTE: Final = 262_144
"""Characters of a note, whoever writes it."""
_SPACE: Final = re.compile(r"\s+")
_APPEND: Final = "append-new-memory"
_IRRELEVANT: Final = "replace-irrelevant-memory"
_MISSING: Final = object()
_NULL: Final = {"type": "null"}
_DEEPEST: Final = 20
"""References that one leads to the next."""


class InvalidUpdateError(ValueError):
    """What a model sent cannot be stored; the message is for the model."""


@dataclass(frozen=True, slots=True)
class Update:
    """What a call does: the text to store (None: nothing changes), and what the model is told."""

    text: str | None
    told: dict[str, Any]


_DONE: Final[dict[str, Any]] = {"success": True}


def replace_update(given: Mapping[str, Any], stored: str | None, template: Template) -> Update:
    """The new text takes the place of the old one, unless it is the empty template (R-WM-12).

    Raises:
        InvalidUpdateError: `memory` is missing or no text.
    """
    memory = given.get("memory")
    if isinstance(memory, Mapping | list):
        memory = compact(memory)
    if not isinstance(memory, str):
        raise InvalidUpdateError("`memory` is missing: give the whole working memory as one text")
    if stored and _squeezed(memory) == _squeezed(template.text) != _squeezed(stored):
        return _refused("message", "this is the empty template; what is known was kept, nothing was changed")
    return Update(memory, _DONE)


def merge_update(given: Mapping[str, Any], stored: str | None, schema: Mapping[str, Any]) -> Update:
    """The new object is merged into the old one (R-WM-13).

    Raises:
        InvalidUpdateError: A payload is a text that is no JSON object.
    """
    payload: Any = given.get("memory", given or _MISSING)
    if payload is _MISSING or payload is None:
        return Update(None, _DONE)
    if isinstance(payload, str):
        try:
            payload = json.loads(payload)
        except ValueError as error:
            raise InvalidUpdateError(
                f"`memory` is a text that is not JSON ({error}); give an object"
            ) from error
    if not isinstance(payload, dict):
        raise InvalidUpdateError(f"`memory` is of type {type(payload).__name__}; give an object")
    merged = _merged(_object(stored), _without_optional_nulls(payload, schema, schema))
    return Update(compact(merged), _DONE)


def _object(stored: str | None) -> dict[str, Any]:
    try:
        found = json.loads(stored or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _merged(old: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(old)
    for key, value in new.items():
        if value is None:
            made.pop(key, None)
        elif isinstance(value, dict):
            below = made.get(key)
            made[key] = _merged(below if isinstance(below, dict) else {}, value)
        else:
            made[key] = value
    return made


def _without_optional_nulls(value: Any, schema: Any, root: Mapping[str, Any]) -> Any:
    """Leaves out nulls of fields that need not be there: models write them for what they do not know."""
    meant = _meant(schema, root)
    if not isinstance(value, dict) or meant is None:
        return value
    fields, needed = meant.get("properties") or {}, meant.get("required") or ()
    return {
        key: _without_optional_nulls(below, fields.get(key), root)
        for key, below in value.items()
        if below is not None or key not in fields or key in needed
    }


def _meant(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema behind a reference, or the only alternative to null."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping):
            return None
        others = [each for each in schema.get("anyOf") or schema.get("oneOf") or () if each != _NULL]
        if isinstance(schema.get("$ref"), str):
            schema = _at(schema["$ref"], root)
        elif len(others) == 1:
            schema = others[0]
        else:
            return schema
    return None


def _at(reference: str, root: Mapping[str, Any]) -> Any:
    """What a reference such as `#/$defs/address` points to; None where that is not in the schema."""
    registry = Registry[Any]().with_resource("", DRAFT202012.create_resource(root))
    try:
        return registry.resolver().lookup(reference).contents
    except Unresolvable:
        return None


def vnext_update(
    given: Mapping[str, Any], stored: str | None, template: Template, *, resource_scope: bool
) -> Update:
    """Adds an entry, or puts it in the place of a text (R-WM-15).

    Raises:
        InvalidUpdateError: `newMemory` is missing or no text.
    """
    entry, search = given.get("newMemory"), given.get("searchString") or None
    if not isinstance(entry, str):
        raise InvalidUpdateError("`newMemory` is missing: give the text to remember")
    why = given.get("updateReason") or _APPEND
    if why == _APPEND or (why == _IRRELEVANT and resource_scope):
        search = None
    if why != _APPEND and search is None:
        return _refused("reason", f"{why} needs the text to replace, in `searchString`; nothing was changed")
    if not stored:
        if _squeezed(entry) == _squeezed(template.text):
            return _refused(
                "reason", "this is the empty template; call again when there is something to note"
            )
        return _noted(entry, "the working memory was started", template)
    if search is not None and search in stored:
        return _noted(stored.replace(search, entry, 1), "the text was found and replaced", template)
    if entry in stored or _squeezed(entry) == _squeezed(template.text):
        return _refused("reason", "the working memory says that already; nothing was added")
    told = (
        "added at the end"
        if search is None
        else "the text to replace was not found, so it was added at the end"
    )
    return _noted(f"{stored}\n{entry}", told, template)


def _noted(text: str, reason: str, template: Template) -> Update:
    """Models sometimes send the template along; it is no note."""
    kept = text.replace(template.text, "") if template.text else text
    return Update(kept, {"success": True, "reason": reason})


def _refused(key: str, why: str) -> Update:
    return Update(None, {"success": False, key: why})


def _squeezed(text: str) -> str:
    return _SPACE.sub(" ", text).strip()
