"""Repairs of what providers send."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession_services.llm_gateway.core.text import InvalidJsonError, close_json, parse_json, valid_unicode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ('{"a": 1', {"a": 1}),
        ('{"a": [1, {"b": "x', {"a": [1, {"b": "x"}]}),
        ('{"a": "x\\', {"a": "x"}),
        ('{"a": 1, ', {"a": 1}),
        ('{"a": "br{ace', {"a": "br{ace"}),
        ('["a]"', ["a]"]),
    ],
)
def test_what_stops_too_early_is_closed(broken: str, expected: Any) -> None:
    assert json.loads(close_json(broken)) == expected


@pytest.mark.parametrize("hopeless", ['{"x": ', '{"x"', "{x: 1", "no", '{"a": 1}}', '{"a": NaN}'])
def test_what_cannot_be_closed_stays_invalid(hopeless: str) -> None:
    with pytest.raises(InvalidJsonError):
        parse_json(close_json(hopeless))


@given(JSON)
def test_whole_json_needs_no_repair(value: Any) -> None:
    text = json.dumps(value)
    assert close_json(text) == text
    assert parse_json(text) == json.loads(json.dumps(value))


@given(st.dictionaries(st.text(), JSON, min_size=1), st.data())
def test_closing_never_raises_and_never_adds_text(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(0, len(text)))]
    closed = close_json(cut)
    kept = closed.rstrip('"}]')
    assert cut.startswith(kept)


def test_line_breaks_inside_strings_are_forgiven() -> None:
    assert parse_json('{"a": "one\ntwo"}') == {"a": "one\ntwo"}


def test_depth_is_no_crash() -> None:
    with pytest.raises(InvalidJsonError):
        parse_json("[" * 200_000)


@given(st.text())
def test_valid_text_is_untouched(text: str) -> None:
    assert valid_unicode(text) == text


@given(st.text(st.characters(categories=["Cs", "Lu", "So"])))
def test_what_comes_out_can_always_be_encoded(text: str) -> None:
    valid_unicode(text).encode()


def test_surrogates_are_joined_or_replaced() -> None:
    assert valid_unicode("\ud83d\ude00") == "\U0001f600"
    assert valid_unicode("a\ud83d") == "a\ufffd"
    assert parse_json('{"a": "\\ud83d"}') == {"a": "\ufffd"}
    assert parse_json('{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_nan_is_null_where_it_is_forgiven() -> None:
    assert parse_json('[NaN, -Infinity, 1, "\\ud83d"]', nan=True) == [None, None, 1, "\ufffd"]
