"""Messages as plain dicts: reading, making, rewriting, and reading in other formats."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.messages import (
    InvalidMessageError,
    check_stored,
    clone,
    is_readable,
    map_text,
    new_message,
    normalise,
    refresh_flat,
    system_text,
    text_of,
    texts_of,
    timestamp,
    user_message,
)
from procession.parts import copy_json
from procession.prompt import conversation_entries
from procession.ui_messages import to_ui

NOW = "2026-01-31T12:00:00.000Z"
CALL = {"state": "call", "toolCallId": "c1", "toolName": "weather", "args": {"city": "Oslo"}}


def read(like: Any, where: Any = "message") -> Any:
    return normalise(like, new_id=lambda: "new", now=lambda: NOW, where=where)


def parts(like: Any) -> Any:
    return read(like)["content"]["parts"]


def stored(*parts: Any, **content: Any) -> Any:
    return {
        "id": "m1",
        "role": "assistant",
        "createdAt": NOW,
        "content": {"format": 2, "parts": list(parts), **content},
    }


def text(value: Any) -> Any:
    return {"type": "text", "text": value}


def tool(**changes: Any) -> Any:
    return {"type": "tool-invocation", "toolInvocation": CALL | changes}


class TestReading:
    def test_the_text_is_that_of_all_text_parts(self) -> None:
        assert text_of(stored(text("Hello "), tool(), text("world"))) == "Hello world"

    def test_the_flat_text_counts_only_without_text_in_the_parts(self) -> None:
        assert text_of(stored(content="flat")) == "flat"
        assert text_of(stored(text(""), content="flat")) == "flat"
        assert text_of(stored(text("part"), content="flat")) == "part"
        assert text_of(stored(tool())) == ""

    def test_texts_come_in_order(self) -> None:
        assert texts_of([stored(text("a")), stored(text("b"))]) == ["a", "b"]

    def test_system_text_is_the_flat_text_or_the_parts_by_lines(self) -> None:
        assert system_text(stored(text("a"), text("b"))) == "a\nb"
        assert system_text(stored(text("a"), content="flat")) == "flat"
        assert system_text({"role": "system", "content": "plain"}) == "plain"


class TestMaking:
    def test_a_text_becomes_a_text_part(self) -> None:
        assert user_message("hi", id="u", created_at=NOW) == {
            "id": "u",
            "role": "user",
            "createdAt": NOW,
            "content": {"format": 2, "parts": [text("hi")]},
        }

    def test_without_id_and_time_the_list_fills_them_in(self) -> None:
        made = new_message("assistant", [text("hi")])
        assert "id" not in made
        assert read(made)["id"] == "new"
        assert read(made)["createdAt"] == NOW

    def test_parts_are_copied(self) -> None:
        given_parts = [tool()]
        new_message("assistant", given_parts)["content"]["parts"][0]["toolInvocation"]["args"]["city"] = (
            "Rome"
        )
        assert given_parts[0]["toolInvocation"]["args"] == {"city": "Oslo"}


class TestRewriting:
    def test_a_clone_shares_nothing(self) -> None:
        original = stored(tool(args={"deep": [{"er": 1}]}))
        copy = clone(original)
        copy["content"]["parts"][0]["toolInvocation"]["args"]["deep"][0]["er"] = 2
        assert original["content"]["parts"][0]["toolInvocation"]["args"] == {"deep": [{"er": 1}]}

    def test_only_text_parts_change_and_all_keep_their_place(self) -> None:
        image = {"type": "image", "image": "https://x/cat.png"}
        strange = {"type": "hologram", "beam": 7}
        original = stored(text("a"), image, tool(), text("b"), strange, metadata={"k": 1})
        changed = map_text(original, str.upper)
        assert changed["content"]["parts"] == [text("A"), image, tool(), text("B"), strange]
        assert changed["content"]["metadata"] == {"k": 1}
        assert original == stored(text("a"), image, tool(), text("b"), strange, metadata={"k": 1})

    def test_other_keys_of_a_text_part_stay(self) -> None:
        part = text("a") | {"providerMetadata": {"p": 1}}
        assert map_text(stored(part), str.upper)["content"]["parts"] == [part | {"text": "A"}]

    def test_the_flat_copy_follows(self) -> None:
        assert map_text(stored(text("a"), text("b"), content="b"), str.upper)["content"]["content"] == "B"
        assert map_text(stored(content="b"), str.upper)["content"]["content"] == "B"

    def test_a_stale_flat_copy_is_refreshed_or_dropped(self) -> None:
        edited, emptied, without = (
            stored(text("[x]"), content="secret"),
            stored(tool(), content="secret"),
            stored(),
        )
        for message in (edited, emptied, without):
            refresh_flat(message)
        assert edited["content"]["content"] == "[x]"
        assert "content" not in emptied["content"]
        assert "content" not in without["content"]


class TestTimestamp:
    def test_it_is_utc_with_milliseconds(self) -> None:
        assert timestamp(datetime(2026, 1, 31, 12, tzinfo=UTC)) == NOW
        assert timestamp(datetime(2026, 1, 31, 14, tzinfo=timezone(timedelta(hours=2)))) == NOW
        assert timestamp(datetime(2026, 1, 31, 12)) == NOW  # noqa: DTZ001 - what it does with a naive time

    @settings(deadline=None)
    @given(st.datetimes(min_value=datetime(1, 1, 2)), st.datetimes(min_value=datetime(1, 1, 2)))  # noqa: DTZ001
    def test_text_order_is_time_order(self, a: Any, b: Any) -> None:
        cut = [x.replace(microsecond=x.microsecond // 1000 * 1000) for x in (a, b)]
        assert (timestamp(a) < timestamp(b)) == (cut[0] < cut[1])


class TestNormalise:
    def test_a_string_is_a_user_message(self) -> None:
        assert read("hi") == {
            "id": "new",
            "role": "user",
            "createdAt": NOW,
            "content": {"format": 2, "parts": [text("hi")]},
        }

    def test_an_empty_string_is_legal(self) -> None:
        assert parts("") == [text("")]
        assert parts({"role": "user", "content": ""}) == [text("")]
        assert parts({"role": "user", "content": []}) == []

    def test_role_and_string(self) -> None:
        message = read(
            {"role": "assistant", "content": "yes", "id": "a", "createdAt": "2026-01-31T13:00:00+01:00"}
        )
        assert (message["id"], message["role"], message["createdAt"]) == ("a", "assistant", NOW)

    def test_a_full_message_stays_as_it_is_but_is_a_copy(self) -> None:
        strange = {"type": "hologram", "beam": [1]}
        full = stored(text("a"), tool(), strange, metadata={"m": 1}, content="a", annotations=[1]) | {
            "threadId": "t",
            "resourceId": "r",
            "type": "text",
        }
        message = read(full)
        assert message == full
        message["content"]["parts"][2]["beam"].append(2)
        assert strange == {"type": "hologram", "beam": [1]}

    def test_a_legacy_flat_text_becomes_a_part(self) -> None:
        legacy = {"role": "user", "content": {"content": "old"}}
        assert read(legacy)["content"] == {"format": 2, "parts": [text("old")], "content": "old"}
        assert parts({"role": "user", "content": {"parts": [], "content": "old"}}) == [text("old")]
        assert parts({"role": "assistant", "content": {"parts": [tool()], "content": "old"}}) == [
            text("old"),
            tool(),
        ]

    def test_parts_win_over_the_flat_text(self) -> None:
        content = read(stored(text("part"), content="flat"))["content"]
        assert content["parts"] == [text("part")]
        assert content["content"] == "part"

    def test_a_datetime_is_a_time(self) -> None:
        given_time = {"role": "user", "content": "x", "createdAt": datetime(2026, 1, 31, 12, tzinfo=UTC)}
        assert read(given_time)["createdAt"] == NOW

    @pytest.mark.parametrize(
        ("given_part", "expected"),
        [
            (text("hi"), text("hi")),
            (
                {"type": "image_url", "image_url": {"url": "https://x/a.png"}},
                {"type": "image", "image": "https://x/a.png"},
            ),
            (
                {"type": "image_url", "image_url": "https://x/a.png"},
                {"type": "image", "image": "https://x/a.png"},
            ),
            (
                {"type": "image", "image": "QUJD", "mediaType": "image/png"},
                {"type": "image", "image": "QUJD", "mimeType": "image/png"},
            ),
            (
                {"type": "file", "data": "QUJD", "mediaType": "text/csv", "filename": "a.csv"},
                {"type": "file", "data": "QUJD", "mimeType": "text/csv", "filename": "a.csv"},
            ),
            (
                {
                    "type": "file",
                    "file": {"file_data": "data:application/pdf;base64,QUJD", "filename": "a.pdf"},
                },
                {
                    "type": "file",
                    "data": "data:application/pdf;base64,QUJD",
                    "mimeType": "application/pdf",
                    "filename": "a.pdf",
                },
            ),
            ({"type": "input_text", "text": "a"}, {"type": "text", "text": "a"}),
            ({"type": "output_text", "text": "a", "annotations": []}, {"type": "text", "text": "a"}),
            (
                {"type": "input_image", "image_url": "https://x/a.png"},
                {"type": "image", "image": "https://x/a.png"},
            ),
            (
                {"type": "input_file", "file_data": "data:application/pdf;base64,QUJD", "filename": "a.pdf"},
                {
                    "type": "file",
                    "data": "data:application/pdf;base64,QUJD",
                    "mimeType": "application/pdf",
                    "filename": "a.pdf",
                },
            ),
            (
                {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}},
                {"type": "file", "data": "QUJD", "mimeType": "audio/mpeg"},
            ),
            (
                {"type": "reasoning", "text": "hm", "providerOptions": {"p": {"signature": "s"}}},
                {
                    "type": "reasoning",
                    "reasoning": "hm",
                    "details": [{"type": "text", "text": "hm"}],
                    "providerMetadata": {"p": {"signature": "s"}},
                },
            ),
            (
                {"type": "tool-call", "toolCallId": "c1", "toolName": "weather", "input": {"city": "Oslo"}},
                tool(),
            ),
            (
                {"type": "tool-call", "toolCallId": "c1", "toolName": "weather", "args": {"city": "Oslo"}},
                tool(),
            ),
            (
                {"type": "reasoning", "text": "hm", "signature": "s"},
                {
                    "type": "reasoning",
                    "reasoning": "hm",
                    "details": [{"type": "text", "text": "hm", "signature": "s"}],
                },
            ),
            (
                {"type": "redacted-reasoning", "data": "xyz"},
                {"type": "reasoning", "reasoning": "", "details": [{"type": "redacted", "data": "xyz"}]},
            ),
            (
                {
                    "type": "tool-weather",
                    "toolCallId": "c1",
                    "state": "input-available",
                    "input": {"city": "Oslo"},
                    "callProviderMetadata": {"google": {"thoughtSignature": "s"}},
                },
                tool() | {"providerMetadata": {"google": {"thoughtSignature": "s"}}},
            ),
            (
                {
                    "type": "dynamic-tool",
                    "toolName": "weather",
                    "toolCallId": "c1",
                    "state": "output-error",
                    "rawInput": "{oops",
                    "errorText": "no JSON",
                },
                tool(state="output-error", args="{oops", errorText="no JSON"),
            ),
            ({"type": "hologram", "beam": 7}, {"type": "hologram", "beam": 7}),
            ({"type": "data-x", "data": {"a": 1}}, {"type": "data-x", "data": {"a": 1}}),
        ],
    )
    def test_foreign_parts(self, given_part: Any, expected: Any) -> None:
        assert parts({"role": "user", "content": [given_part]}) == [expected]

    @pytest.mark.parametrize(
        ("output", "outcome"),
        [
            ({"output": {"type": "json", "value": {"t": 21}}}, {"state": "result", "result": {"t": 21}}),
            ({"output": {"type": "text", "value": "warm"}}, {"state": "result", "result": "warm"}),
            ({"result": {"t": 21}}, {"state": "result", "result": {"t": 21}}),
            ({"output": {"type": "error-text", "value": "no"}}, {"state": "output-error", "errorText": "no"}),
            ({"result": {"e": 1}, "isError": True}, {"state": "output-error", "errorText": '{"e": 1}'}),
        ],
    )
    def test_a_tool_result_joins_its_call(self, output: Any, outcome: Any) -> None:
        call = {"type": "tool-call", "toolCallId": "c1", "toolName": "weather", "input": {"city": "Oslo"}}
        result = {"type": "tool-result", "toolCallId": "c1", "toolName": "weather", **output}
        assert parts({"role": "assistant", "content": [call, text("so"), result]}) == [
            tool(**outcome),
            text("so"),
        ]
        assert parts({"role": "assistant", "content": [result, call]}) == [tool(**outcome)]
        alone = parts({"role": "tool", "content": [result]})
        assert alone == [tool(args={}, **outcome)]

    def test_a_part_about_a_call_is_no_call(self) -> None:
        asked = {"type": "tool-approval-request", "approvalId": "a", "toolCallId": "c1"}
        assert parts({"role": "assistant", "content": [asked]}) == [asked]
        named = {"type": "tool-error", "toolCallId": "c1", "state": "input-available", "input": {}}
        assert parts({"role": "assistant", "parts": [named]}) == [tool(toolName="error", args={})]

    def test_a_joined_result_keeps_what_both_say_to_the_provider(self) -> None:
        call = {"type": "tool-call", "toolCallId": "c1", "toolName": "weather", "input": {"city": "Oslo"}}
        result = {"type": "tool-result", "toolCallId": "c1", "toolName": "weather", "output": 21}
        content = [call | {"providerOptions": {"p": 1}}, result | {"providerOptions": {"q": 2}}]
        assert parts({"role": "assistant", "content": content}) == [
            tool(state="result", result=21) | {"providerMetadata": {"p": 1, "q": 2}}
        ]

    def test_a_call_that_is_told_again_does_not_lose_its_result(self) -> None:
        told = {"type": "tool-weather", "toolCallId": "c1", "input": {"city": "Oslo"}}
        done = told | {"state": "output-available", "output": 21}
        for again in (
            [done, told | {"state": "input-available"}],
            [told | {"state": "input-streaming"}, done],
        ):
            assert parts({"role": "assistant", "parts": again}) == [tool(state="result", result=21)]

    @pytest.mark.parametrize("key", ["providerOptions", "providerMetadata", "experimental_providerMetadata"])
    def test_what_a_message_says_to_the_provider_is_kept(self, key: Any) -> None:
        message = {"role": "user", "content": "hi", key: {"p": {"cache": True}}, "annotations": [{"a": 1}]}
        content = read(message)["content"]
        assert content["providerMetadata"] == {"p": {"cache": True}}
        assert content["annotations"] == [{"a": 1}]

    def test_openai_tool_calls(self) -> None:
        calls = [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
        ]
        assert parts({"role": "assistant", "content": None, "tool_calls": calls}) == [tool()]
        assert parts({"role": "assistant", "content": "well", "tool_calls": calls}) == [text("well"), tool()]

    def test_arguments_that_are_no_json_stay_text(self) -> None:
        calls = [{"id": "c1", "function": {"name": "weather", "arguments": "{oops"}}]
        assert parts({"role": "assistant", "content": "", "tool_calls": calls})[1] == tool(args="{oops")

    def test_openai_tool_answer_is_an_assistant_part(self) -> None:
        message = read({"role": "tool", "tool_call_id": "c1", "content": "21 degrees"})
        assert message["role"] == "assistant"
        assert message["content"]["parts"] == [
            tool(state="result", toolName="unknown", args={}, result="21 degrees")
        ]
        by_parts = {
            "role": "tool",
            "tool_call_id": "c1",
            "name": "weather",
            "content": [text("21 "), text("degrees")],
        }
        assert parts(by_parts) == [tool(state="result", args={}, result="21 degrees")]

    def test_ui_messages(self) -> None:
        ui = {
            "id": "u",
            "role": "assistant",
            "metadata": {"k": 1},
            "parts": [
                {"type": "step-start"},
                {"type": "reasoning", "text": "hm"},
                {
                    "type": "tool-weather",
                    "toolCallId": "c1",
                    "state": "output-available",
                    "input": {"city": "Oslo"},
                    "output": 21,
                },
                {
                    "type": "dynamic-tool",
                    "toolName": "x",
                    "toolCallId": "c2",
                    "state": "output-error",
                    "errorText": "e",
                },
                {"type": "file", "url": "data:image/png;base64,QUJD", "mediaType": "image/png"},
                {"type": "source-url", "sourceId": "s", "url": "https://x", "title": "X"},
            ],
        }
        message = read(ui)
        assert message["content"]["metadata"] == {"k": 1}
        assert message["content"]["parts"] == [
            {"type": "step-start"},
            {"type": "reasoning", "reasoning": "hm", "details": [{"type": "text", "text": "hm"}]},
            tool(state="result", result=21),
            tool(state="output-error", toolCallId="c2", toolName="x", args={}, errorText="e"),
            {"type": "file", "data": "data:image/png;base64,QUJD", "mimeType": "image/png"},
            {"type": "source", "source": {"sourceType": "url", "id": "s", "url": "https://x", "title": "X"}},
        ]

    @pytest.mark.parametrize(
        ("like", "field"),
        [
            (None, "messages.3"),
            (7, "messages.3"),
            ({"content": "x"}, "messages.3.role"),
            ({"role": "robot", "content": "x"}, "messages.3.role"),
            ({"role": ["user"], "content": "x"}, "messages.3.role"),
            ({"role": "user"}, "messages.3.content"),
            ({"role": "user", "content": None}, "messages.3.content"),
            ({"role": "user", "content": 7}, "messages.3.content"),
            ({"role": "user", "content": {"format": 2}}, "messages.3.content"),
            ({"role": "user", "content": {"parts": "x"}}, "messages.3.content.parts"),
            ({"role": "user", "content": {"content": 7}}, "messages.3.content.content"),
            ({"role": "user", "content": {"content": "x", "metadata": 7}}, "messages.3.content.metadata"),
            ({"role": "user", "content": {"parts": ["x"]}}, "messages.3.content.parts.0"),
            (
                {"role": "user", "content": {"parts": [text("a"), {"text": "b"}]}},
                "messages.3.content.parts.1.type",
            ),
            ({"role": "user", "content": {"parts": [{"type": "text"}]}}, "messages.3.content.parts.0.text"),
            ({"role": "user", "content": ["x"]}, "messages.3.content.0"),
            ({"role": "user", "content": [{"type": "text", "text": 7}]}, "messages.3.content.0.text"),
            ({"role": "user", "content": [{"type": "image_url"}]}, "messages.3.content.0.image_url.url"),
            ({"role": "user", "content": [{"type": "file"}]}, "messages.3.content.0"),
            (
                {"role": "user", "content": [{"type": "file", "data": "QUJD", "mediaType": 7}]},
                "messages.3.content.0.mimeType",
            ),
            (
                {"role": "user", "content": [{"type": "file", "data": "QUJD", "filename": 7}]},
                "messages.3.content.0.filename",
            ),
            (
                {"role": "user", "content": [{"type": "image", "image": "QUJD", "mediaType": 7}]},
                "messages.3.content.0.mimeType",
            ),
            ({"role": "assistant", "content": [{"type": "tool-call"}]}, "messages.3.content.0.toolCallId"),
            (
                {"role": "assistant", "content": {"parts": [{"type": "tool-invocation"}]}},
                "messages.3.content.parts.0.toolInvocation",
            ),
            (
                {"role": "assistant", "content": {"parts": [tool(toolCallId=None)]}},
                "messages.3.content.parts.0.toolInvocation.toolCallId",
            ),
            *[
                ({"role": "assistant", "content": {"parts": [part]}}, f"messages.3.content.parts.0.{field}")
                for part, field in [
                    ({"type": "reasoning", "reasoning": 7}, "reasoning"),
                    ({"type": "reasoning", "details": 7}, "details"),
                    ({"type": "reasoning", "details": [{}, "x"]}, "details.1"),
                    ({"type": "file", "data": {}}, "data"),
                    ({"type": "source"}, "source"),
                    ({"type": "hologram", "providerMetadata": 7}, "providerMetadata"),
                    (tool(errorText=7), "toolInvocation.errorText"),
                    (tool(approval=True), "toolInvocation.approval"),
                ]
            ],
            ({"role": "assistant", "tool_calls": {"id": 1}}, "messages.3.tool_calls"),
            ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages.3.tool_calls.0.function.name"),
            ({"role": "tool", "content": None, "tool_call_id": 7}, "messages.3.tool_call_id"),
            ({"role": "user", "content": "x", "id": 7}, "messages.3.id"),
            ({"role": "user", "content": "x", "threadId": 7}, "messages.3.threadId"),
            ({"role": "user", "content": "x", "createdAt": "soon"}, "messages.3.createdAt"),
            ({"role": "user", "content": "x", "createdAt": 7}, "messages.3.createdAt"),
            (
                {"role": "user", "content": "x", "createdAt": "9999-12-31T23:59:59.999Z"},
                "messages.3.createdAt",
            ),
        ],
    )
    def test_what_cannot_be_read_is_named(self, like: Any, field: Any) -> None:
        with pytest.raises(InvalidMessageError) as caught:
            read(like, "messages.3")
        assert caught.value.field == field
        assert caught.value.code == "INVALID_MESSAGE_CONTENT"
        assert str(caught.value).startswith(f"{field} ")

    def test_nesting_is_bounded(self) -> None:
        deep: Any = {}
        for _ in range(500):
            deep = {"d": deep}
        with pytest.raises(InvalidMessageError, match=r"message\.content nests deeper than 200 levels"):
            read({"role": "user", "content": [{"type": "data-x", "data": deep}]})
        with pytest.raises(InvalidMessageError, match="nests deeper"):
            read(stored(text("a"), metadata=deep))
        with pytest.raises(ValueError, match="nests deeper than 3 levels"):
            copy_json(deep, 3)


odd: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.just({"url": "x"}), st.just([{}])
)
types = st.sampled_from(
    [
        *(
            "text",
            "reasoning",
            "image",
            "image_url",
            "file",
            "input_image",
            "input_file",
            "input_audio",
            "source",
            "source-url",
            "error",
        ),
        *("tool-call", "tool-result", "tool-invocation", "tool-x", "dynamic-tool", "step-start", "hologram"),
    ]
)
keys = [
    *(
        "text",
        "reasoning",
        "details",
        "image",
        "image_url",
        "file",
        "data",
        "url",
        "mediaType",
        "input_audio",
    ),
    *("toolCallId", "toolName", "input", "output", "state", "source", "providerMetadata"),
]
invocations = st.fixed_dictionaries(
    {
        "state": st.sampled_from(["call", "result", "output-error", "output-denied"]),
        "toolCallId": st.just("c"),
    },
    optional=dict.fromkeys(["toolName", "args", "result", "errorText", "approval", "modelOutput"], odd),
)
part_likes = st.fixed_dictionaries(
    {"type": types}, optional=dict.fromkeys(keys, odd) | {"toolInvocation": invocations | odd}
)
part_lists = st.lists(part_likes | odd, max_size=3) | odd
message_likes = odd | st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"]) | odd},
    optional={
        "content": part_lists
        | st.fixed_dictionaries({"parts": part_lists}, optional={"content": odd, "metadata": odd}),
        "parts": part_lists,
        "reasoning": odd,
        "toolInvocations": odd | st.lists(invocations, max_size=2),
        "experimental_attachments": odd | st.lists(st.fixed_dictionaries({"url": odd}), max_size=2),
        "tool_calls": odd | st.lists(st.fixed_dictionaries({"id": odd, "function": odd})),
        "tool_call_id": odd,
        "metadata": odd,
    },
)


@pytest.mark.parametrize("odd_one", [None, [{}], {"url": "x"}])
@pytest.mark.parametrize("as_parts", [True, False])
def test_only_a_tool_invocation_has_an_invocation(odd_one: Any, as_parts: bool) -> None:
    parts = [{"type": "error", "toolInvocation": odd_one}]
    message = read({"role": "assistant", "content": {"format": 2, "parts": parts} if as_parts else parts})
    assert message["content"]["parts"] == [{"type": "error"}]
    conversation_entries([message])


@settings(max_examples=300, deadline=None)
@given(message_likes)
def test_anything_is_read_or_refused_with_a_reason(like: Any) -> None:
    with suppress(InvalidMessageError):
        message = read(like)
        assert read(message) == message
        assert is_readable(message) or message["role"] == "system"
        conversation_entries([message])
        to_ui(message)


def test_a_call_of_a_tool_without_a_name_is_one() -> None:
    """R-TL-4: models make such, and are told that there is no such tool."""
    call = {"type": "tool-invocation", "toolInvocation": {**CALL, "toolName": ""}}
    assert read(stored(call)) == stored(call)
    assert is_readable(stored(call))
    assert read(to_ui(stored(call)))["content"]["parts"] == [call]
    asked = {"type": "tool-call", "toolCallId": CALL["toolCallId"], "toolName": "", "input": {}}
    function = {"name": "", "arguments": "{}"}
    for of_others in (
        {"content": [asked]},
        {"tool_calls": [{"id": CALL["toolCallId"], "function": function}]},
    ):
        [part] = read({"role": "assistant", **of_others})["content"]["parts"]
        assert part["toolInvocation"]["toolName"] == ""


spoilt = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "signal"]) | odd,
        "id": odd,
        "createdAt": odd | st.just("2026-01-31 12:00") | st.just("2026-01-31T12:00:00+00:00"),
        "content": odd
        | st.fixed_dictionaries(
            {}, optional={"parts": part_lists, "content": odd, "metadata": odd, "providerMetadata": odd}
        ),
    },
)


@settings(max_examples=300, deadline=None)
@given(spoilt, st.sets(st.sampled_from(["role", "id", "createdAt", "content"]), max_size=1))
def test_whatever_is_made_of_a_message_in_place_is_refused_or_can_be_read(made: Any, gone: Any) -> None:
    message: Any = {key: value for key, value in {**stored(text("a")), **made}.items() if key not in gone}
    if is_readable(message):
        refresh_flat(message)
        text_of(message)
        conversation_entries([message])
        to_ui(message)
        assert is_readable(read(message))


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"content": "hello"}, r"messages\.1\.content is not an object with a list of `parts`"),
        ({"content": {"parts": ["hello"]}}, r"messages\.1\.content\.parts\.0 is of type str"),
        ({"content": {"parts": [text(5)]}}, r"messages\.1\.content\.parts\.0\.text is of type int"),
        (
            {"content": {"parts": [{"type": "file", "data": "QUJD", "mediaType": 5}]}},
            r"messages\.1\.content\.parts\.0\.mediaType is of type int",
        ),
        (
            {"content": {"parts": [{"type": "image", "image": "QUJD", "mediaType": ["image/png"]}]}},
            r"messages\.1\.content\.parts\.0\.mediaType is of type list",
        ),
        ({"content": {"parts": [], "metadata": 5}}, r"messages\.1\.content\.metadata is of type int"),
        ({"role": "system"}, r"messages\.1\.role is 'system'; use one of user, assistant, signal"),
        ({"id": None}, r"messages\.1\.id is missing"),
        ({"createdAt": 5}, r"messages\.1\.createdAt is 5; give a time"),
    ],
)
def test_what_an_edit_in_place_has_spoilt_is_told_with_its_place(edit: Any, told: str) -> None:
    check_stored([stored(text("a"))])
    with pytest.raises(InvalidMessageError, match=told):
        check_stored([stored(text("a")), {**stored(text("b")), **edit}])
