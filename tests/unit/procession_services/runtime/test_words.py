"""Words that depend on a number."""

import pytest

from procession_services.runtime.words import number_of


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, "0 runs"),
        (1, "1 run"),
        (1.0, "1 run"),
        (2, "2 runs"),
        (0.01, "0.01 runs"),
        (1234567, "1234567 runs"),
    ],
)
def test_a_noun_agrees_with_its_count(count, told):
    assert number_of(count, "run") == told


def test_a_plural_may_be_another_word():
    assert [number_of(count, "delivery", "deliveries") for count in (1, 5)] == ["1 delivery", "5 deliveries"]
