"""Which embedder makes the vectors: a model behind the LLM gateway, a local one, or the lexical fallback."""

import base64
import logging
from array import array
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from procession_schemas.embed import EmbedReply, EmbedRequest
from procession_services.bus.alive import Body
from procession_services.memory.core import lexical
from procession_services.memory.recall import Embedder, EmbeddingError
from procession_services.memory.stores.onnx import OnnxEmbedder, missing_weights
from procession_services.runtime.words import number_of

__all__ = ["AUTO", "Embedders", "GatewayEmbedder", "LexicalEmbedder", "fallback_warning", "local_default"]

log = logging.getLogger(__name__)
AUTO: Final = "auto"
_SECONDS: Final = 30.0
Request = Callable[[tuple[str, str, str], float, Body], Awaitable[bytes]]
"""Service, tenant and operation, seconds and question to the answer; raises TimeoutError: `bus.alive.answer_within`."""


def local_default(weights: Path | None) -> str:
    """The local embedder of this machine: `onnx` where its weights are present, else `lexical`."""
    return "lexical" if missing_weights(weights) else "onnx"


def fallback_warning(embedder: str, weights: Path | None) -> str | None:
    """What a person must know who runs with these settings; None where it is a real embedder."""
    if embedder != AUTO or local_default(weights) != "lexical":
        return None
    return (
        "semantic recall uses the lexical fallback: it finds the same words, not the same meaning. Set "
        "PROCESSION_EMBEDDER to an embedding model such as openai/text-embedding-3-small, or to onnx, which fetches "
        "the weights of all-MiniLM-L6-v2 (80 MB) once, or name a directory that has them in PROCESSION_ONNX_PATH; "
        "PROCESSION_EMBEDDER=lexical keeps the fallback without this warning"
    )


class LexicalEmbedder:
    """Words and their pieces, hashed; see `core/lexical.py`."""

    id = lexical.ID

    async def embed(self, texts: Sequence[str], *, tenant: str) -> list[list[float]]:  # noqa: ARG002 - the port's
        """Implements `Embedder.embed`."""
        return [lexical.embed(text) for text in texts]


class GatewayEmbedder:
    """Any embedding model of LiteLLM, through the LLM gateway."""

    def __init__(self, model: str, options: dict[str, Any], request: Request) -> None:
        self.id = model
        self._options, self._request = options, request

    async def embed(self, texts: Sequence[str], *, tenant: str) -> list[list[float]]:
        """Implements `Embedder.embed`."""

        def body(seconds: float, beats: str | None) -> bytes:
            return EmbedRequest(
                model=self.id, texts=list(texts), options=self._options, timeout=seconds, beats=beats
            ).to_json()

        try:
            answer = await self._request(("llm_gateway", tenant, "embed"), _SECONDS, body)
            reply = EmbedReply.model_validate_json(answer)
        except TimeoutError:
            raise EmbeddingError(
                f"{self.id} gave no answer within {_SECONDS:g} s; is llm_gateway up?", retryable=True
            ) from None
        except ValidationError as error:
            raise EmbeddingError(
                "the llm_gateway's reply cannot be read; does it run another version?"
            ) from error
        if reply.error is not None:
            raise EmbeddingError(reply.error, retryable=reply.retryable)
        if len(reply.vectors) != len(texts):
            given = number_of(len(reply.vectors), "vector")
            raise EmbeddingError(f"{self.id} gave {given} for {number_of(len(texts), 'text')}")
        return [list(array("f", base64.b64decode(vector))) for vector in reply.vectors]


class Embedders:
    """The embedders of a process, local ones made once; `weights` has those of `onnx`, where they are not fetched."""

    def __init__(self, default: str, request: Request, weights: Path | None = None) -> None:
        self._default, self._request, self._weights = default, request, weights
        self._made: dict[str, Embedder] = {}
        self._told = False

    def __call__(self, name: str | None, options: dict[str, Any]) -> Embedder:
        """The embedder of a name; None is the configured one.

        Raises:
            EmbeddingError: There is none of that name.
        """
        wanted = name or self._default
        if wanted == AUTO:
            self._tell()
            wanted = local_default(self._weights)
        if wanted in ("lexical", "onnx"):
            if wanted not in self._made:
                self._made[wanted] = LexicalEmbedder() if wanted == "lexical" else OnnxEmbedder(self._weights)
            return self._made[wanted]
        if "/" not in wanted:
            known = "onnx, lexical, or provider/model as in openai/text-embedding-3-small"
            raise EmbeddingError(f"unknown embedder {wanted!r}; write {known}")
        return GatewayEmbedder(wanted, options, self._request)

    def _tell(self) -> None:
        told = None if self._told else fallback_warning(AUTO, self._weights)
        self._told = True
        if told is not None:
            log.warning(told)
