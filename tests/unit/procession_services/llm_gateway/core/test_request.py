"""A model call as LiteLLM's arguments (core.md 17.4, 17.7, 17.8)."""

from typing import Any

import pytest

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.request import Timeouts, litellm_kwargs, timeouts

TOOLS: dict[str, dict[str, Any]] = {
    "search": {
        "description": "finds",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
    },
    "stop": {},
}


def kwargs(model: str = "openai/gpt-4o", **fields: Any) -> dict[str, Any]:
    return litellm_kwargs(ModelCall(model=model, prompt=[{"role": "user", "content": "hi"}], **fields))


def names(arguments: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in arguments["tools"]]


def test_a_plain_call_is_a_stream_with_usage_and_without_retries() -> None:
    assert kwargs() == {
        "model": "openai/gpt-4o",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "num_retries": 0,
        "max_retries": 0,
        "drop_params": True,
    }


def test_settings_get_the_providers_names() -> None:
    settings = {
        "temperature": 0,
        "maxOutputTokens": 10,
        "topP": 0.5,
        "topK": 3,
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.2,
        "stopSequences": ["END"],
        "seed": 7,
        "maxRetries": 5,
    }
    given = kwargs("together_ai/x", model_settings=settings)
    assert given["max_retries"] == given["num_retries"] == 0
    assert {name: given[name] for name in given.keys() - kwargs().keys()} == {
        "temperature": 0,
        "max_tokens": 10,
        "top_p": 0.5,
        "top_k": 3,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "stop": ["END"],
        "seed": 7,
    }
    assert "temperature" not in kwargs(model_settings={"temperature": None})


def test_openai_itself_gets_no_top_k() -> None:
    assert "top_k" not in kwargs(model_settings={"topK": 3})
    assert kwargs(model_settings={"topK": 3}, api_base="http://vllm")["top_k"] == 3


@pytest.mark.parametrize("model", ["azure/gpt-4o", "groq/llama", "mistral/large"])
def test_who_refuses_top_k_gets_none_wherever_they_are(model: str) -> None:
    for base in (None, "http://place"):
        assert "top_k" not in kwargs(model, model_settings={"topK": 3}, api_base=base)


@pytest.mark.parametrize("provider", ["ollama", "ollama_chat"])
def test_settings_of_ollama_are_its_options(provider: str) -> None:
    settings = {"temperature": 0.5, "maxOutputTokens": 5, "frequencyPenalty": 0, "presencePenalty": 1}
    given = kwargs(f"{provider}/x", model_settings=settings)
    options = {"temperature": 0.5, "num_predict": 5, "frequency_penalty": 0, "presence_penalty": 1}
    assert given["extra_body"] == {"options": options}
    assert not given.keys() & {"temperature", "max_tokens", *options}
    assert "extra_body" not in kwargs(f"{provider}/x")


def test_tools_and_choice() -> None:
    given = kwargs(tools=TOOLS)
    assert given["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "search",
                "description": "finds",
                "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
            },
        },
        {
            "type": "function",
            "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}},
        },
    ]
    assert given["tool_choice"] == "auto"
    assert kwargs(tools=TOOLS, tool_choice="required")["tool_choice"] == "required"
    demanded = kwargs(tools=TOOLS, tool_choice={"type": "tool", "toolName": "stop"})
    assert demanded["tool_choice"] == {"type": "function", "function": {"name": "stop"}}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": TOOLS, "tool_choice": "none"},
        {"tools": {}, "tool_choice": "required"},
        {"tools": TOOLS, "active_tools": []},
        {"tools": TOOLS, "active_tools": ["other"]},
    ],
)
def test_without_visible_tools_there_is_neither_tool_nor_choice(fields: dict[str, Any]) -> None:
    assert not kwargs(**fields).keys() & {"tools", "tool_choice"}


def test_calls_of_tools_that_there_are_keep_their_names() -> None:
    call = {"type": "tool-call", "toolCallId": "c1", "toolName": "geo.lookup", "input": {}}
    prompt = [{"role": "assistant", "content": [call]}]
    arguments = litellm_kwargs(ModelCall(model="gemini/m", prompt=prompt, tools={"geo.lookup": {}}))
    assert arguments["messages"][0]["tool_calls"][0]["function"]["name"] == "geo.lookup"


def test_active_tools_filter_in_the_order_of_the_tools() -> None:
    assert names(kwargs(tools=TOOLS, active_tools=["stop"])) == ["stop"]
    assert names(kwargs(tools=TOOLS, active_tools=["stop", "search"])) == ["search", "stop"]
    assert names(kwargs(tools=TOOLS, active_tools=None)) == ["search", "stop"]


