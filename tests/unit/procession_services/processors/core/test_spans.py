"""Places that are replaced in texts and messages."""

from typing import Any

import pytest

from procession_services.processors.core.spans import Span, located, replaced, replaced_in_parts, united


def spans(*places):
    return united(Span(start, end, ((start, end),)) for start, end in places)


def sharp(_span, text):
    return f"<{len(text)}>"


def message(*texts) -> Any:
    parts = [{"type": "text", "text": t} if isinstance(t, str) else t for t in texts]
    return {"id": "m", "role": "assistant", "content": {"format": 2, "parts": parts}}


class TestLocated:
    @pytest.mark.parametrize(
        ("start", "end", "value", "places"),
        [
            (2, 5, "cde", [(2, 5)]),
            (2, 5, "", [(2, 5)]),
            (-4, 3, "abc", [(0, 3)]),
            (5, 99, "fg", [(5, 7)]),
            (0, 1, "cd", [(0, 1), (2, 4)]),
            (9, 12, "ab", [(0, 2)]),
            (9, 12, "xyz", [(0, 7)]),
            (4, 2, "", [(0, 7)]),
            (2.0, 5.0, "cde", [(2, 5)]),
            (-1e300, 1e300, "x", [(0, 7)]),
        ],
    )
    def test_a_position_a_value_or_everything(self, start, end, value, places):
        assert located("abcdefg", start, end, value) == places

    @pytest.mark.parametrize("value", ["say no", "Say  No", "say\nno ", "SAY NO"])
    def test_capitals_and_white_space_do_not_hide_a_value(self, value):
        assert located("never say\tno", 0, 2, value) == [(0, 2), (6, 12)]

    def test_a_value_that_is_there_to_the_letter_is_no_other_one(self):
        assert located("No, no", 1, 1, "no") == [(4, 6)]

    @pytest.mark.parametrize("value", ["é a", "É  A"])
    def test_what_a_string_of_json_means_is_found_where_it_is_written(self, value):
        assert located('{"b":"\\u00e9 a"}', 0, 0, value) == [(6, 14)]

    def test_nothing_is_found_in_nothing(self):
        assert located("", 0, 3, "abc") == []


class TestUnited:
    def test_what_overlaps_is_one_and_what_touches_is_not(self):
        got = spans((4, 6), (0, 3), (2, 4), (6, 8))
        assert [(each.start, each.end, len(each.found)) for each in got] == [(0, 4, 2), (4, 6, 1), (6, 8, 1)]

    def test_what_lies_within_counts(self):
        (one,) = spans((0, 9), (2, 4), (3, 5))
        assert (one.start, one.end, len(one.found)) == (0, 9, 3)


class TestReplaced:
    def test_each_span_is_rewritten_once(self):
        assert replaced("0123456789", spans((1, 3), (3, 4), (8, 10)), sharp) == "0<2><1>4567<2>"
        assert replaced("0123", [], sharp) == "0123"

    @pytest.mark.parametrize(
        ("places", "texts"),
        [
            ([(0, 2)], ["<2>c", "def"]),
            ([(2, 4)], ["ab<2>", "ef"]),
            ([(0, 6)], ["<6>"]),
            ([(1, 2), (4, 6)], ["a<1>c", "d<2>"]),
            ([(3, 6)], ["abc", "<3>"]),
            ([(1, 6)], ["a<5>"]),
        ],
    )
    def test_in_a_message_other_parts_keep_their_place(self, places, texts):
        """D-6."""
        before = message("abc", {"type": "file", "data": "AA"}, "def", {"type": "step-start"})
        parts = replaced_in_parts(before, spans(*places), sharp)["content"]["parts"]
        assert [part["text"] for part in parts if part["type"] == "text"] == texts
        assert [part["type"] for part in parts if part["type"] != "text"] == ["file", "step-start"]
        assert parts[1]["type"] == "file"
        assert before == message("abc", {"type": "file", "data": "AA"}, "def", {"type": "step-start"})

    def test_a_part_that_loses_all_goes_and_an_empty_one_stays(self):
        after = replaced_in_parts(message("", "ab", "c"), spans((0, 2)), lambda *_: "")
        assert [part["text"] for part in after["content"]["parts"]] == ["", "c"]
