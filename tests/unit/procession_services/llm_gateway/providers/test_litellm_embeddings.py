"""Embeddings as the gateway reads them."""

from typing import Any

import orjson
import pytest

from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.providers.litellm_embeddings import Embeddings, embed
from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider
from tests.unit.procession_services.llm_gateway.loopback import Answer, ModelServer

MODEL = "openai/text-embedding-3-small"


@pytest.mark.parametrize(
    ("tokens", "expected"), [(1000, (1000, 0.00002)), (10**15, (None, None)), (-5, (None, None))]
)
async def test_usage_that_no_call_can_have_counts_as_none(
    direct: LiteLLMProvider, tokens: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    told = {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [1.0]}],
        "usage": usage,
    }
    async with ModelServer(Answer([orjson.dumps(told)], content_type="application/json")) as server:
        made = await embed(direct, MODEL, ["a"], {}, server.base)
    assert (made.vectors, (made.tokens, made.cost)) == ([[1.0]], expected)


async def made(provider: LiteLLMProvider, told: Any, model: str = MODEL) -> tuple[Embeddings, dict[str, Any]]:
    async with ModelServer(Answer([orjson.dumps(told)], content_type="application/json")) as server:
        found = await embed(provider, model, ["a", "b"], {"api_key": "k"}, server.base)
        return found, server.requests[0].body


def rows(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"object": "list", "model": "m", "data": [{"object": "embedding", **row} for row in rows]}


async def test_who_has_no_word_for_numbers_is_asked_without_it(direct: LiteLLMProvider) -> None:
    told = {"model": "m", "embeddings": [[1.0, 2.0], [3.0, 4.0]], "prompt_eval_count": 3}
    found, asked = await made(direct, told, "ollama/nomic-embed-text")
    assert (found.vectors, found.tokens) == ([[1.0, 2.0], [3.0, 4.0]], 3)
    assert "encoding_format" not in asked
    _, asked = await made(direct, rows({"index": 0, "embedding": [1]}, {"index": 1, "embedding": [2]}))
    assert asked["encoding_format"] == "float"


async def test_vectors_are_in_the_order_of_the_texts(direct: LiteLLMProvider) -> None:
    found, _ = await made(direct, rows({"index": 1, "embedding": [2]}, {"index": 0, "embedding": [1]}))
    assert found.vectors == [[1.0], [2.0]]
    found, _ = await made(direct, rows({"embedding": [1]}, {"index": None, "embedding": [2]}))
    assert found.vectors == [[1.0], [2.0]]


async def test_usage_that_nobody_told_is_none(direct: LiteLLMProvider) -> None:
    found, _ = await made(direct, rows({"index": 0, "embedding": [1]}, {"index": 1, "embedding": [2]}))
    assert (found.tokens, found.cost) == (None, None)


@pytest.mark.parametrize("vector", [None, "AACAPw==", ["1"], [None]])
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_a_vector_that_cannot_be_read_is_a_failure_of_the_provider(
    direct: LiteLLMProvider, vector: Any
) -> None:
    with pytest.raises(ProviderError, match="a vector that cannot be read"):
        await made(direct, rows({"index": 0, "embedding": vector}))
