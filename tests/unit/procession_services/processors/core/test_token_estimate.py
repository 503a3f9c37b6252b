import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession_services.processors.core.token_estimate import estimate, first_tokens, media_tokens
from tests.support.cost import growth

TEXT = st.lists(st.sampled_from([*"ab1 .,é你😀\nžß\u0301", "word"]), max_size=60).map("".join)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("The quick brown fox jumps over the lazy dog.", 10),
        ('{"type":"text","value":[1,2,3]}', 14),
        ("12345678901234567890", 1),
        ("ひらがなです", 1),
        ("hello你好world", 12),
        ("\ufeff\u00a0", 0),
        ("\u0085\u001c", 1),
        ("Größe", 2),
        ("ŽLUŤOUČKÝ", 3),
        ("façade", 2),
        ("'\"'\"'\"'", 2),
    ],
)
def test_each_piece_costs_what_the_rules_say(text, tokens):
    assert estimate(text) == tokens


@pytest.mark.parametrize(
    ("text", "limit", "beginning"),
    [
        ("internationalization is long", 2, "internatio"),
        ("one two three", 0, ""),
        ("one two three", -3, ""),
        ("one two three", 2.5, "one two thr"),
        ("one two three", 99, "one two three"),
        ("😀" * 7, 1, "😀😀"),
        ("a\ud800b c", 1, "a\ufffdb"),
    ],
)
def test_a_text_is_cut_where_the_tokens_are_used_up(text, limit, beginning):
    assert first_tokens(text, limit) == beginning


@given(TEXT, st.integers(0, 20))
def test_a_beginning_is_one_and_is_the_whole_where_that_fits(text, limit):
    cut = first_tokens(text, limit)
    assert text.startswith(cut)
    if 0 < estimate(text) < limit:
        assert cut == text


@given(TEXT)
def test_counts_are_never_negative_and_grow_with_the_text(text):
    assert 0 <= estimate(text) <= estimate(text + " word")


@pytest.mark.parametrize(
    ("data", "media_type", "tokens"),
    [
        ("https://example.com/x.png", "image/png", 765),
        ("https://example.com/x.pdf", "application/pdf", 258),
        ("file-id:123", None, 258),
        ("A" * 400, "application/pdf", 75),
        ("data:application/pdf;base64," + "A" * 400, "application/pdf", 75),
        ("", "application/pdf", 1),
        (b"x" * 40, "application/pdf", 10),
        (None, "application/pdf", 258),
    ],
)
def test_files_cost_by_kind_and_size(data, media_type, tokens):
    assert media_tokens(data, media_type) == tokens


@pytest.mark.parametrize("unit", ["a", "a ", ".", "a.", "你", "😀", "é", " "])
def test_a_long_text_takes_linear_time(unit):
    def count(size):
        text = unit * (size // len(unit))
        estimate(text)
        first_tokens(text, 1000)

    assert growth(count, 400_000) < 12
