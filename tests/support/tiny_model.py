"""An embedding model of a few words in ONNX, in the files that all-MiniLM-L6-v2 has: the same code runs it.

The vector of a token is looked up in a table. Padding has a vector too, so whoever does not mask it gets another
result.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

__all__ = ["DIMENSION", "write_tiny_model"]

WORDS: Final = ("[PAD]", "[UNK]", "dog", "cat", "bread", "Rex", "barks", "a", "the", "is")
DIMENSION: Final = 8
_FLOAT: Final = 1
_INT64: Final = 7


def write_tiny_model(directory: Path) -> Path:
    """Writes `model.onnx` and `tokenizer.json`, and the other files that Chroma looks for."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "model.onnx").write_bytes(_model())
    for name in ("config.json", "special_tokens_map.json", "tokenizer_config.json", "vocab.txt"):
        (directory / name).write_text("{}")
    return directory


def _model() -> bytes:
    table = np.random.default_rng(3).normal(size=(len(WORDS), DIMENSION)).astype(np.float32)
    initial = b"".join(_varint(1, size) for size in table.shape) + _varint(2, _FLOAT)
    initial += _text(8, "table") + _bytes(9, table.tobytes())
    look_up = _text(1, "table") + _text(1, "input_ids") + _text(2, "last_hidden_state") + _text(4, "Gather")
    given = ("input_ids", "attention_mask", "token_type_ids")
    graph = _bytes(1, look_up) + _text(2, "tiny") + _bytes(5, initial)
    graph += b"".join(_bytes(11, _value(name, _INT64, ("texts", "tokens"))) for name in given)
    graph += _bytes(12, _value("last_hidden_state", _FLOAT, ("texts", "tokens", "numbers")))
    return _varint(1, 8) + _bytes(8, _varint(2, 13)) + _bytes(7, graph)


def _value(name: str, kind: int, dimensions: Sequence[str]) -> bytes:
    shape = b"".join(_bytes(1, _text(2, dimension)) for dimension in dimensions)
    return _text(1, name) + _bytes(2, _bytes(1, _varint(1, kind) + _bytes(2, shape)))


# --- protobuf, as ONNX writes it -------------------------------------------------------------------


def _varint(field: int, value: int) -> bytes:
    return _number(field << 3) + _number(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _number(field << 3 | 2) + _number(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _number(value: int) -> bytes:
    told = bytearray()
    while value > 127:
        told.append(value & 127 | 128)
        value >>= 7
    return bytes([*told, value])
