"""The two kinds of wire model: tolerant between services, strict towards people."""

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

JsonObject = dict[str, Any]


class WireModel(BaseModel):
    """A message between services: camelCase on the wire, unknown fields ignored (rolling upgrades)."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", hide_input_in_errors=True
    )

    def to_json(self) -> bytes:
        """Returns the wire bytes: camelCase keys, unset optional fields left out."""
        return self.__pydantic_serializer__.to_json(self, by_alias=True, exclude_none=True)


class StrictModel(BaseModel):
    """What a person writes (a request, an agent): unknown fields are errors that name the field.

    Keys are accepted in snake_case and in the contract's camelCase. Values are of the types that the JSON Schema names:
    no text for a number, no number for a boolean, and no NaN or infinity for a number.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", strict=True, allow_inf_nan=False
    )
