"""BM25 over short texts, as R-TS-3 has it: no stop words, no stemming."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

K1: Final = 1.5
B: Final = 0.75
SHORTEST: Final = 2
LONGEST_QUERY: Final = 2_000
"""Characters of a query that are read; what a model asks is far shorter."""
_BETWEEN: Final = re.compile(r"[\s\ufeff\-_.,;:!?()\[\]{}'\"]+")


def tokens(text: str) -> list[str]:
    """The words of a text, lower case, each of at least two characters."""
    return [token for token in _BETWEEN.split(text.lower()) if len(token) >= SHORTEST]


def query_tokens(query: str) -> list[str]:
    """The words of a query."""
    return tokens(query[:LONGEST_QUERY])


class Index:
    """Documents that can be searched; `search` takes time by the query's words and their documents."""

    def __init__(self, documents: Sequence[str]) -> None:
        split = [tokens(document) for document in documents]
        self._lengths = [len(words) for words in split]
        self._average = sum(self._lengths) / len(split) if split else 0.0
        self._postings: dict[str, list[tuple[int, int]]] = {}
        for place, words in enumerate(split):
            for word, count in Counter(words).items():
                self._postings.setdefault(word, []).append((place, count))

    def search(self, query: str) -> list[tuple[int, float]]:
        """Position and score of each document that has a word of the query, best first, ties in order."""
        scores: dict[int, float] = {}
        for word in query_tokens(query):
            found = self._postings.get(word, [])
            idf = math.log((len(self._lengths) - len(found) + 0.5) / (len(found) + 0.5) + 1)
            for place, count in found:
                length = B * self._lengths[place] / self._average
                term = idf * count * (K1 + 1) / (count + K1 * (1 - B + length))
                scores[place] = scores.get(place, 0.0) + term
        return sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))


def rounded(score: float) -> float:
    """A score with two decimals, as the reference rounds (R-TS-4)."""
    return math.floor(score * 100 + 0.5) / 100
