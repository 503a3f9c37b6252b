"""Embeddings of any provider that LiteLLM knows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.usage import possible
from procession_services.llm_gateway.providers.event_errors import EventError
from procession_services.llm_gateway.providers.litellm_errors import provider_error
from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider, _litellm

__all__ = ["Embeddings", "embed"]


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Vectors in the order of the texts, and what they took."""

    vectors: list[list[float]]
    tokens: int | None
    cost: float | None


async def embed(
    provider: LiteLLMProvider,
    model: str,
    texts: Sequence[str],
    options: Mapping[str, Any],
    api_base: str | None,
) -> Embeddings:
    """Asks for the vector of each text.

    Raises:
        ProviderError: The call failed.
    """
    await provider.prepare()
    litellm = _litellm()
    call = ModelCall(model=model, prompt=[], api_base=api_base)
    asked = {"model": model, "input": list(texts), "num_retries": 0, **options}
    if api_base:
        asked["api_base"] = api_base
    try:
        answer = await _answer(litellm, asked)
        vectors = _vectors(answer.data)
    except Exception as error:  # LiteLLM and the libraries below it raise whatever they like
        raise provider_error(error, call, begun=False) from error
    # LiteLLM has 0 where nothing is told.
    tokens = possible(getattr(answer.usage, "prompt_tokens", None)) or None
    cost = None if tokens is None else provider.cost(call, {"inputTokens": tokens, "outputTokens": 0})
    return Embeddings(vectors, tokens, cost)


async def _answer(litellm: Any, asked: dict[str, Any]) -> Any:
    """Asks for numbers: OpenAI's library would ask for base64. Some providers have nothing else, and no word for it."""
    try:
        return await litellm.aembedding(**{"encoding_format": "float", **asked})
    except litellm.UnsupportedParamsError:
        return await litellm.aembedding(**asked)


def _vectors(data: Any) -> list[list[float]]:
    """The vectors in the order of the texts; a row without its place has the one where it is."""
    rows: list[tuple[int, list[float]]] = []
    for place, row in enumerate(data):
        told = row if isinstance(row, dict) else row.model_dump(warnings=False)
        index, vector = told.get("index"), told.get("embedding")
        if not isinstance(vector, list) or not all(isinstance(value, int | float) for value in vector):
            raise EventError("the provider sent a vector that cannot be read")
        rows.append((place if index is None else int(index), [float(value) for value in vector]))
    return [vector for _, vector in sorted(rows, key=lambda row: row[0])]
