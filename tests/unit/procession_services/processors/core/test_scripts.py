"""Where a word ends, with and without spaces."""

import re

import pytest

from procession_services.processors.core.scripts import bounded


@pytest.mark.parametrize(
    ("value", "text", "found"),
    [
        ("Ann", "Ann, Anna, Joann, ANN, _Ann_", 1),
        ("José", "José/Joséphine", 1),
        ("@ann", "x@ann @anna", 1),
        ("佐々木", "佐々木さんと佐々木", 2),
        ("Ann", "私はAnnです", 1),
        ("Ann太郎", "XAnn太郎 Ann太郎", 1),
        ("ສົມ", "ທ້າວສົມດີ", 1),
        ("မောင်", "ကိုမောင်မောင်", 2),
        ("សុខ", "លោកសុខជា", 1),
        ("𠮷田", "私𠮷田です", 1),
    ],
)
def test_a_value_is_found_where_it_is_no_part_of_a_longer_word(value, text, found):
    assert len(re.findall(bounded(value), text)) == found
