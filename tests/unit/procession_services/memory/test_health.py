"""What the memory service says about semantic recall."""

import pytest

from procession_services.memory.core import lexical
from procession_services.memory.embedders import Embedders
from procession_services.memory.health import vector_problems
from procession_services.memory.ports import Index
from procession_services.memory.stores.chroma import ChromaVectors
from procession_services.runtime.settings import Settings


async def told(vectors, settings):
    async def nobody(_subject, _body, _seconds):
        raise AssertionError("no embedder is asked")

    try:
        found = await vector_problems(vectors, Embedders(settings.embedder, nobody), settings)
        return [(problem.where, problem.path, problem.message, problem.warning) for problem in found]
    finally:
        await vectors.aclose()


@pytest.fixture
def vectors(tmp_path):
    return ChromaVectors.in_directory(tmp_path)


async def test_indexes_of_the_configured_embedder_are_fine(vectors, tmp_path):
    await vectors.ensure(Index("acme", "main", lexical.ID, 512))
    assert await told(vectors, Settings(chroma_path=tmp_path, embedder="lexical")) == []


async def test_without_an_index_nothing_is_asked_of_the_embedder(vectors, tmp_path):
    assert await told(vectors, Settings(chroma_path=tmp_path, embedder="auto")) == []


async def test_an_index_of_another_embedder_is_a_warning_with_its_remedy(vectors, tmp_path):
    await vectors.ensure(Index("acme", "main", "openai/text-embedding-3-small", 1536))
    [(where, path, message, warning)] = await told(
        vectors, Settings(chroma_path=tmp_path, embedder="lexical")
    )
    assert (where, path, warning) == ("PROCESSION_CHROMA_PATH", "procession.acme.main.index", True)
    assert message.startswith("was made with openai/text-embedding-3-small (1536 dimensions)")
    assert "procession memory reindex" in message


async def test_an_embedder_that_is_none_is_told(vectors, tmp_path):
    await vectors.ensure(Index("acme", "main", "x", 3))
    [(where, _, message, _)] = await told(
        vectors, Settings(chroma_path=tmp_path).model_copy(update={"embedder": "magic"})
    )
    assert where == "PROCESSION_EMBEDDER"
    assert "unknown embedder 'magic'" in message


async def test_a_chroma_that_is_away_is_told():
    url = "http://127.0.0.1:9"
    [(where, _, message, warning)] = await told(ChromaVectors.over_http(url), Settings(chroma_url=url))
    assert (where, warning) == ("PROCESSION_CHROMA_URL", False)
    assert "Chroma does not answer" in message
    assert "is it running?" in message
