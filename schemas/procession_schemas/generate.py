"""One question to a model, asked by a service on behalf of a processor: request and reply, never stored.

Subject `procession.v1.api.llm_gateway.<tenant>.generate`. The asker gives up after its own timeout.
"""

from pydantic import Field

from procession_schemas.base import JsonObject, WireModel
from procession_schemas.model_settings import ModelSettings


class GenerateRequest(WireModel):
    """A prompt for a model."""

    model: str
    prompt: list[JsonObject]
    schema_: JsonObject | None = Field(
        default=None, alias="schema", description="JSON Schema of the answer; absent for free text."
    )
    json_prompt_injection: bool = False
    model_settings: ModelSettings = Field(default_factory=dict)
    provider_options: JsonObject = Field(default_factory=dict)
    timeout: float = Field(default=30, gt=0, description="Seconds that the gateway may take.")
    beats: str | None = Field(
        default=None,
        description="Subject on which the asker expects an empty message twice a second until the reply; if "
        "they stop, it asks another gateway as well.",
    )


class GenerateReply(WireModel):
    """The answer of the model, or why there is none."""

    text: str = ""
    finish_reason: str = "other"
    usage: dict[str, int | None] = Field(default_factory=dict)
    cost: float | None = Field(
        default=None, description="Cost in US dollars; absent if the price is unknown."
    )
    chunks: list[JsonObject] = Field(default_factory=list)
    error: str | None = None
