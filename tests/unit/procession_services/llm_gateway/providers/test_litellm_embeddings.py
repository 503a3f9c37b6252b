"""Embeddings as the gateway reads them."""

from typing import Any

import orjson
import pytest

from procession_services.llm_gateway.providers.litellm_embeddings import embed
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
