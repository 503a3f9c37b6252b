"""Model-level retries (R-MS-3, R-MS-4), against a real model server."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio

from procession_schemas.chunks import Chunk
from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider
from procession_services.llm_gateway.providers.retrying import stream_with_retries
from tests.unit.procession_services.llm_gateway.loopback import (
    Answer,
    ModelServer,
    event,
    failure,
    sse,
    stream,
)

GOOD = stream(event(content="hello"), event(finish="stop"))


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[LiteLLMProvider]:
    source = LiteLLMProvider()
    yield source
    await source.aclose()


class Attempt:
    """Runs one call with retries and notes what was waited and seen."""

    def __init__(self, provider: LiteLLMProvider, server: ModelServer, max_retries: int) -> None:
        call = ModelCall(
            model="openai/demo", prompt=[{"role": "user", "content": "hi"}], api_base=server.base, api_key="k"
        )
        self.waits: list[float] = []
        self.chunks: list[Chunk] = []
        self.stream = stream_with_retries(provider, call, max_retries, self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def read(self) -> str:
        async with aclosing(self.stream) as answer:
            async for chunks in answer:
                self.chunks += chunks
        return "".join(chunk["payload"]["text"] for chunk in self.chunks if chunk["type"] == "text-delta")


async def test_transient_failures_are_repeated_and_never_show(provider: LiteLLMProvider) -> None:
    async with ModelServer(failure(500, "a"), failure(503, "b"), GOOD) as server:
        attempt = Attempt(provider, server, 2)
        assert await attempt.read() == "hello"
        assert attempt.waits == [1, 2]
        assert len(server.requests) == 3
        assert [chunk["type"] for chunk in attempt.chunks].count("response-metadata") == 1


async def test_the_last_failure_surfaces_when_no_retry_is_left(provider: LiteLLMProvider) -> None:
    async with ModelServer(failure(500, "a"), failure(500, "b"), GOOD) as server:
        attempt = Attempt(provider, server, 1)
        with pytest.raises(ProviderError, match=r"^b$"):
            await attempt.read()
        assert attempt.waits == [1]
        assert len(server.requests) == 2


async def test_zero_retries_is_one_call(provider: LiteLLMProvider) -> None:
    async with ModelServer(failure(500, "a"), GOOD) as server:
        attempt = Attempt(provider, server, 0)
        with pytest.raises(ProviderError, match=r"^a$"):
            await attempt.read()
        assert len(server.requests) == 1


async def test_a_refusal_is_not_repeated(provider: LiteLLMProvider) -> None:
    async with ModelServer(failure(422, "no"), GOOD) as server:
        attempt = Attempt(provider, server, 5)
        with pytest.raises(ProviderError, match=r"^no$"):
            await attempt.read()
        assert attempt.waits == []
        assert len(server.requests) == 1


async def test_the_provider_says_when(provider: LiteLLMProvider) -> None:
    async with ModelServer(failure(429, "slow", {"Retry-After": "9"}), GOOD) as server:
        attempt = Attempt(provider, server, 1)
        assert await attempt.read() == "hello"
        assert attempt.waits == [9]


async def test_a_cut_connection_is_repeated(provider: LiteLLMProvider) -> None:
    async with ModelServer(Answer(end="drop"), GOOD) as server:
        assert await Attempt(provider, server, 1).read() == "hello"


async def test_nothing_is_repeated_once_a_chunk_was_given(provider: LiteLLMProvider) -> None:
    async with ModelServer(Answer(sse(event(content="he")), end="drop"), GOOD) as server:
        attempt = Attempt(provider, server, 3)
        with pytest.raises(ProviderError) as raised:
            await attempt.read()
        assert raised.value.kind == "network"
        assert attempt.waits == []
        assert len(server.requests) == 1


async def test_closing_reaches_the_provider(provider: LiteLLMProvider) -> None:
    async with ModelServer(Answer(sse(event(content="he")), end="hang")) as server:
        attempt = Attempt(provider, server, 3)
        await anext(attempt.stream)
        await attempt.stream.aclose()
        await server.left.wait()
