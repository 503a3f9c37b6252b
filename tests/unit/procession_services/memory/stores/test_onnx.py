"""The local model: with weights in the layout of the real ones, run by the real runtime."""

import socket
from pathlib import Path

import pytest

from procession_services.memory.embedders import Embedders, LexicalEmbedder, fallback_warning, local_default
from procession_services.memory.recall import EmbeddingError
from procession_services.memory.stores.onnx import OnnxEmbedder, missing_weights
from tests.support.tiny_model import DIMENSION, write_tiny_model

TEXTS = ["dog", "the dog is Rex", "bread", "a cat " * 300]
FETCHED = Path(".cache", "chroma", "onnx_models", "all-MiniLM-L6-v2", "onnx")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def weights(tmp_path):
    return write_tiny_model(tmp_path / "weights")


async def nobody(*_arguments):
    raise AssertionError("nobody is asked")


async def test_a_text_has_one_vector_of_length_one_whatever_is_in_its_batch(weights):
    embedder = OnnxEmbedder(weights)
    together = await embedder.embed(TEXTS, tenant="t")
    alone = [(await embedder.embed([text], tenant="t"))[0] for text in TEXTS]
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-6)
        assert sum(value * value for value in one) == pytest.approx(1, abs=1e-5)
    assert {len(vector) for vector in together} == {DIMENSION}


async def test_vectors_are_those_of_chromas_own_embedder(weights, home, monkeypatch):
    from chromadb.utils.embedding_functions import ONNXMiniLM_L6_V2  # noqa: PLC0415 - seconds

    monkeypatch.setattr(ONNXMiniLM_L6_V2, "DOWNLOAD_PATH", weights.parent)
    monkeypatch.setattr(ONNXMiniLM_L6_V2, "EXTRACTED_FOLDER_NAME", weights.name)
    theirs = ONNXMiniLM_L6_V2()(TEXTS)
    ours = await OnnxEmbedder(weights).embed(TEXTS, tenant="t")
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(list(other), abs=1e-5)


async def test_weights_that_chroma_has_fetched_are_found(home):
    assert local_default(None) == "lexical"
    write_tiny_model(home / FETCHED)
    assert (missing_weights(None), local_default(None), fallback_warning("auto", None)) == ([], "onnx", None)
    assert len((await OnnxEmbedder().embed(["dog"], tenant="t"))[0]) == DIMENSION


async def test_auto_is_the_local_model_where_a_directory_has_its_weights(weights, home, caplog):
    embedder = Embedders("auto", nobody, weights)(None, {})
    assert embedder.id == "onnx-all-MiniLM-L6-v2"
    assert len((await embedder.embed(["dog"], tenant="t"))[0]) == DIMENSION
    assert not caplog.records


def test_auto_without_weights_is_lexical_and_says_once_how_to_have_more(home, caplog):
    embedders = Embedders("auto", nobody, home / "empty")
    assert isinstance(embedders(None, {}), LexicalEmbedder)
    assert isinstance(embedders("auto", {}), LexicalEmbedder)
    assert embedders("lexical", {"user": "one"}) is embedders("lexical", {"user": "two"})
    assert embedders("onnx", {"user": "one"}) is embedders("onnx", {})
    (told,) = [record.message for record in caplog.records]
    assert "same words, not the same meaning" in told
    assert "PROCESSION_ONNX_PATH" in told
    assert fallback_warning("lexical", None) is None, "who wants it is not warned"


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
async def test_a_directory_without_weights_says_what_it_lacks(weights, name):
    (weights / name).unlink()
    with pytest.raises(EmbeddingError, match=f"PROCESSION_ONNX_PATH has no {name}: .*{name} does not exist"):
        await OnnxEmbedder(weights).embed(["dog"], tenant="t")


async def test_weights_that_cannot_be_read_are_told(weights):
    (weights / "model.onnx").write_bytes(b"no model")
    with pytest.raises(EmbeddingError, match="the local model failed"):
        await OnnxEmbedder(weights).embed(["dog"], tenant="t")


async def test_weights_that_cannot_be_fetched_say_how_to_bring_them(home, monkeypatch):
    from chromadb.utils.embedding_functions import ONNXMiniLM_L6_V2  # noqa: PLC0415 - seconds

    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody_listens.getsockname()[1]}/onnx.tar.gz"
        monkeypatch.setattr(ONNXMiniLM_L6_V2, "MODEL_DOWNLOAD_URL", url)
        monkeypatch.setattr(ONNXMiniLM_L6_V2, "DOWNLOAD_PATH", home / FETCHED.parent)
        with pytest.raises(EmbeddingError, match=r"cannot be fetched \(ConnectError.*PROCESSION_ONNX_PATH"):
            await OnnxEmbedder().embed(["dog"], tenant="t")
