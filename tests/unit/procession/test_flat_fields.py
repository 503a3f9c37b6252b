"""Fields beside the parts, as old clients send them: each becomes parts, once (core.md 7.1, D-28)."""

from typing import Any

import pytest

from procession.flat_fields import unfolded
from procession.messages import InvalidMessageError, normalise, text_of

CALL = {"state": "result", "toolCallId": "c1", "toolName": "weather", "args": {"city": "Oslo"}, "result": 21}
TOOL: Any = {"type": "tool-invocation", "toolInvocation": CALL}
THOUGHT: Any = {"type": "reasoning", "reasoning": "hm", "details": [{"type": "text", "text": "hm"}]}
PICTURE = {"url": "https://x/cat.png", "contentType": "image/png", "name": "cat.png"}
FILE: Any = {"type": "file", "data": "https://x/cat.png", "mimeType": "image/png", "filename": "cat.png"}
ALL = {"reasoning": "hm", "toolInvocations": [CALL], "experimental_attachments": [PICTURE]}


def text(value: str) -> Any:
    return {"type": "text", "text": value}


def content(like: Any) -> Any:
    return normalise(like, new_id=lambda: "new", now=lambda: "2026-01-31T12:00:00.000Z")["content"]


def test_each_field_becomes_parts() -> None:
    assert unfolded(ALL, [text("a")], "message") == [THOUGHT, TOOL, text("a"), FILE]


def test_a_field_that_repeats_the_parts_adds_nothing() -> None:
    image: Any = {"type": "image", "image": "https://x/dog.png"}
    for parts in ([THOUGHT, TOOL, FILE], [THOUGHT, TOOL, image]):
        assert unfolded(ALL, parts, "message") == parts


def test_an_attachment_without_type_and_name_has_the_type_of_its_data() -> None:
    given = {"experimental_attachments": [{"url": "data:image/webp;base64,QUJD"}, {"url": "https://x/y"}]}
    assert unfolded(given, [], "message") == [
        {"type": "file", "data": "data:image/webp;base64,QUJD", "mimeType": "image/webp"},
        {"type": "file", "data": "https://x/y", "mimeType": "application/octet-stream"},
    ]


def test_a_message_of_ai_sdk_4_is_its_parts() -> None:
    parts = [{"type": "step-start"}, TOOL, text("21 "), text("degrees")]
    like = {"role": "assistant", "content": "21 degrees", "parts": parts, "toolInvocations": [CALL]}
    assert content(like) == {"format": 2, "parts": parts}


def test_a_message_of_ai_sdk_4_without_parts_is_its_fields() -> None:
    said = content(
        {"role": "assistant", "content": "21 degrees", "reasoning": "hm", "toolInvocations": [CALL]}
    )
    assert said["parts"] == [THOUGHT, TOOL, text("21 degrees")]
    asked = content(
        {"role": "user", "content": "what is it?", "parts": [], "experimental_attachments": [PICTURE]}
    )
    assert asked["parts"] == [text("what is it?"), FILE]
    assert content({"role": "assistant", "content": "", "parts": [TOOL]})["parts"] == [TOOL]


def test_a_stored_message_is_unfolded_and_keeps_no_copy() -> None:
    said = content({"role": "assistant", "content": {"format": 2, "content": "21 degrees", **ALL}})
    assert said == {"format": 2, "parts": [THOUGHT, TOOL, text("21 degrees"), FILE], "content": "21 degrees"}
    only = content({"role": "assistant", "content": {"format": 2, "toolInvocations": [CALL]}})
    assert only == {"format": 2, "parts": [TOOL]}


def test_what_a_processor_takes_out_of_the_parts_does_not_come_back() -> None:
    said = content({"role": "assistant", "content": {"format": 2, "parts": [TOOL], **ALL}})
    said["parts"] = [text("[removed]")]
    again: Any = normalise({"role": "assistant", "content": said}, new_id=lambda: "", now=lambda: "")
    assert again["content"]["parts"] == [text("[removed]")]
    assert text_of(again) == "[removed]"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"toolInvocations": {}}, "message.toolInvocations"),
        ({"toolInvocations": [{"toolCallId": "c"}]}, "message.toolInvocations.0.toolInvocation.state"),
        ({"experimental_attachments": "x"}, "message.experimental_attachments"),
        ({"experimental_attachments": [{"name": "x"}]}, "message.experimental_attachments.0.url"),
        ({"experimental_attachments": ["x"]}, "message.experimental_attachments.0.url"),
    ],
)
def test_what_cannot_be_read_is_named(fields: Any, field: str) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        unfolded(fields, [], "message")
    assert caught.value.field == field
