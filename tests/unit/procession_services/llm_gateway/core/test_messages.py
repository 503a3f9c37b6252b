"""The contract's prompt as chat messages (core.md 6.1)."""

import json
from typing import Any

import pytest

from procession_services.llm_gateway.core.messages import openai_messages


def one(entry: dict[str, Any], provider: str = "openai") -> dict[str, Any]:
    [message] = openai_messages([entry], provider)
    return message


def tool_result(output: Any) -> Any:
    part = {"type": "tool-result", "toolCallId": "c1", "toolName": "f", "output": output}
    message = one({"role": "tool", "content": [part]})
    assert (message["role"], message["tool_call_id"]) == ("tool", "c1")
    return message["content"]


def user_part(part: dict[str, Any]) -> dict[str, Any]:
    content = one({"role": "user", "content": [part]})["content"]
    assert len(content) == 1
    return dict(content[0])


def test_system_and_user_texts_stay_strings() -> None:
    prompt: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "user", "content": "there"},
    ]
    assert openai_messages(prompt) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "user", "content": "there"},
    ]


def test_several_user_texts_stay_apart() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert one({"role": "user", "content": parts})["content"] == parts


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"data": "QUJD", "mediaType": "image/png"}, "data:image/png;base64,QUJD"),
        ({"data": "data:image/gif;base64,QUJD"}, "data:image/gif;base64,QUJD"),
        ({"data": "https://x.org/a.png", "mimeType": "image/png"}, "https://x.org/a.png"),
        ({"data": "https://x.org/a", "mediaType": "image/*"}, "https://x.org/a"),
        ({"data": "/9j/4AAQ", "mediaType": "image/*"}, "data:image/jpeg;base64,/9j/4AAQ"),
        ({"data": "iVBORw0K"}, "data:image/png;base64,iVBORw0K"),
    ],
)
def test_images_become_image_urls(part: dict[str, Any], expected: str) -> None:
    assert user_part({"type": "file", **part}) == {"type": "image_url", "image_url": {"url": expected}}


def test_other_files_become_file_parts() -> None:
    pdf = {"type": "file", "data": "QUJD", "mediaType": "application/pdf", "filename": "a.pdf"}
    assert user_part(pdf) == {
        "type": "file",
        "file": {"file_data": "data:application/pdf;base64,QUJD", "filename": "a.pdf"},
    }
    remote = {"type": "file", "data": "https://x.org/a.pdf", "mediaType": "application/pdf"}
    assert user_part(remote)["file"] == {"file_id": "https://x.org/a.pdf", "format": "application/pdf"}
    sound = {"type": "file", "data": "data:audio/wav;base64,QUJD", "mediaType": "audio/wav"}
    assert user_part(sound) == {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}


def test_assistant_texts_are_joined_and_calls_carry_json() -> None:
    content = [
        {"type": "reasoning", "text": "hm"},
        {"type": "text", "text": "Let me "},
        {"type": "text", "text": "look."},
        {"type": "tool-call", "toolCallId": "c1", "toolName": "f", "input": {"q": "ä", "n": 1}},
    ]
    message = one({"role": "assistant", "content": content})
    assert message["content"] == "Let me look."
    [call] = message["tool_calls"]
    assert (call["id"], call["type"], call["function"]["name"]) == ("c1", "function", "f")
    assert json.loads(call["function"]["arguments"]) == {"q": "ä", "n": 1}
    assert message.keys() == {"role", "content", "tool_calls"}


