"""Which text a detector judges, how it is quoted, and where a stream is cut."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.messages import new_message
from procession_services.processors.core.detector_text import (
    SLACK,
    cut_pieces,
    detector_text,
    examined_ids,
    fenced,
    with_text,
)
from tests.support.cost import growth

IMAGE = {"type": "file", "data": "AA", "mimeType": "image/png"}
WRITTEN = st.text(alphabet=st.sampled_from('ab .!?\n\u3002\u2026")é👋'), max_size=700)


def test_text_parts_are_joined_by_spaces_and_trimmed_as_javascript_does():
    message = new_message(
        "user", [{"type": "text", "text": "\ufeff a"}, IMAGE, {"type": "text", "text": "b\u0085 "}]
    )
    assert detector_text(message) == "a b\u0085"


def test_a_message_without_text_parts_gives_its_flat_content():
    assert detector_text({"content": {"format": 2, "parts": [], "content": " flat "}}) == "flat"
    assert detector_text({"content": " bare "}) == "bare"
    assert detector_text(new_message("user", [IMAGE])) == ""


def test_a_rewrite_keeps_the_other_parts_in_place():
    texts = [{"type": "text", "text": "a"}, IMAGE, {"type": "text", "text": "b"}]
    message: Any = {
        **new_message("user", texts, id="m"),
        "content": {"format": 2, "parts": texts, "content": "b"},
    }
    assert with_text(message, "new")["content"] == {
        "format": 2, "parts": [{"type": "text", "text": "new"}, IMAGE], "content": "new",
    }  # fmt: skip
    assert message["content"]["parts"] == texts


def test_only_new_messages_are_examined_and_the_last_of_them_only_on_request():
    old, new, newer = ({"id": each} for each in ("old", "new", "newer"))
    batch = [old, new, newer]
    assert examined_ids(batch, [new, newer], last_only=False) == {"new", "newer"}
    assert examined_ids(batch, None, last_only=False) == {"old", "new", "newer"}
    assert examined_ids(batch, [new, newer], last_only=True) == {"newer"}
    assert examined_ids([], None, last_only=True) == set()


@given(st.text(max_size=50))
def test_no_text_closes_its_quotation(text):
    first, *_, last = fenced(text).split("\n")
    assert first.startswith("<text-")
    assert last == f"</{first[1:]}"
    assert first not in text
    assert last not in text
    assert fenced(fenced(text)).count(fenced(text)) == 1


@given(WRITTEN, st.integers(1, 120), st.lists(st.integers(0, 700), max_size=6))
def test_pieces_are_the_same_for_every_split(text, size, cuts):
    whole, rest = cut_pieces(text, size)
    assert "".join([*whole, rest]) == text
    assert all(size <= len(piece) <= size + SLACK for piece in whole)
    found, held = [], ""
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)], strict=True):
        pieces, held = cut_pieces(held + text[start:end], size)
        found += pieces
    assert (found, held) == (whole, rest)


def test_a_piece_ends_with_its_sentence():
    text = 'One. Two! "Three?" Four is 3.5 long.\nFive'
    assert cut_pieces(text, 1) == (["One. ", "Two! ", '"Three?" ', "Four is 3.5 long.\n"], "Five")
    assert cut_pieces(text, 6) == (["One. Two! ", '"Three?" ', "Four is 3.5 long.\n"], "Five")
    assert cut_pieces("一。二。三", 1) == (["一。", "二。"], "三")


def test_text_without_sentences_is_cut_at_white_space_or_anywhere():
    words = "word " * 100
    (first, *_), _ = cut_pieces(words, 50)
    assert len(first) == 250
    assert first.endswith(" ")
    (first, *_), _ = cut_pieces("x" * 1000, 50)
    assert len(first) == 250


@pytest.mark.parametrize(("unit", "end"), [("x", ""), (". ", ""), ("!", ""), ("a", " ")])
def test_a_long_text_is_cut_in_linear_time(unit, end):
    assert growth(lambda size: cut_pieces(unit * (size // len(unit)) + end, 200), 400_000) < 12
