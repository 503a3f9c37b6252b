"""Templates of working memory, and what the model is told about it (R-WM-3..8)."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

__all__ = ["DEFAULT", "NOTE_TOOL", "Template", "compact", "empty_object", "instructions", "template_of"]

_BULLETS: Final = (
    "First Name", "Last Name", "Location", "Occupation", "Interests", "Goals", "Events", "Facts", "Projects",
)  # fmt: skip
NOTE_TOOL: Final = "updateWorkingMemory"
_DATA: Final = "working_memory_data"
_TAG: Final = re.compile(rf"<(?=[\s/]{{0,9}}{_DATA}\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Template:
    """A template: its format, and its text; a schema is its JSON."""

    format: Literal["markdown", "json"]
    text: str


DEFAULT: Final = Template("markdown", "\n# User Information\n" + "".join(f"- **{b}**: \n" for b in _BULLETS))
"""The template where none is configured (R-WM-3)."""


def compact(value: Any) -> str:
    """JSON as notes are stored."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def template_of(given: Mapping[str, Any] | None) -> Template:
    """The template of `{format, content}`; the default one for none."""
    if given is None:
        return DEFAULT
    content = given["content"]
    text = content if isinstance(content, str) else compact(content)
    return Template(given.get("format", "markdown"), text)


def empty_object(template: Template) -> dict[str, Any]:
    """The object that a JSON template describes, without anything in it yet (R-WM-6, D-16).

    A JSON Schema gives its properties, with their defaults. An object that is no schema counts as one where its
    leaves are schemas (`{"user": {"name": {"type": "string"}}}`), and otherwise as the empty object itself.
    """
    try:
        parsed = json.loads(template.text)
    except ValueError:
        return {}
    if not isinstance(parsed, dict):
        return {}
    if parsed.get("type") == "object" and isinstance(parsed.get("properties"), dict):
        return _of_properties(parsed["properties"])
    return {key: _of_example(value) for key, value in parsed.items()}


def _of_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _of_schema(schema) for key, schema in properties.items()}


def _of_schema(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return None
    if "default" in schema:
        return schema["default"]
    match schema.get("type"):
        case "object":
            below = schema.get("properties")
            return _of_properties(below) if isinstance(below, dict) else {}
        case "string":
            return ""
        case "array":
            return []
        case "number" | "integer":
            return 0
        case "boolean":
            return False
        case _:
            return None


def _of_example(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("type"), str):
        return _of_schema(value)
    return {key: _of_example(below) for key, below in value.items()}


def instructions(
    template: Template,
    note: str | None,
    *,
    read_only: bool = False,
    vnext: bool = False,
    merges: bool = False,
) -> str:
    """The system message about working memory: what it is, what is in it, and how to change it.

    `merges` tells whether the tool does, which it does with a schema only: a JSON template is replaced as a whole.
    """
    if read_only:
        return _read_only(note)
    return _vnext(template, note) if vnext else _whole(template, note, merges=merges)


def _data(note: str) -> str:
    """What is in it, which cannot close its tag."""
    return f"<{_DATA}>\n{_TAG.sub('&lt;', note)}\n</{_DATA}>"


def _read_only(note: str | None) -> str:
    return (
        "WORKING_MEMORY (read only)\n"
        "What is known from earlier, to be used for your answers. It cannot be changed in this conversation.\n\n"
        f"{_data(note or 'No working memory data available.')}\n\n"
        "Use it naturally and do not mention that it exists."
    )


def _name(template: Template) -> str:
    return "JSON" if template.format == "json" else "Markdown"


def _whole(template: Template, note: str | None, *, merges: bool) -> str:
    name = _name(template)
    change = "Fields that you leave out stay." if merges else "It replaces what was there."
    told = [
        "WORKING_MEMORY",
        f"Store what is worth knowing in later turns by calling {NOTE_TOOL}. What you do not store is forgotten.",
        "",
        "How to use it:",
        "1. Store what may be of use later in this or another conversation.",
        "2. When something changes, store the change at once, unasked.",
        f"3. Write {name}, as shown below.",
        "4. Act naturally: never mention the working memory, nor that you store something in it.",
    ]
    if template.format == "markdown":
        told += [
            f"5. {NOTE_TOOL} takes one field, `memory`, and it is always a string.",
            "",
            f"<working_memory_template>\n{template.text}\n</working_memory_template>",
        ]
    elif empty := empty_object(template):
        told += ["", "Empty, it is this object:", json.dumps(empty, ensure_ascii=False)]
    told += [
        "",
        _data(note or "null"),
        "",
        "Notes:",
        "- Store a fact as soon as it is told or changes.",
        "- When unsure whether something matters, store it.",
        "- Keep sections that are still empty.",
        f"- Send the entire content with every call, in the same formatting. {change}",
        f"- Call {NOTE_TOOL} in every reply to a message that tells you something of this kind.",
    ]
    return "\n".join(told)


def _vnext(template: Template, note: str | None) -> str:
    told = [
        "WORKING_MEMORY",
        f"Store what is worth knowing later by calling {NOTE_TOOL}. It lasts over many conversations.",
        "",
        "How to use it:",
        "1. Store what may be of use later, as soon as it is told or changes, unasked.",
        "2. That something does not matter in this conversation is no reason to remove it.",
        f"3. Write {_name(template)}, in the form of the template.",
        "4. Act naturally: never mention the working memory, nor that you store something in it.",
    ]
    if template == DEFAULT:
        told.append("5. When unsure whether something matters, store it.")
    else:
        told.append("5. Store only what the template has a field for, unless you are asked to store more.")
    told += [
        "",
        f"<working_memory_template>\n{template.text}\n</working_memory_template>",
        "",
        _data(note or "null"),
    ]
    return "\n".join(told)
