"""Watches the calls that go to a provider: each attempt is a span, also those that are repeated."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from procession_schemas.chunks import Chunk
from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.providers import Provider
from procession_services.runtime import telemetry

__all__ = ["observed"]


def observed(provider: Provider) -> Provider:
    """The provider, watched where somebody observes."""
    return _Observed(provider) if telemetry.observer().enabled else provider


class _Observed:
    """Tells the observer of each call."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.knows, self.aclose = provider.knows, provider.aclose

    async def stream(self, call: ModelCall) -> AsyncGenerator[list[Chunk], None]:
        """The answer as the provider gives it."""
        watch = telemetry.observer().model(call)
        ended: BaseException | None = None
        try:
            async with aclosing(self._provider.stream(call)) as answer:
                async for chunks in answer:
                    watch.chunks(chunks)
                    yield chunks
        except BaseException as error:
            ended = error
            raise
        finally:
            watch.end(ended)

    def cost(self, call: ModelCall, usage: Mapping[str, int | None]) -> float | None:
        """What a call cost, told to the observer too."""
        dollars = self._provider.cost(call, usage)
        telemetry.observer().cost(call.model, dollars)
        return dollars
