"""What is wrong with semantic recall, as the memory service sees it."""

from procession_services.memory.embedders import Embedders, fallback_warning
from procession_services.memory.ports import VectorsUnavailableError
from procession_services.memory.recall import EmbeddingError
from procession_services.memory.stores.chroma import ChromaVectors
from procession_services.runtime.problems import Problem
from procession_services.runtime.settings import Settings

__all__ = ["vector_problems"]


async def vector_problems(vectors: ChromaVectors, embedders: Embedders, settings: Settings) -> list[Problem]:
    """Whether Chroma answers, and its indexes were made with the embedder that is configured."""
    where = "PROCESSION_CHROMA_URL" if settings.chroma_url else "PROCESSION_CHROMA_PATH"
    try:
        indexes = await vectors.indexes()
    except VectorsUnavailableError as error:
        return [Problem(where, "", f"{error}: is it running? Runs continue without semantic recall")]
    if not indexes:
        return []
    try:
        embedder = embedders(None, {}).id
    except EmbeddingError as error:
        return [Problem("PROCESSION_EMBEDDER", "", str(error))]
    found = [
        Problem(
            where, name, f"was made with {made} ({size} dimensions), but the embedder is now {embedder}: agents "
            "without an embedder of their own cannot use it; rebuild it with `procession memory reindex`", warning=True,
        )
        for name, made, size in indexes
        if made != embedder
    ]  # fmt: skip
    if (told := fallback_warning(settings.embedder, settings.onnx_path)) is not None:
        found.append(Problem("PROCESSION_EMBEDDER", "", told, warning=True))
    return found
