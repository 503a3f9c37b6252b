"""all-MiniLM-L6-v2 in this process, with the weights that Chroma fetches or those of a directory.

Chroma's own embedder fills every text up to 256 tokens; this one fills a batch up to its longest text, for the same
vectors at a fraction of the cost.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from procession_services.memory.recall import EmbeddingError

__all__ = ["OnnxEmbedder", "missing_weights"]

_FILES: Final = ("model.onnx", "tokenizer.json")
_FETCHED: Final = Path(".cache", "chroma", "onnx_models", "all-MiniLM-L6-v2", "onnx")
_TOKENS: Final = 256
"""Of a text; the model was trained with no more."""


def missing_weights(directory: Path | None) -> list[Path]:
    """The files that are not there, in a directory or where Chroma would fetch them to; nothing is loaded."""
    place = directory or Path.home() / _FETCHED
    return [place / name for name in _FILES if not (place / name).is_file()]


class OnnxEmbedder:
    """Embeds in a thread. Without a directory, Chroma fetches weights that are missing at the first call."""

    id = "onnx-all-MiniLM-L6-v2"

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._model: _Model | None = None
        self._lock = asyncio.Lock()

    async def embed(self, texts: Sequence[str], *, tenant: str) -> list[list[float]]:  # noqa: ARG002 - the port's
        """Implements `Embedder.embed`; one call at a time, it uses all processors by itself."""
        try:
            async with self._lock:
                return await asyncio.to_thread(self._embed, list(texts))
        except EmbeddingError:
            raise
        except Exception as error:  # onnxruntime and tokenizers raise whatever they like
            raise EmbeddingError(f"the local model failed: {type(error).__name__}: {error}") from error

    def _embed(self, texts: list[str]) -> list[list[float]]:
        if self._model is None:
            if missing_weights(self._directory):
                self._fetch()
            self._model = _Model(self._directory or Path.home() / _FETCHED)
        return self._model(texts)

    def _fetch(self) -> None:
        first = missing_weights(self._directory)[0]
        if self._directory is not None:
            raise EmbeddingError(f"PROCESSION_ONNX_PATH has no {first.name}: {first} does not exist")
        from chromadb.utils.embedding_functions import ONNXMiniLM_L6_V2  # noqa: PLC0415 - seconds

        try:
            ONNXMiniLM_L6_V2()(["fetch the weights"])
        except Exception as error:
            raise EmbeddingError(
                f"the weights of all-MiniLM-L6-v2 are not in {first.parent} and cannot be fetched "
                f"({type(error).__name__}: {error}); "
                f"set PROCESSION_ONNX_PATH to a directory with {' and '.join(_FILES)}"
            ) from error


class _Model:
    """Mean of the vectors of a text's tokens, of length one."""

    def __init__(self, directory: Path) -> None:
        import onnxruntime  # noqa: PLC0415 - a second
        from tokenizers import Tokenizer  # noqa: PLC0415

        model, tokenizer = (directory / name for name in _FILES)
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.enable_truncation(_TOKENS)
        self._tokenizer.enable_padding()
        self._session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        self._inputs = {each.name for each in self._session.get_inputs()}

    def __call__(self, texts: list[str]) -> list[list[float]]:
        import numpy as np  # noqa: PLC0415

        read = self._tokenizer.encode_batch(texts)
        ids, mask = (np.array([getattr(each, name) for each in read]) for name in ("ids", "attention_mask"))
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        tokens = self._session.run(None, {name: given[name] for name in given if name in self._inputs})[0]
        vectors = (tokens * mask[:, :, None]).sum(1)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        made: list[list[float]] = vectors.tolist()
        return made
