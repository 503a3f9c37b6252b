import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession_services.memory.core.lexical import DIMENSION, embed


def similarity(one, other):
    return sum(a * b for a, b in zip(embed(one), embed(other), strict=True))


@given(st.text(max_size=200))
def test_every_text_has_a_unit_vector(text):
    vector = embed(text)
    assert len(vector) == DIMENSION
    assert math.isclose(sum(value * value for value in vector), 1, rel_tol=1e-6)


def test_the_same_words_lie_closer_than_others():
    question = "what is my dog called"
    assert (
        similarity(question, "my dog is called Rex") > similarity(question, "the train leaves at noon") + 0.3
    )
    assert similarity("insurance", "insurances") > 0.4
    assert similarity("DOG", "dog") == pytest.approx(1)


def test_common_words_hardly_count():
    assert similarity("what is the dog", "what is the train") < 0.3
