"""The tools with which a model changes its notes: `updateWorkingMemory` and `setWorkingMemory` (builtins.md 15.2)."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Final

import orjson

from procession.tools import Tool, ToolContext
from procession_schemas import subjects
from procession_services.bus import RequestTimeoutError
from procession_services.memory.core.templates import NOTE_TOOL
from procession_services.memory.notes import NoteToolOptions
from procession_services.memory.scope import place

__all__ = ["SetWorkingMemory", "UpdateWorkingMemory", "WorkingMemoryError"]

OPERATION: Final = "update-note"
_SECONDS: Final = 10.0
_WHOLE: Final = "The whole working memory, in the formatting of its template; it replaces what was there."
_VNEXT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "newMemory": {
            "type": "string",
            "description": "What is to be remembered, in the template's formatting.",
        },
        "searchString": {
            "type": "string",
            "description": "The text in the working memory that `newMemory` takes the place of.",
        },
        "updateReason": {
            "enum": ["append-new-memory", "clarify-existing-memory", "replace-irrelevant-memory"],
            "description": "Why; without it, `newMemory` is added at the end.",
        },
    },
    "required": ["newMemory"],
}
_DEFINITIONS: Final = ("$defs", "definitions")
_WITHIN: Final = re.compile(r"#(/(?!\$defs/|definitions/)|$)")
"""A reference into the schema that is none to a definition."""
_STRICT: Final = frozenset({"required", "additionalProperties", "$id", "$schema"})
"""What a change need not keep, and what a schema says as a document of its own."""
Request = Callable[[str, bytes, float], Awaitable[bytes]]
"""Subject, body and seconds to the reply's body; raises RequestTimeoutError."""


class WorkingMemoryError(Exception):
    """The note was not changed; the message says why, and is for the model."""


class UpdateWorkingMemory(Tool):
    """Changes the note of the run's thread or resource; the memory service does it."""

    id: ClassVar[str] = NOTE_TOOL
    options_type = NoteToolOptions

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.description = "Stores what you know about the user and what else matters in later turns. " + (
            "Add or replace an entry." if self.options.vnext else "Send all of it, not only what is new."
        )
        self.parameters = _parameters(self.options)

    async def execute(self, args: Any, context: ToolContext) -> Any:
        """Asks the memory service; gives `{"success": true}`, or `false` and why nothing was changed.

        Raises:
            WorkingMemoryError: The change is not possible, or the service does not answer.
        """
        here = place(context.request_context)
        if here.options.read_only:
            raise WorkingMemoryError("the memory of this run is read-only")
        body = {
            "options": self.options.model_dump(by_alias=True, exclude_unset=True),
            "given": args,
            "resource": here.resource,
            "thread": here.thread,
        }
        reply = await self._ask(subjects.api("memory", context.tenant, OPERATION), orjson.dumps(body))
        if "error" in reply:
            raise WorkingMemoryError(str(reply["error"].get("message")))
        return reply["result"]

    async def _ask(self, subject: str, body: bytes) -> dict[str, Any]:  # noqa: ARG002 - for the connected class
        raise WorkingMemoryError(
            "working memory is changed only in a tools service, which is connected to the bus"
        )

    @classmethod
    def connected(cls, request: Request) -> "type[UpdateWorkingMemory]":
        """The class that asks through `request`; a tools service registers it in this one's place."""

        class Connected(cls):  # type: ignore[misc, valid-type]  # the class it was asked of
            async def _ask(self, subject: str, body: bytes) -> dict[str, Any]:
                try:
                    reply: dict[str, Any] = orjson.loads(await request(subject, body, _SECONDS))
                except RequestTimeoutError:
                    raise WorkingMemoryError(
                        f"the memory service gave no answer within {_SECONDS:g} s"
                    ) from None
                return reply

        return Connected


class SetWorkingMemory(UpdateWorkingMemory):
    """The same under the name that history keeps, for notes that are told as signals (R-WIRE-7)."""

    id: ClassVar[str] = "setWorkingMemory"


def _parameters(options: NoteToolOptions) -> dict[str, Any]:
    if options.schema_ is not None:
        memory = {
            **_placed(_relaxed(options.schema_)),
            "description": "What is new or has changed; the rest stays.",
        }
        shared = {key: memory.pop(key) for key in _DEFINITIONS if key in memory}
        return {"type": "object", "properties": {"memory": memory}, **shared}
    if options.vnext:
        return _VNEXT
    memory = {"type": "string", "description": _WHOLE}
    return {"type": "object", "properties": {"memory": memory}, "required": ["memory"]}


def _relaxed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a change: every field may be left out, and may be null (R-WM-13)."""
    made = {key: value for key, value in schema.items() if key not in _STRICT}
    if isinstance(schema.get("properties"), Mapping):
        made["properties"] = {name: _nullable(below) for name, below in schema["properties"].items()}
    for key in _DEFINITIONS:
        if isinstance(schema.get(key), Mapping):
            made[key] = {
                name: _relaxed(below) if isinstance(below, Mapping) else below
                for name, below in schema[key].items()
            }
    return made


def _placed(schema: Any) -> Any:
    """The same below `memory`: definitions stay those of the whole, other references begin where the schema is now."""
    if isinstance(schema, list):
        return [_placed(below) for below in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: _placed(below) for key, below in schema.items()}
    told = schema.get("$ref")
    if isinstance(told, str) and _WITHIN.match(told):
        made["$ref"] = f"#/properties/memory{told[1:]}"
    return made


def _nullable(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    made, kind = _relaxed(schema), schema.get("type")
    if isinstance(kind, str):
        made["type"] = [kind, "null"]
    elif isinstance(kind, list) and "null" not in kind:
        made["type"] = [*kind, "null"]
    elif kind is None and made:
        made = {"anyOf": [made, {"type": "null"}]}
    if "enum" in made and None not in made["enum"]:
        made["enum"] = [*made["enum"], None]
    return made
