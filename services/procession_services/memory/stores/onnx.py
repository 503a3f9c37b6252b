"""The local model that Chroma brings, all-MiniLM-L6-v2 in ONNX: where its weights are, and its embedder."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from procession_services.memory.recall import EmbeddingError

__all__ = ["OnnxEmbedder", "weights_present"]

_WEIGHTS: Final = Path(".cache", "chroma", "onnx_models", "all-MiniLM-L6-v2", "onnx", "model.onnx")


def weights_present() -> bool:
    """Tells whether the weights are on this machine; nothing is loaded for that."""
    return (Path.home() / _WEIGHTS).exists()


class OnnxEmbedder:
    """Embeds in this process, in a thread; without the weights Chroma fetches them at the first call."""

    id = "onnx-all-MiniLM-L6-v2"

    def __init__(self) -> None:
        self._model: Any = None
        self._lock = asyncio.Lock()

    async def embed(self, texts: Sequence[str], *, tenant: str) -> list[list[float]]:  # noqa: ARG002 - the port's
        """Implements `Embedder.embed`; one call at a time, it uses all processors by itself."""
        try:
            async with self._lock:
                return await asyncio.to_thread(self._embed, list(texts))
        except Exception as error:  # onnxruntime, the download of the weights, a missing package
            raise EmbeddingError(f"the local model failed: {type(error).__name__}: {error}") from error

    def _embed(self, texts: list[str]) -> list[list[float]]:
        if self._model is None:
            from chromadb.utils.embedding_functions import ONNXMiniLM_L6_V2  # noqa: PLC0415 - seconds

            self._model = ONNXMiniLM_L6_V2()
        return [[float(value) for value in vector] for vector in self._model(texts)]
