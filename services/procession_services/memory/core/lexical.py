"""Embeddings without a model: words and their pieces hashed into a vector.

Texts with the same words, or words with the same stem, lie close; synonyms do not. It is the fallback where no model
is at hand, and no more than that.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

__all__ = ["DIMENSION", "ID", "embed"]

DIMENSION: Final = 512
ID: Final = "lexical-512"
_WORD: Final = re.compile(r"\w+")
_COMMON_WORDS: Final = """
a about again also am an and any are as at be been but by can could did do does for from had has
have he her him his how i if in into is it its just me my no not of on or our she so some than that
the their them then there they this to too us was we were what when where which who whom whose why
will with would you your yours
"""
_COMMON: Final = frozenset(_COMMON_WORDS.split())
_COMMON_WEIGHT: Final = 0.2
_PIECE_WEIGHT: Final = 1.0
_PIECES: Final = (3, 4)


def embed(text: str) -> list[float]:
    """The unit vector of a text; equal on every machine, and a constant for a text without words."""
    vector = [0.0] * DIMENSION
    for feature, weight in _weights(text.lower()).items():
        place, sign = _place(feature)
        vector[place] += sign * weight
    length = math.sqrt(sum(value * value for value in vector))
    if not length:
        return [1.0] + [0.0] * (DIMENSION - 1)
    return [value / length for value in vector]


def _weights(text: str) -> dict[str, float]:
    """Features by weight; a word that is repeated counts less each time, common words hardly count."""
    found: dict[str, float] = {}
    for word, number in Counter(_WORD.findall(text)).items():
        weight = 1 + math.log(number)
        if word in _COMMON:
            weight *= _COMMON_WEIGHT
        found[word] = found.get(word, 0.0) + weight
        pieces = list(_pieces(word))
        for piece in pieces:
            share = weight * _PIECE_WEIGHT / math.sqrt(len(pieces))
            found[piece] = found.get(piece, 0.0) + share
    return found


def _pieces(word: str) -> Iterator[str]:
    padded = f"<{word}>"
    for size in _PIECES:
        for start in range(len(padded) - size + 1):
            yield padded[start : start + size]


@lru_cache(maxsize=65_536)
def _place(feature: str) -> tuple[int, int]:
    number = int.from_bytes(hashlib.blake2b(feature.encode(errors="replace"), digest_size=8).digest())
    return (number >> 1) % DIMENSION, 1 if number & 1 else -1
