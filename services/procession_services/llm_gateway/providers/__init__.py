"""How the gateway reaches models: `Provider` is the port, `LiteLLMProvider` its one adapter."""

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from procession_schemas.chunks import Chunk
from procession_services.llm_gateway.core.call import ModelCall


class Provider(Protocol):
    """What the gateway needs of a source of models."""

    def stream(self, call: ModelCall) -> AsyncGenerator[list[Chunk], None]:
        """Give the answer as it comes: a list is what one provider event became; the last chunk is `finish`.

        Chunks have `type` and `payload`; `runId` and `from` are the runtime's.

        Closing the generator, or cancelling who reads it, closes the provider's connection at once (D-21).

        Raises:
            ProviderError: before the first list or between two of them.
        """
        ...

    def knows(self, model: str) -> bool:
        """Whether `provider/name` names a provider that can be asked."""
        ...

    def cost(self, call: ModelCall, usage: Mapping[str, int | None]) -> float | None:
        """Return what a call cost in US dollars; None when the price or the usage is not known (D-24)."""
        ...

    async def aclose(self) -> None:
        """Close all connections that wait for another call; nothing may be streaming."""
        ...
