"""What the memory service's question for vectors is answered, and where it may not be sent."""

from typing import Any

import orjson
import pytest

from procession_schemas.embed import EmbedReply, EmbedRequest
from procession_services.llm_gateway.embed import EmbeddingAnswers
from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider
from tests.unit.procession_services.llm_gateway.loopback import Answer, ModelServer

MODEL = "openai/text-embedding-3-small"
VECTORS = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [1.0]}],
    "usage": {"prompt_tokens": 1, "total_tokens": 1},
}


class Ledger:
    def add(self, *_booked):
        pass


async def nowhere(_subject, _body):
    pass


async def answered(base=None, model=MODEL, **options):
    provider, books = LiteLLMProvider(), Ledger()
    ledger: Any = books
    answers = EmbeddingAnswers(provider, ledger, nowhere, base, max_reply=10_000)
    asked = EmbedRequest(model=model, texts=["a"], options=options, timeout=10)
    try:
        told = await answers.answer("procession.v1.api.llm_gateway.t.embed", asked.to_json())
    finally:
        await provider.aclose()
    return EmbedReply.model_validate_json(told)


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-operator")
    monkeypatch.setenv("HUGGINGFACE_API_KEY", "sk-of-the-operator")


def server():
    return ModelServer(Answer([orjson.dumps(VECTORS)], content_type="application/json"))


@pytest.mark.parametrize("option", ["api_base", "base_url"])
async def test_options_cannot_say_where_the_key_goes(option):
    async with server() as stranger:
        reply = await answered(dimensions=8, **{option: stranger.base})
        assert stranger.requests == []
    assert reply.error is not None
    assert reply.error.startswith(f"embedderOptions may not set {option}; known: auto_truncate, dimensions")
    assert not reply.retryable


async def test_a_model_cannot_be_an_address():
    async with server() as stranger:
        reply = await answered(model=f"huggingface/{stranger.base}", input_type="embed")
        assert stranger.requests == []
    assert reply.error is not None
    assert "a URL belongs in apiBase" in reply.error


async def test_options_that_are_known_reach_the_provider():
    async with server() as provider:
        reply = await answered(provider.base, dimensions=8)
        [asked] = provider.requests
    assert (reply.error, len(reply.vectors), asked.body["dimensions"]) == (None, 1, 8)


async def test_of_a_request_that_cannot_be_read_the_fields_are_told_but_not_what_they_hold():
    nothing: Any = None
    answers = EmbeddingAnswers(nothing, nothing, nowhere, None, max_reply=10_000)
    body = b'{"model": ["secret"], "texts": "secret"}'
    reply = EmbedReply.model_validate_json(
        await answers.answer("procession.v1.api.llm_gateway.t.embed", body)
    )
    assert reply.error is not None
    assert reply.error.startswith("the request cannot be read: model: ")
    assert "texts: " in reply.error
    assert "secret" not in reply.error