@pytest.mark.parametrize("choice", ["any", {"type": "tool"}, 3])
def test_an_unknown_choice_is_refused(choice: Any) -> None:
    with pytest.raises(ValueError, match="toolChoice is"):
        kwargs(tools=TOOLS, tool_choice=choice)


def test_a_hidden_tool_cannot_be_demanded() -> None:
    with pytest.raises(ValueError, match="demands 'stop', but the model sees only search"):
        kwargs(tools=TOOLS, active_tools=["search"], tool_choice={"type": "tool", "toolName": "stop"})


def test_a_structured_answer_is_asked_for_by_its_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "number"}}}
    assert kwargs(response_format=schema)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "response", "schema": schema},
    }


def test_headers_of_the_call_win() -> None:
    given = kwargs(model_settings={"headers": {"x-a": "1", "x-b": "1"}}, headers={"x-b": "2"})
    assert given["extra_headers"] == {"x-a": "1", "x-b": "2"}


def test_address_and_key() -> None:
    given = kwargs(api_base="http://here", api_key="secret")
    assert (given["api_base"], given["api_key"]) == ("http://here", "secret")
    assert "secret" not in repr(ModelCall(model="openai/x", prompt=[], api_key="secret"))


def test_only_the_own_providers_options_count() -> None:
    options = {"openai": {"reasoningEffort": "low", "user": "u"}, "anthropic": {"thinking": {}}}
    given = kwargs(provider_options=options)
    assert (given["reasoning_effort"], given["user"]) == ("low", "u")
    assert not given.keys() & {"thinking", "extra_body"}
    assert kwargs("groq/x", provider_options=options) == {**kwargs(), "model": "groq/x"}


def test_thinking_is_translated() -> None:
    thinking = {"type": "enabled", "budgetTokens": 2000}
    given = kwargs("anthropic/claude", provider_options={"anthropic": {"thinking": thinking}})
    assert given["thinking"] == {"type": "enabled", "budget_tokens": 2000}


def test_other_options_join_the_body_and_never_become_settings_of_litellm() -> None:
    options = {"effort": "low", "api_base": "http://evil", "num_retries": 9}
    given = kwargs(provider_options={"openai": options})
    assert given["extra_body"] == options
    assert given["num_retries"] == 0
    assert "api_base" not in given


@pytest.mark.parametrize("name", ["model", "messages", "stream", "tools"])
def test_an_option_cannot_replace_the_call_itself(name: str) -> None:
    with pytest.raises(ValueError, match=rf"providerOptions\.openai may not set {name}"):
        kwargs(provider_options={"openai": {name: 1}})


@pytest.mark.parametrize("own", ["low", ["low"], 5])
def test_options_of_a_provider_are_an_object(own: Any) -> None:
    with pytest.raises(ValueError, match=r"providerOptions\.openai must be an object"):
        kwargs(provider_options={"openai": own})
    assert "extra_body" not in kwargs(provider_options={"openai": None})


@pytest.mark.parametrize(
    "own", [{"num_ctx": 9, "maxCompletionTokens": 3}, {"options": {"num_ctx": 9, "num_predict": 3}}]
)
def test_options_of_ollama_join_the_settings_of_the_call(own: dict[str, Any]) -> None:
    options, settings = {"ollama": {**own, "keep_alive": "5m"}}, {"maxOutputTokens": 5, "seed": 7}
    given = kwargs("ollama/x", provider_options=options, model_settings=settings)
    assert given["extra_body"] == {
        "keep_alive": "5m",
        "options": {"num_ctx": 9, "num_predict": 3, "seed": 7},
    }


def test_options_of_ollama_may_have_any_name() -> None:
    options = {"penalize_newline": False, "of_tomorrow": 1, "api_base": "http://evil"}
    given = kwargs("ollama/x", provider_options={"ollama": {"options": options}})
    assert given["extra_body"] == {"options": options}
    assert "api_base" not in given
    with pytest.raises(ValueError, match=r"providerOptions\.ollama\.options must be an object"):
        kwargs("ollama/x", provider_options={"ollama": {"options": 5}})


def test_anthropic_takes_known_options_only() -> None:
    with pytest.raises(ValueError, match="has no effort"):
        kwargs("anthropic/claude", provider_options={"anthropic": {"effort": "low"}})


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, Timeouts()),
        (1500, Timeouts(whole=1.5)),
        (0, Timeouts()),
        (-1, Timeouts()),
        (float("nan"), Timeouts()),
        (True, Timeouts()),
        ("soon", Timeouts()),
        ({"totalMs": 3000, "stepMs": 2000}, Timeouts(whole=2.0)),
        ({"firstChunkMs": 500, "chunkMs": 250}, Timeouts(first=0.5, between=0.25)),
    ],
)
def test_timeouts_are_milliseconds(setting: Any, expected: Timeouts) -> None:
    assert timeouts({"timeout": setting}) == expected