def test_an_assistant_turn_of_calls_only_has_no_content() -> None:
    call = {"type": "tool-call", "toolCallId": "c1", "toolName": "f", "input": None}
    message = one({"role": "assistant", "content": [call]})
    assert message["content"] is None
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize("provider", ["openai", "anthropic", "deepseek"])
def test_a_message_of_nothing_is_left_out(provider: str) -> None:
    thought = {"type": "reasoning", "text": "hm", "signature": "s"}
    file = {"type": "file", "data": "QUJD", "mediaType": "image/png"}
    nothing: list[dict[str, Any]] = [
        {"role": "assistant", "content": [thought]},
        {"role": "assistant", "content": [file]},
        {"role": "assistant", "content": []},
        {"role": "user", "content": []},
        {"role": "user", "content": [thought]},
    ]
    asked: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    assert openai_messages([asked, *nothing], f"{provider}/x") == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("get-weather_2", "get-weather_2"),
        ("multi_tool_use.parallel", "multi_tool_use_parallel"),
        ("find it!", "find_it_"),
        ("f" * 65, "f" * 64),
        ("", "_"),
        (None, "_"),
        ("geo.lookup", "geo.lookup"),
    ],
)
def test_a_name_that_a_model_made_up_is_one_that_providers_take(told: Any, expected: str) -> None:
    """They refuse the whole request, and with memory every later one of the thread (R-TL-4)."""
    call = {"type": "tool-call", "toolCallId": "c1", "toolName": told, "input": {}}
    [message] = openai_messages([{"role": "assistant", "content": [call]}], "openai", {"geo.lookup"})
    assert message["tool_calls"][0]["function"]["name"] == expected


def test_what_the_provider_ran_itself_is_not_repeated() -> None:
    names = {"toolCallId": "c1", "toolName": "web"}
    content = [
        {"type": "tool-call", **names, "input": {}, "providerExecuted": True},
        {"type": "tool-result", **names, "output": {"type": "text", "value": "found"}},
        {"type": "text", "text": "It says so."},
    ]
    assert one({"role": "assistant", "content": content}) == {"role": "assistant", "content": "It says so."}


def test_signed_reasoning_goes_back_to_those_who_sign() -> None:
    content = [
        {"type": "reasoning", "text": "hm", "signature": "S1"},
        {"type": "reasoning", "text": "", "redactedData": "R"},
        {"type": "reasoning", "text": "ha", "providerOptions": {"anthropic": {"signature": "S2"}}},
        {"type": "reasoning", "text": "unsigned"},
        {"type": "text", "text": "so"},
    ]
    message = one({"role": "assistant", "content": content}, "anthropic")
    assert message["thinking_blocks"] == [
        {"type": "thinking", "thinking": "hm", "signature": "S1"},
        {"type": "redacted_thinking", "data": "R"},
        {"type": "thinking", "thinking": "ha", "signature": "S2"},
    ]
    assert "thinking_blocks" not in one({"role": "assistant", "content": content}, "openai")


def test_a_call_keeps_its_own_providers_metadata() -> None:
    part = {
        "type": "tool-call",
        "toolCallId": "c1",
        "toolName": "f",
        "input": {},
        "providerMetadata": {"gemini": {"thought_signature": "S"}},
    }
    entry = {"role": "assistant", "content": [part]}
    assert one(entry, "gemini")["tool_calls"][0]["provider_specific_fields"] == {"thought_signature": "S"}
    assert "provider_specific_fields" not in one(entry, "openai")["tool_calls"][0]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"type": "text", "value": "raw"}, "raw"),
        ({"type": "json", "value": {"x": 1, "ü": [True]}}, '{"x":1,"ü":[true]}'),
        ({"type": "json", "value": "quoted"}, '"quoted"'),
        ({"type": "error-text", "value": "went wrong"}, "went wrong"),
        ("bare", "bare"),
        ({"no": "encoding"}, '{"no":"encoding"}'),
    ],
)
def test_tool_outputs(output: Any, expected: str) -> None:
    assert tool_result(output) == expected


def test_a_tool_may_answer_with_parts() -> None:
    value = [{"type": "text", "text": "see"}, {"type": "media", "data": "QUJD", "mediaType": "image/png"}]
    assert tool_result({"type": "content", "value": value}) == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
    ]


