"""BM25 as the reference has it (R-TS-3)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession_services.processors.core.bm25 import LONGEST_QUERY, Index, query_tokens, rounded, tokens
from tests.support.cost import growth

WORDS = st.lists(st.sampled_from(["ab", "cd", "ef", "gh", "x"]), max_size=8).map(" ".join)


def by_definition(documents, query):
    """Scores straight from the formula of the rule."""
    split = [tokens(document) for document in documents]
    average = sum(map(len, split)) / len(split)
    found: dict[int, float] = {}
    for place, words in enumerate(split):
        for word in tokens(query):
            tf, df = words.count(word), sum(word in each for each in split)
            if tf:
                idf = math.log((len(split) - df + 0.5) / (df + 0.5) + 1)
                term = idf * tf * 2.5 / (tf + 1.5 * (0.25 + 0.75 * len(words) / average))
                found[place] = found.get(place, 0) + term
    return found


@given(st.lists(WORDS, min_size=1, max_size=6), WORDS)
def test_scores_are_those_of_the_formula(documents, query):
    hits = Index(documents).search(query)
    expected = by_definition(documents, query)
    assert dict(hits) == pytest.approx(expected)
    assert [score for _, score in hits] == sorted((score for _, score in hits), reverse=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Get_the current-Weather", ["get", "the", "current", "weather"]),
        ("a bc d", ["bc"]),
        ("x.y,zz;(aa)[bb]{cc}'dd'\"ee\"!ff?gg:hh", ["zz", "aa", "bb", "cc", "dd", "ee", "ff", "gg", "hh"]),
        ("a/b c\u00a0dd\ufeffee", ["a/b", "dd", "ee"]),
        ("", []),
    ],
)
def test_words(text, words):
    assert tokens(text) == words


def test_no_documents_and_no_words():
    assert Index([]).search("any") == []
    assert Index(["", "x"]).search("x any") == []


def test_ties_come_in_order():
    assert [place for place, _ in Index(["ab", "ab", "cd"]).search("ab")] == [0, 1]


def test_a_long_query_is_read_in_part():
    assert len(query_tokens("ab " * 1_000_000)) < LONGEST_QUERY
    index = Index(["ab cd"] * 100)
    assert growth(lambda size: index.search("ab " * size), 1_000_000) < 2


@pytest.mark.parametrize(
    ("score", "shown"), [(2.345, 2.35), (2.344, 2.34), (2.005, 2.01), (0.125, 0.13), (3, 3.0), (0, 0.0)]
)
def test_halves_are_rounded_up(score, shown):
    assert rounded(score) == shown
