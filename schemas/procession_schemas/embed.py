"""Embeddings, asked of the LLM gateway by the memory service: request and reply, never stored.

Subject `procession.v1.api.llm_gateway.<tenant>.embed`.
"""

from pydantic import Field

from procession_schemas.base import JsonObject, WireModel


class EmbedRequest(WireModel):
    """Texts to embed."""

    model: str
    texts: list[str] = Field(min_length=1, max_length=256)
    options: JsonObject = Field(
        default_factory=dict,
        description="Options that the gateway passes on to the provider if it knows them, such as `dimensions`.",
    )
    timeout: float = Field(default=30, gt=0, description="Seconds that the gateway may take.")
    beats: str | None = Field(default=None, description="As in `generate.request`.")


class EmbedReply(WireModel):
    """A vector for each text, in order, or why there are none."""

    vectors: list[str] = Field(
        default_factory=list,
        description="Little-endian 32-bit floats in base64, which takes a fifth of the space of JSON numbers.",
    )
    usage: dict[str, int | None] = Field(default_factory=dict)
    cost: float | None = Field(
        default=None, description="Cost in US dollars; absent if the price is unknown."
    )
    error: str | None = None
    retryable: bool = Field(default=False, description="Whether the same request may succeed later.")