def test_each_result_is_a_message() -> None:
    results = [
        {
            "type": "tool-result",
            "toolCallId": name,
            "toolName": "f",
            "output": {"type": "text", "value": name},
        }
        for name in ("a", "b")
    ]
    messages = openai_messages([{"role": "tool", "content": results}])
    assert [message["tool_call_id"] for message in messages] == ["a", "b"]


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(ValueError, match="role 'oracle'"):
        openai_messages([{"role": "oracle", "content": "x"}])


def test_the_prompt_is_left_as_it_is() -> None:
    prompt = [
        {"role": "assistant", "content": [{"type": "tool-call", "toolCallId": "c", "input": {"a": []}}]}
    ]
    before = json.dumps(prompt)
    openai_messages(prompt, "anthropic")
    assert json.dumps(prompt) == before


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("openai/gpt-4o", "call_1"),
        ("anthropic/claude-sonnet-4-5", "call_1"),
        ("gemini/gemini-3-pro-preview", "call_1__thought__QUJD"),
        ("vertex_ai/gemini-3-pro-preview", "call_1__thought__QUJD"),
        ("openai/Gemini-behind-a-proxy", "call_1__thought__QUJD"),
    ],
)
def test_geminis_signatures_do_not_go_to_others_in_the_ids_of_calls(model: str, expected: str) -> None:
    call = {"toolCallId": "call_1__thought__QUJD", "toolName": "f"}
    prompt = [
        {"role": "assistant", "content": [{"type": "tool-call", **call, "input": {}}]},
        {"role": "tool", "content": [{"type": "tool-result", **call, "output": "x"}]},
    ]
    asked, told = openai_messages(prompt, model)
    assert [asked["tool_calls"][0]["id"], told["tool_call_id"]] == [expected] * 2


@pytest.mark.parametrize("model", ["moonshot/kimi-k2-thinking", "deepseek/deepseek-reasoner"])
def test_reasoning_goes_back_as_text_to_who_demands_it(model: str) -> None:
    thought = [{"type": "reasoning", "text": "h"}, {"type": "reasoning", "text": "m"}]
    called = {"type": "tool-call", "toolCallId": "c1", "toolName": "f", "input": {}}
    text = {"type": "text", "text": "x"}
    contents = [[*thought, called], [called], [*thought, text], [text]]
    prompt = [{"role": "assistant", "content": content} for content in contents]
    told = [message.get("reasoning_content") for message in openai_messages(prompt, model)]
    assert told == ["hm", " ", "hm", None]
    assert not any("reasoning_content" in message for message in openai_messages(prompt, "openai/gpt-4o"))


@pytest.mark.parametrize("name", ["cacheControl", "cache_control"])
@pytest.mark.parametrize("field", ["providerOptions", "providerMetadata"])
def test_what_is_to_be_kept_by_the_provider_is_marked(name: str, field: str) -> None:
    kept = {"type": "ephemeral"}
    mark = {field: {"anthropic": {name: kept}}}
    result = {"type": "tool-result", "toolCallId": "c", "output": {"type": "text", "value": "r"}}
    prompt: list[dict[str, Any]] = [
        {"role": "system", "content": "s", **mark},
        {"role": "user", "content": [{"type": "text", "text": "a", **mark}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "c", **mark}]},
        {"role": "tool", "content": [{**result, **mark}]},
        {"role": "user", "content": "d", **mark},
        {"role": "user", "content": "", **mark},
    ]
    assert openai_messages(prompt, "anthropic/claude") == [
        {"role": "system", "content": [{"type": "text", "text": "s", "cache_control": kept}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a", "cache_control": kept}, {"type": "text", "text": "b"}],
        },
        {"role": "assistant", "content": "c", "cache_control": kept},
        {"role": "tool", "tool_call_id": "c", "content": "r", "cache_control": kept},
        {"role": "user", "content": [{"type": "text", "text": "d", "cache_control": kept}]},
    ]
    for other in ("openai/gpt", "bedrock/claude", "gemini/x"):
        assert "cache_control" not in json.dumps(openai_messages(prompt, other))
