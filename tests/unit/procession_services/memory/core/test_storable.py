import copy
from typing import Any

import pytest

from procession_services.memory.core.storable import storable
from tests.support.cost import growth


def message(*parts: dict[str, Any], name: str = "m", role: str = "assistant", **content: Any) -> Any:
    return {
        "id": name,
        "role": role,
        "createdAt": "2026-01-01T00:00:00.000Z",
        "content": {"format": 2, "parts": list(parts), **content},
    }


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(state: str, tool: str = "weather") -> dict[str, Any]:
    invocation = {"state": state, "toolCallId": "c1", "toolName": tool, "args": {}}
    return {"type": "tool-invocation", "toolInvocation": invocation}


def parts_of(*parts: dict[str, Any]) -> list[list[Any]]:
    return [m["content"]["parts"] for m in storable([message(*parts)])]


def test_ordinary_messages_are_stored_as_they_are_and_in_order() -> None:
    given = [
        message(text("hi"), name="u", role="user"),
        message(
            {"type": "step-start"}, text("  spaced  "), call("result"), {"type": "x-odd", "y": 1}, name="a",
            metadata={"reviewed": True}, content="  spaced  ",
        ),
    ]  # fmt: skip
    assert storable(given) == given


@pytest.mark.parametrize("state", ["call", "approval-requested", "result", "output-error", "output-denied"])
def test_tool_calls_stay_once_they_are_complete(state: str) -> None:
    assert parts_of(text("let me"), call(state)) == [[text("let me"), call(state)]]


def test_half_streamed_tool_calls_are_left_out() -> None:
    assert parts_of(text("let me"), call("partial-call")) == [[text("let me")]]


def test_only_calls_of_the_working_memory_tool_are_left_out() -> None:
    assert parts_of(call("result", "updateWorkingMemory"), text("ok")) == [[text("ok")]]
    kept = call("result", "setWorkingMemory")
    assert parts_of(kept, text("ok")) == [[kept, text("ok")]]


def test_the_legacy_mirror_of_tool_calls_is_cleaned_too() -> None:
    invocations = [call("result", "updateWorkingMemory")["toolInvocation"], call("call")["toolInvocation"]]
    [stored] = storable([message(text("ok"), toolInvocations=invocations)])
    assert stored["content"]["toolInvocations"] == invocations[1:]  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("Hi <working_memory># data</working_memory> there ", "Hi  there"),
        ("<working_memory>a\nb</working_memory>x<working_memory>c</working_memory>", "x"),
        ("Hi <working_memory> open ", "Hi <working_memory> open "),
        ("  no tags  ", "  no tags  "),
        (
            "</working_memory> a <working_memory>b <working_memory>c</working_memory> d",
            "</working_memory> a  d",
        ),
        ("<working_memory>a</working_memory>b <working_memory>c ", "b <working_memory>c"),
    ],
)
def test_working_memory_blocks_are_cut_out_of_texts(given: Any, stored: Any) -> None:
    [kept] = storable([message(text(given), content=given)])
    assert kept["content"]["parts"] == [text(stored)]
    assert kept["content"]["content"] == stored


def test_a_text_that_was_nothing_but_working_memory_leaves_no_trace() -> None:
    block = "<working_memory>x</working_memory>"
    [kept] = storable([message(text(block), call("result"), content=block)])
    assert kept["content"] == {"format": 2, "parts": [call("result")]}


@pytest.mark.parametrize(
    "gone",
    [
        message(text("be nice"), role="system"),
        message(),
        message({"type": "step-start"}),
        message({"type": "step-start"}, call("partial-call")),
        message(text("<working_memory>x</working_memory>")),
        message(text("note"), role="signal", metadata={"signal": {"type": "reactive", "transient": True}}),
    ],
)
def test_messages_without_anything_to_keep_are_left_out(gone: Any) -> None:
    rest = message(text("kept"), name="rest")
    assert storable([gone, rest]) == [rest]


def test_an_empty_text_of_the_user_is_a_message() -> None:
    said_nothing = message(text(""), role="user")
    assert storable([said_nothing]) == [said_nothing]


def test_only_transient_data_is_left_out() -> None:
    kept = {"type": "data-kept", "data": {"a": 1}}
    assert parts_of(kept, {"type": "data-gone", "data": 1, "transient": True}, text("x")) == [
        [kept, text("x")]
    ]


def test_the_messages_given_stay_untouched() -> None:
    given = [
        message(
            text("a<working_memory>b</working_memory>"),
            call("partial-call"),
            content="old",
            toolInvocations=[{}],
        )
    ]
    before = copy.deepcopy(given)
    storable(given)
    assert given == before


def test_a_flood_of_opening_tags_takes_linear_time() -> None:
    def store(size: int) -> None:
        flood = "<working_memory>" * size
        assert parts_of(text(flood)) == [[text(flood)]]

    assert growth(store, 60_000) < 12
