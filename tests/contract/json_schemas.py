"""JSON Schemas of everything in the catalog, and of what people write or read: agents files, messages, chunks."""

from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from procession_schemas.agent import Agent
from procession_schemas.catalog import CATALOG, Row
from procession_schemas.chunk_types import AnyChunk
from procession_schemas.messages import Message

Schema = dict[str, Any]
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class _Plain(GenerateJsonSchema):
    """Without the titles that only repeat a field's name, and with JSON Schema's own words only."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def tagged_union_schema(self, schema: Any) -> Schema:
        """Without `discriminator`, which is OpenAPI's: AsyncAPI has another one, and readers refuse the document."""
        made = super().tagged_union_schema(schema)
        made.pop("discriminator", None)
        return made


def json_schemas() -> dict[str, Schema]:
    """A schema by name for every row that has a body, and `chunk`, `message` and `agents-file`."""
    named = {row.name: message_schema(row) for row in CATALOG if row.body is not None}
    return {
        **named,
        "chunk": _schema(AnyChunk, "A chunk of a run's stream."),
        "message": _schema(Message),
        "agents-file": _agents_file(),
    }


def message_schema(row: Row) -> Schema:
    """The schema of a message's body; one that the catalog leaves open is only known to be an object."""
    return _schema(row.body, row.meaning)


def _schema(body: Any, description: str | None = None) -> Schema:
    made = TypeAdapter(body).json_schema(schema_generator=_Plain)
    described = {"description": description} if description and "description" not in made else {}
    return {"$schema": DIALECT, **described, **made}


def _agents_file() -> Schema:
    """An agents file: agents by name, or a list; only where the key says the name it may be missing."""
    listed = TypeAdapter(Agent).json_schema(schema_generator=_Plain, ref_template="#/$defs/{model}")
    definitions = listed.pop("$defs")
    named = {**listed, "required": [key for key in listed["required"] if key != "name"]}
    return {
        "$schema": DIALECT,
        "title": "Agents file",
        "description": "Agents by name, or a list of agents. Every key may also be written in snake_case, which this "
        "schema does not show.",
        "type": "object",
        "required": ["agents"],
        "additionalProperties": False,
        "properties": {
            "agents": {
                "anyOf": [
                    {
                        "type": "object",
                        "minProperties": 1,
                        "additionalProperties": {"$ref": "#/$defs/NamedAgent"},
                    },
                    {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/Agent"}},
                ]
            }
        },
        "$defs": {**definitions, "Agent": listed, "NamedAgent": named},
    }
