"""Characters that are cut in two come whole, wherever the cut is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession_services.llm_gateway.core.adapter import ChunkAdapter
from procession_services.llm_gateway.core.halves import Halves
from procession_services.llm_gateway.providers.openai_events import json_parser

SMILE = "\U0001f600"
HIGH, LOW = "\ud83d", "\ude00"


def read(*deltas: dict[str, Any], last: dict[str, Any] | None = None) -> list[Any]:
    """The chunks of an answer whose server escapes what it sends."""
    parse, adapter = json_parser(None), ChunkAdapter("openai")
    choices = [{"delta": delta} for delta in deltas] + [{"delta": last or {}, "finish_reason": "stop"}]
    events = [parse(json.dumps({"id": "r", "choices": [choice]}).encode()) for choice in choices]
    chunks = [chunk for event in events if event for chunk in adapter.feed(event)] + adapter.finish()
    json.dumps(chunks, ensure_ascii=False).encode()
    return chunks


def told(chunks: list[Any], name: str = "text") -> list[Any]:
    return [chunk["payload"][name] for chunk in chunks if name in chunk["payload"]]


@pytest.mark.parametrize("name", ["content", "reasoning_content", "reasoning"])
def test_a_character_that_is_cut_in_two_comes_whole(name: str) -> None:
    assert told(read({name: f"x{HIGH}"}, {name: f"{LOW}y"})) == ["x", f"{SMILE}y"]
    assert told(read({name: HIGH}, {name: LOW + HIGH}, {name: LOW})) == [SMILE, SMILE]


@pytest.mark.parametrize(
    ("deltas", "last", "expected"),
    [
        ([f"x{HIGH}"], None, ["x", "\ufffd"]),
        ([f"x{HIGH}", "y"], None, ["x", "\ufffdy"]),
        ([f"x{HIGH}", f"{HIGH}y"], None, ["x", "\ufffd\ufffdy"]),
        ([f"x{LOW}"], None, ["x\ufffd"]),
        (["x"], {"content": HIGH}, ["x", "\ufffd"]),
    ],
    ids=["end", "other text", "another half", "the second half alone", "in the last delta"],
)
def test_a_half_that_has_no_other_is_replaced(deltas: Any, last: Any, expected: list[str]) -> None:
    assert told(read(*({"content": text} for text in deltas), last=last)) == expected


def test_a_half_that_other_text_follows_is_of_its_own_block() -> None:
    chunks = read({"reasoning": f"x{HIGH}"}, {"content": f"{LOW}y"})
    assert told(chunks) == ["x", "\ufffd", "\ufffdy"]
    kinds = [chunk["type"] for chunk in chunks if "text" in chunk["payload"]]
    assert kinds == ["reasoning-delta", "reasoning-delta", "text-delta"]


def call(arguments: str, index: int = 0, **named: str) -> dict[str, Any]:
    return {"index": index, "id": f"c{index}", "function": {"arguments": arguments, **named}}


def test_arguments_of_tools_come_whole() -> None:
    chunks = read({"tool_calls": [call(f'{{"a": "{HIGH}', name="f")]}, {"tool_calls": [call(f'{LOW}"}}')]})
    assert told(chunks, "argsTextDelta") == ['{"a": "', f'{SMILE}"}}']
    assert told(chunks, "args") == [{"a": SMILE}]


def test_a_half_of_arguments_without_another_is_replaced() -> None:
    begun = {"tool_calls": [call(f'{{"a": "{HIGH}', name="f")]}
    assert told(read(begun), "args") == [{"a": "\ufffd"}]
    chunks = read(begun, {"tool_calls": [call("{}", 1, name="g")]}, {"tool_calls": [call('"}')]})
    assert told(chunks, "args") == [{"a": "\ufffd"}, {}]


def test_an_event_without_a_delta_is_waited_out() -> None:
    parse = json_parser(None)
    events = [{"choices": [{"delta": {"content": HIGH}}]}, {"choices": []}, {"choices": [{"delta": None}]}]
    for event in events:
        parse(json.dumps(event).encode())
    joined = parse(json.dumps({"choices": [{"delta": {"content": LOW}}]}).encode())
    assert joined == {"choices": [{"delta": {"content": SMILE}}]}


json_values = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from([HIGH, LOW, "x"]), max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "content", "tool_calls", "index", "function", "arguments", HIGH]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(st.lists(json_values, max_size=3))
def test_whatever_comes_is_unicode_then(values: list[Any]) -> None:
    halves = Halves()
    for value in values:
        json.dumps(halves.joined(value), ensure_ascii=False).encode()
