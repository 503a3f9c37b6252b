"""Embeddings of any provider that LiteLLM knows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.usage import possible
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
    more = {"api_base": api_base} if api_base else {}
    try:
        answer = await litellm.aembedding(
            model=model, input=list(texts), encoding_format="float", num_retries=0, **more, **options
        )
    except Exception as error:  # LiteLLM and the libraries below it raise whatever they like
        raise provider_error(error, call, begun=False) from error
    rows = sorted((_row(row) for row in answer.data), key=lambda row: row[0])
    tokens = possible(getattr(answer.usage, "prompt_tokens", None))
    cost = None if tokens is None else provider.cost(call, {"inputTokens": tokens, "outputTokens": 0})
    return Embeddings([vector for _, vector in rows], tokens, cost)


def _row(row: Any) -> tuple[int, list[float]]:
    told = row if isinstance(row, dict) else row.model_dump()
    return int(told["index"]), [float(value) for value in told["embedding"]]
