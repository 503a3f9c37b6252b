"""Deterministic embeddings: words and trigrams hashed into a unit vector, so similar texts lie close."""

import base64
import hashlib
import math
import re
import struct
from collections.abc import Iterator
from typing import Any, Final

from procession_services.demo_model.completions import dump
from procession_services.demo_model.conversation import Body, InvalidRequestError, tokens_in

DIMENSIONS: Final = 256
_MAX_DIMENSIONS: Final = 8192
_WORD: Final = re.compile(r"\w+")
_TRIGRAM_WEIGHT: Final = 0.3


def embed(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """Return the unit vector of a text; equal texts have equal vectors on every machine."""
    vector = [0.0] * dimensions
    for feature, weight in _features(text.lower()):
        number = int.from_bytes(hashlib.blake2b(feature.encode(errors="replace"), digest_size=8).digest())
        vector[(number >> 1) % dimensions] += weight if number & 1 else -weight
    length = math.sqrt(sum(value * value for value in vector))
    if not length:  # no word in it, or features that cancel out
        return [1.0] + [0.0] * (dimensions - 1)
    return [value / length for value in vector]


def embeddings(body: Body) -> bytes:
    """Render the answer to an embeddings request.

    Raises:
        InvalidRequestError: when the request is not one; the message says what is wrong.
    """
    texts = _inputs(body.get("input"))
    dimensions = body.get("dimensions") or DIMENSIONS
    if type(dimensions) is not int or not 0 < dimensions <= _MAX_DIMENSIONS:
        raise InvalidRequestError(f"dimensions: expected an integer from 1 to {_MAX_DIMENSIONS}")
    as_base64 = body.get("encoding_format") == "base64"
    data = []
    for index, text in enumerate(texts):
        vector = embed(text, dimensions)
        data.append(
            {"object": "embedding", "index": index, "embedding": _base64(vector) if as_base64 else vector}
        )
    tokens = sum(max(1, tokens_in(len(text))) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return dump({"object": "list", "model": body.get("model"), "data": data, "usage": usage})


def _features(text: str) -> Iterator[tuple[str, float]]:
    for word in _WORD.findall(text):
        yield word, 1.0
        padded = f" {word} "
        for start in range(len(padded) - 2):
            yield padded[start : start + 3], _TRIGRAM_WEIGHT


def _inputs(value: Any) -> list[str]:
    """Return the texts of `input`: a text, a list of texts, a list of tokens, or a list of such lists."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise InvalidRequestError("input: expected a string or a list of strings")
    if all(isinstance(item, str) for item in value):
        return value
    if all(isinstance(item, int) for item in value):
        return [" ".join(map(str, value))]
    if all(isinstance(item, list) for item in value):
        return [" ".join(map(str, item)) for item in value]
    raise InvalidRequestError("input: strings and tokens must not be mixed")


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
