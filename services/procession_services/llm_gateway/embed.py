"""Answers the memory service's questions for embeddings."""

import asyncio
import base64
import sys
from array import array
from collections.abc import Awaitable, Callable
from typing import Final

from pydantic import ValidationError

from procession_schemas import subjects
from procession_schemas.embed import EmbedReply, EmbedRequest
from procession_schemas.validation import misfit
from procession_services.bus.alive import beating
from procession_services.llm_gateway.core.call import unknown_model
from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.providers.litellm_embeddings import embed
from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider
from procession_services.runtime import telemetry
from procession_services.runtime.gates import Gates
from procession_services.runtime.ledger import Ledger

__all__ = ["BUSY", "EmbeddingAnswers"]

OPTIONS: Final = frozenset(
    {
        "auto_truncate", "dimensions", "input_type", "keep_alive", "late_chunking", "normalize", "normalized",
        "options", "output_dimension", "task", "task_type", "title", "truncate", "truncation", "user",
    }
)  # fmt: skip
"""Options that are passed on. A request may bring its own, and LiteLLM would take any other one for an argument, such
as `api_base`: the operator's key would go there."""
CONCURRENCY = 16
"""Requests that one gateway makes at the same time for one tenant; further ones wait."""
BUSY = EmbedReply(
    error="the llm_gateway has too many open requests; ask again later", retryable=True
).to_json()


class EmbeddingAnswers:
    """Asks the provider; what it costs is booked for the tenant."""

    def __init__(
        self,
        provider: LiteLLMProvider,
        ledger: Ledger,
        publish: Callable[[str, bytes], Awaitable[None]],
        api_base: str | None,
        *,
        max_reply: int,
    ) -> None:
        self._provider, self._ledger, self._publish = provider, ledger, publish
        self._api_base, self._max_reply = api_base, max_reply
        self._gates = Gates(CONCURRENCY)

    async def answer(self, subject: str, body: bytes) -> bytes:
        """The reply to one request, errors included."""
        try:
            request = EmbedRequest.model_validate_json(body)
        except ValidationError as error:
            return EmbedReply(error=f"the request cannot be read: {misfit(error).message}").to_json()
        _, _, tenant, *_ = subjects.parse(subject)
        try:
            async with (
                beating(self._publish, request.beats),
                asyncio.timeout(request.timeout),
                self._gates.of(tenant),
            ):
                reply = await self._ask(request)
        except TimeoutError:
            late = f"{request.model} gave no answer within {request.timeout:g} s"
            return EmbedReply(error=late, retryable=True).to_json()
        except ProviderError as error:
            return EmbedReply(error=_told(request.model, error), retryable=error.retryable).to_json()
        if reply.error is None:
            self._ledger.add(tenant, {}, request.model, reply.usage, reply.cost)
        told = reply.to_json()
        if len(told) > self._max_reply:
            what = f"the vectors take {len(told)} bytes, but NATS accepts at most {self._max_reply}"
            return EmbedReply(error=what).to_json()
        return told

    async def _ask(self, request: EmbedRequest) -> EmbedReply:
        if not self._provider.knows(request.model):
            return EmbedReply(error=unknown_model(request.model, "embedding model"))
        if refused := sorted(request.options.keys() - OPTIONS):
            known = ", ".join(sorted(OPTIONS))
            return EmbedReply(error=f"embedderOptions may not set {', '.join(refused)}; known: {known}")
        with telemetry.observer().embedding(request.model) as done:
            made = await embed(self._provider, request.model, request.texts, request.options, self._api_base)
            done(made.tokens, made.cost)
        usage: dict[str, int | None] = {} if made.tokens is None else {"inputTokens": made.tokens}
        return EmbedReply(vectors=[_packed(vector) for vector in made.vectors], usage=usage, cost=made.cost)


def _told(model: str, error: ProviderError) -> str:
    """What went wrong, without the provider's words: they may quote the texts, and whoever asks logs it."""
    status = "" if error.status_code is None else f" (status {error.status_code})"
    return f"{model} failed: {error.name}{status}"


def _packed(vector: list[float]) -> str:
    packed = array("f", vector)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()
