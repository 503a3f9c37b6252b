"""Models through LiteLLM, against real servers on the loopback."""

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from importlib.util import find_spec, module_from_spec
from typing import Any

import pytest
import pytest_asyncio

from procession_schemas.chunks import Chunk
from procession_services.llm_gateway.core.adapter import REASONS
from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.providers import litellm_provider
from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider
from tests.unit.procession_services.llm_gateway.loopback import (
    Answer,
    ModelServer,
    event,
    failure,
    sse,
    stream,
)

COMPATIBLE = ["openai/demo", "hosted_vllm/demo"]
"""One model that LiteLLM reads with OpenAI's client, one that it reads with its own."""


@pytest_asyncio.fixture(params=[True, False], ids=["direct", "litellm"])
async def provider(request: pytest.FixtureRequest) -> AsyncIterator[LiteLLMProvider]:
    """Both ways to a provider: the same recorded streams must give the same chunks."""
    source = LiteLLMProvider(direct=request.param)
    yield source
    await source.aclose()


def call(server: ModelServer, model: str = "openai/demo", **fields: Any) -> ModelCall:
    prompt = [{"role": "user", "content": "hi"}]
    return ModelCall(**{"model": model, "prompt": prompt, "api_base": server.base, "api_key": "k", **fields})


async def read(provider: LiteLLMProvider, asked: ModelCall) -> list[Chunk]:
    async with aclosing(provider.stream(asked)) as answer:
        return [chunk async for chunks in answer for chunk in chunks]


async def failed(provider: LiteLLMProvider, asked: ModelCall) -> tuple[ProviderError, list[str]]:
    """Return the failure of a call, and the types of the chunks that came before it."""
    types: list[str] = []

    async def read_on() -> None:
        async for chunks in provider.stream(asked):
            types.extend(chunk["type"] for chunk in chunks)

    with pytest.raises(ProviderError) as raised:
        await read_on()
    return raised.value, types


def brief(chunks: list[Chunk]) -> list[Any]:
    """Reduce chunks to what matters here."""
    keys = ("text", "signature", "args", "argsTextDelta")
    return [
        (chunk["type"], *(chunk["payload"][key] for key in keys if key in chunk["payload"]))
        for chunk in chunks
        if chunk["type"] != "response-metadata"
    ]


def end(chunks: list[Chunk]) -> tuple[str, dict[str, Any]]:
    """Return the reason and the usage of an answer."""
    payload = chunks[-1]["payload"]
    return payload["stepResult"]["reason"], payload["output"]["usage"]


UNKNOWN_USAGE = {"inputTokens": None, "outputTokens": None, "totalTokens": None}


# --- answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", COMPATIBLE)
async def test_reasoning_text_calls_and_usage(provider: LiteLLMProvider, model: str) -> None:
    def tool(index: int, **function: Any) -> dict[str, Any]:
        named = {"id": f"c{index}", "type": "function"} if "name" in function else {}
        return event(tool_calls=[{"index": index, **named, "function": function}])

    answer = stream(
        event(role="assistant", content=""),
        event(reasoning_content="hm"),
        event(content="He"),
        event(content="llo"),
        tool(0, name="f", arguments='{"a": 1}'),
        tool(1, name="g", arguments=""),
        tool(1, arguments='{"b"'),
        tool(1, arguments=": 2}"),
        event(finish="tool_calls"),
        event(usage={"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}),
    )
    async with ModelServer(answer) as server:
        chunks = await read(provider, call(server, model))
    assert chunks[0] == {
        "type": "response-metadata",
        "payload": {"id": "resp-1", "modelId": "demo-1", "timestamp": "2026-01-01T00:00:00.000Z"},
    }
    assert brief(chunks) == [
        ("reasoning-start",),
        ("reasoning-delta", "hm"),
        ("reasoning-end",),
        ("text-start",),
        ("text-delta", "He"),
        ("text-delta", "llo"),
        ("text-end",),
        ("tool-call", {"a": 1}),
        ("tool-call-input-streaming-start",),
        ("tool-call-delta", '{"b"'),
        ("tool-call-delta", ": 2}"),
        ("tool-call-input-streaming-end",),
        ("tool-call", {"b": 2}),
        ("finish",),
    ]
    assert end(chunks) == ("tool-calls", {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15})


@pytest.mark.parametrize("model", COMPATIBLE)
async def test_nothing_is_invented_that_the_provider_did_not_say(
    provider: LiteLLMProvider, model: str
) -> None:
    async with ModelServer(stream(event(content="same"), *[event(content="same")] * 150)) as server:
        chunks = await read(provider, call(server, model))
    assert len([chunk for chunk in chunks if chunk["type"] == "text-delta"]) == 151
    assert end(chunks) == ("other", UNKNOWN_USAGE)


async def test_chunks_come_while_the_provider_still_writes(provider: LiteLLMProvider) -> None:
    async with (
        ModelServer(Answer(sse(event(content="He"), event(content="llo")), end="hang")) as server,
        aclosing(provider.stream(call(server))) as answer,
    ):
        seen = brief(await anext(answer))
        while len(seen) < 3:  # two events may come in one read or in two
            seen += brief(await anext(answer))
        assert seen == [("text-start",), ("text-delta", "He"), ("text-delta", "llo")]


async def test_a_long_prompt_arrives_whole() -> None:
    provider = LiteLLMProvider()
    text = "0123456789" * 200_000
    async with ModelServer(stream(event(content="ok"), event(finish="stop"))) as server:
        prompt = [{"role": "user", "content": text}]
        await read(provider, call(server, prompt=prompt))
    assert server.requests[0].body["messages"][0]["content"] == text
    await provider.aclose()


async def test_raw_events_on_demand(provider: LiteLLMProvider) -> None:
    async with ModelServer(stream(event(content="He"), event(finish="stop"))) as server:
        chunks = await read(provider, call(server, include_raw_chunks=True))
    raw = [chunk["payload"] for chunk in chunks if chunk["type"] == "raw"]
    assert [each["choices"][0]["delta"].get("content") for each in raw] == ["He", None]


async def test_anthropic_thinking_signature_and_calls(provider: LiteLLMProvider) -> None:
    def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"type": "content_block_start", "index": index, "content_block": start},
            *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": index},
        ]

    message: dict[str, Any] = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "claude",
    }
    events = [
        {"type": "message_start", "message": {**message, "usage": {"input_tokens": 30, "output_tokens": 1}}},
        *block(
            0,
            {"type": "thinking", "thinking": ""},
            {"type": "thinking_delta", "thinking": "hm"},
            {"type": "signature_delta", "signature": "SIG"},
        ),
        *block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "He"}),
        *block(
            2,
            {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"a"'},
            {"type": "input_json_delta", "partial_json": ": 1}"},
        ),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 20}},
        {"type": "message_stop"},
    ]
    pieces = [piece for each in events for piece in (f"event: {each['type']}\n".encode(), *sse(each))]
    async with ModelServer(Answer(pieces)) as server:
        chunks = await read(provider, call(server, "anthropic/claude-sonnet-4-5"))
    assert brief(chunks) == [
        ("reasoning-start",),
        ("reasoning-delta", "hm"),
        ("reasoning-signature", "SIG"),
        ("reasoning-end",),
        ("text-start",),
        ("text-delta", "He"),
        ("text-end",),
        ("tool-call-input-streaming-start",),
        ("tool-call-delta", '{"a"'),
        ("tool-call-delta", ": 1}"),
        ("tool-call-input-streaming-end",),
        ("tool-call", {"a": 1}),
        ("finish",),
    ]
    reason, usage = end(chunks)
    assert reason == "tool-calls"
    assert (usage["inputTokens"], usage["outputTokens"], usage["totalTokens"]) == (30, 20, 50)


async def test_a_search_that_anthropic_made_itself(provider: LiteLLMProvider) -> None:
    place = {"url": "https://t.org", "title": "T"}
    found = [{"type": "web_search_result", **place, "encrypted_content": "E", "page_age": None}]
    failed = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    citation = {"type": "web_search_result_location", **place, "cited_text": "c", "encrypted_index": "i"}

    def block(index: int, begin: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"type": "content_block_start", "index": index, "content_block": begin},
            *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": index},
        ]

    def search(number: int) -> dict[str, Any]:
        return {"type": "server_tool_use", "id": f"srvtoolu_{number}", "name": "web_search", "input": {}}

    def result(number: int, content: Any) -> dict[str, Any]:
        return {"type": "web_search_tool_result", "tool_use_id": f"srvtoolu_{number}", "content": content}

    query = {"type": "input_json_delta", "partial_json": '{"query":"x"}'}
    events = [
        {
            "type": "message_start",
            "message": {"id": "m1", "model": "c", "usage": {"input_tokens": 9, "output_tokens": 1}},
        },
        *block(0, search(1), query),
        *block(1, result(1, found)),
        *block(2, search(2), query),
        *block(3, result(2, failed)),
        *block(
            4,
            {"type": "text", "text": ""},
            {"type": "citations_delta", "citation": citation},
            {"type": "text_delta", "text": "Found"},
        ),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 30}},
        {"type": "message_stop"},
    ]
    options = {"anthropic": {"webSearchOptions": {"search_context_size": "low"}}}
    async with ModelServer(Answer(sse(*events))) as server:
        answer = await read(provider, call(server, "anthropic/claude-sonnet-4-5", provider_options=options))

    def told(kind: str) -> list[Any]:
        return [chunk["payload"] for chunk in answer if chunk["type"] == kind]

    [first, second] = [
        {
            "toolCallId": f"srvtoolu_{n}",
            "toolName": "web_search",
            "providerExecuted": True,
            "args": {"query": "x"},
        }
        for n in (1, 2)
    ]
    assert told("tool-call") == [first, second]
    assert told("tool-result") == [{**first, "result": found}, {**second, "result": failed, "isError": True}]
    cited = {"type": "web_search_result_location", "cited_text": "c", "encrypted_index": "i"}
    assert told("source") == [
        {"id": "src-0", "sourceType": "url", **place},
        {"id": "src-1", "sourceType": "url", **place, "providerMetadata": {"anthropic": cited}},
    ]
    types = [chunk["type"] for chunk in answer]
    assert types.index("tool-call") < types.index("tool-result") < types.index("text-start")
    assert end(answer)[0] == "stop"


@pytest.mark.parametrize("said", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])
async def test_an_answer_that_gemini_could_not_write_is_no_stop(provider: LiteLLMProvider, said: str) -> None:
    text = {"candidates": [{"content": {"role": "model", "parts": [{"text": "a"}]}, "index": 0}]}
    last = {"candidates": [{"finishReason": said, "index": 0}]}
    async with ModelServer(Answer(sse(text, last))) as server:
        answer = await read(provider, call(server, "gemini/gemini-2.5-flash"))
    assert end(answer)[0] == "error"


@pytest.mark.parametrize(
    ("said", "reason"),
    [("STOP", "tool-calls"), ("SAFETY", "content-filter"), ("MAX_TOKENS", "length"), (None, "other")],
)
async def test_a_call_of_gemini_without_arguments(
    provider: LiteLLMProvider, said: str | None, reason: str
) -> None:
    """Google leaves out what is empty; Vertex AI's events go through the same parser of LiteLLM's."""
    told = {"content": {"role": "model", "parts": [{"functionCall": {"name": "f"}}]}, "index": 0}
    candidate = {**told, **({"finishReason": said} if said else {})}
    async with ModelServer(Answer(sse({"candidates": [candidate]}))) as server:
        answer = await read(provider, call(server, "gemini/gemini-2.5-flash"))
    assert ("tool-call", {}) in brief(answer)
    assert end(answer)[0] == reason


@pytest.mark.parametrize(
    ("said", "reason"), [("model_context_window_exceeded", "length"), ("pause_turn", "other")]
)
async def test_a_reason_that_litellm_does_not_know_is_no_stop(
    provider: LiteLLMProvider, said: str, reason: str
) -> None:
    block = {"type": "tool_use", "id": "tu_1", "name": "f", "input": {}}
    half = {"type": "input_json_delta", "partial_json": '{"path":"/ho'}
    events = [
        {
            "type": "message_start",
            "message": {"id": "m1", "model": "c", "usage": {"input_tokens": 9, "output_tokens": 1}},
        },
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": half},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": said}, "usage": {"output_tokens": 30}},
        {"type": "message_stop"},
    ]
    async with ModelServer(Answer(sse(*events))) as server:
        answer = await read(provider, call(server, "anthropic/claude-sonnet-4-5"))
    assert end(answer)[0] == reason
    [payload] = [chunk["payload"] for chunk in answer if chunk["type"] == "tool-call"]
    assert "args" not in payload
    assert payload["argsText"] == '{"path":"/ho'


async def test_a_pattern_that_openai_would_refuse_is_left_out(provider: LiteLLMProvider) -> None:
    place = {"type": "object", "properties": {"place": {"type": "string", "pattern": r"^\p{L}+$"}}}
    async with ModelServer(Answer([b"data: [DONE]\n\n"])) as server:
        await read(provider, call(server, "openai/gpt-4o", tools={"weather": {"parameters": place}}))
        [tool] = server.requests[0].body["tools"]
    assert tool["function"]["parameters"]["properties"] == {"place": {"type": "string"}}


def test_every_reason_that_litellm_knows_is_known_without_it() -> None:
    spec = find_spec("litellm.litellm_core_utils.core_helpers")  # anew, without what the gateway mends
    assert spec is not None
    assert spec.loader is not None
    theirs = module_from_spec(spec)
    spec.loader.exec_module(theirs)
    unknown = set(theirs._FINISH_REASON_MAP) - REASONS.keys()
    assert unknown == {"CONTINUATION", "FINISH_REASON_UNSPECIFIED", "pause_turn"}


async def test_gemini(provider: LiteLLMProvider) -> None:
    def said(text: str, **more: Any) -> dict[str, Any]:
        candidate = {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0, **more}
        return {"candidates": [candidate], "modelVersion": "g", "responseId": "r"}

    usage = {"promptTokenCount": 3, "candidatesTokenCount": 5, "totalTokenCount": 8}
    last = {**said("llo", finishReason="MAX_TOKENS"), "usageMetadata": usage}
    async with ModelServer(Answer(sse(said("He"), last))) as server:
        chunks = await read(provider, call(server, "gemini/gemini-2.5-flash"))
    assert brief(chunks) == [
        ("text-start",),
        ("text-delta", "He"),
        ("text-delta", "llo"),
        ("text-end",),
        ("finish",),
    ]
    assert end(chunks) == ("length", {"inputTokens": 3, "outputTokens": 5, "totalTokens": 8})


# --- requests --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", COMPATIBLE)
async def test_the_request_carries_what_the_call_says(provider: LiteLLMProvider, model: str) -> None:
    name = model.partition("/")[0]
    async with ModelServer(stream(event(content="ok"))) as server:
        await read(
            provider,
            call(
                server,
                model,
                tools={"f": {"description": "d", "parameters": {"type": "object", "properties": {}}}},
                tool_choice="required",
                model_settings={"temperature": 0.5, "maxOutputTokens": 9, "stopSequences": ["X"], "topK": 4},
                provider_options={name: {"effort": "low"}, "other": {"x": 1}},
                headers={"x-thread-id": "t"},
            ),
        )
        [request] = server.requests
    body = request.body
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["f"]
    assert body["tool_choice"] == "required"
    assert (body["temperature"], body["max_tokens"], body["stop"], body["top_k"]) == (0.5, 9, ["X"], 4)
    assert body["effort"] == "low"
    assert "x" not in body
    assert request.headers["x-thread-id"] == "t"
    assert request.headers["authorization"] == "Bearer k"


async def test_a_parameter_that_the_provider_does_not_know_is_dropped(provider: LiteLLMProvider) -> None:
    settings = {"frequencyPenalty": 1, "temperature": 0.5}
    async with ModelServer(stream(event(content="ok"))) as server:
        await read(provider, call(server, "mistral/demo", model_settings=settings))
        [request] = server.requests
    assert request.body["temperature"] == 0.5
    assert "frequency_penalty" not in request.body


async def test_what_cannot_be_sent_is_an_error_and_not_a_request(provider: LiteLLMProvider) -> None:
    async with ModelServer(stream(event(content="ok"))) as server:
        error, types = await failed(provider, call(server, tools={"f": {}}, tool_choice="some"))
        assert error.message.startswith("toolChoice is 'some'")
        assert not error.retryable
        assert not types
        assert not server.requests


# --- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", COMPATIBLE)
@pytest.mark.parametrize(
    ("status", "retryable"), [(400, False), (401, False), (422, False), (429, True), (500, True)]
)
async def test_refusals(provider: LiteLLMProvider, model: str, status: int, retryable: bool) -> None:
    async with ModelServer(failure(status, "boom", {"retry-after": "7"})) as server:
        error, types = await failed(provider, call(server, model))
        assert len(server.requests) == 1
    wire = error.to_wire()
    assert json.loads(wire.pop("responseBody"))["error"]["message"] == "boom"
    assert wire == {
        "name": "APICallError",
        "message": "boom",
        "kind": "api",
        "isRetryable": retryable,
        "provider": model.partition("/")[0],
        "model": model,
        "statusCode": status,
        "type": "test_error",
        "responseHeaders": {"retry-after": "7"},
    }
    assert types == []


@pytest.mark.parametrize(
    ("model", "status", "body", "message"),
    [
        ("openai/demo", 404, {"detail": "no such model"}, "no such model"),
        ("hosted_vllm/demo", 400, {"error": "model 'x' not found"}, "model 'x' not found"),
        (
            "anthropic/claude-sonnet-4-5",
            529,
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            "Overloaded",
        ),
        (
            "gemini/gemini-2.5-flash",
            429,
            [{"error": {"code": 429, "message": "quota", "status": "EXHAUSTED"}}],
            "quota",
        ),
        ("bedrock/us.amazon.nova-lite-v1:0", 403, {"Message": "not authorized"}, "not authorized"),
        (
            "openai/demo",
            400,
            {"error": "Bad Request", "message": "no such model"},
            "Bad Request: no such model",
        ),
        (
            "openrouter/a/b",
            429,
            {"error": {"message": "Provider returned error", "code": 429, "metadata": {"raw": "slow down"}}},
            "Provider returned error: slow down",
        ),
    ],
)
async def test_the_message_is_the_providers_own(
    provider: LiteLLMProvider, model: str, status: int, body: Any, message: str
) -> None:
    async with ModelServer(failure(status, body=body)) as server:
        error, _ = await failed(provider, call(server, model))
    assert (error.kind, error.status_code, error.message) == ("api", status, message)


@pytest.mark.parametrize("model", [*COMPATIBLE, "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash"])
@pytest.mark.parametrize(
    "said",
    ["upstream connect error", '"Unauthorized"', '{"detail":[{"loc":["body"],"msg":"field required"}]}'],
)
async def test_a_refusal_in_another_form_is_told_as_it_is(
    provider: LiteLLMProvider, model: str, said: str
) -> None:
    async with ModelServer(Answer([said.encode()], 422, content_type="text/plain")) as server:
        error, _ = await failed(provider, call(server, model))
    assert (error.status_code, error.message, error.response_body) == (422, said, said)


async def test_of_a_page_in_the_place_of_an_error_only_the_beginning_is_the_message(
    provider: LiteLLMProvider,
) -> None:
    page = f"<html>{'busy ' * 500}</html>"
    async with ModelServer(Answer([page.encode()], 502, content_type="text/html")) as server:
        error, _ = await failed(provider, call(server))
    assert (error.message, error.response_body) == (page[:1000], page)


@pytest.mark.parametrize("model", COMPATIBLE)
async def test_an_error_event_in_the_middle(provider: LiteLLMProvider, model: str) -> None:
    broken = {"error": {"message": "upstream died", "type": "server_error", "code": "x"}}
    async with ModelServer(Answer(sse(event(content="He"), broken))) as server:
        error, types = await failed(provider, call(server, model))
    assert (error.kind, error.message, error.retryable, error.status_code) == (
        "stream",
        "upstream died",
        False,
        None,
    )
    assert error.cause is not None
    assert error.cause["type"] == "error"
    assert error.cause["error"]["message"] == "upstream died"
    assert types == ["response-metadata", "text-start", "text-delta"]


async def test_an_error_event_keeps_its_code(provider: LiteLLMProvider) -> None:
    broken = {"error": {"message": "later", "type": "server_error", "code": "overloaded"}}
    async with ModelServer(Answer(sse(event(content="He"), broken))) as server:
        error, _ = await failed(provider, call(server))
    assert (error.code, error.type) == ("overloaded", "server_error")
    assert error.cause == {
        "type": "error",
        "error": {"message": "later", "type": "server_error", "code": "overloaded"},
    }


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (rb'{"choices":[{"delta":{"content":"a\ud83d"}}]}', "a\ufffd"),
        (b'{"choices":[{"delta":{"content":"a\xf0\x9f"}}]}', "a\ufffd"),
        (b'{"choices":[{"delta":{"content":"a"},"logprobs":NaN}]}', "a"),
        (b"", ""),
        (b"null", ""),
        (b"{}", ""),
        (b' \t{"choices":[{"delta":{"content":"a"}}]} ', "a"),
    ],
    ids=[
        "half a surrogate pair",
        "half a character",
        "NaN",
        "nothing",
        "null",
        "an empty object",
        "more space",
    ],
)
async def test_what_other_readers_forgive(provider: LiteLLMProvider, data: bytes, text: str) -> None:
    pieces = [b"data: " + data + b"\n\n", *sse(event(content="b", finish="stop"), "[DONE]")]
    async with ModelServer(Answer(pieces)) as server:
        chunks = await read(provider, call(server, include_raw_chunks=True))
    json.dumps(chunks, ensure_ascii=False, allow_nan=False).encode()
    told = [chunk["payload"]["text"] for chunk in chunks if chunk["type"] == "text-delta"]
    assert "".join(told) == text + "b"


ENGINE = {"message": "the engine died", "type": "InternalServerError", "code": 500}


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("event: error\n", ENGINE),
        ("event: error\n", {"error": ENGINE}),
        ("", {"object": "error", **ENGINE}),
        (
            "",
            {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error", "error": ENGINE}]},
        ),
    ],
    ids=["named", "named and within", "object", "in the choice"],
)
async def test_an_error_in_another_shape(provider: LiteLLMProvider, name: str, error: dict[str, Any]) -> None:
    broken = f"{name}data: {json.dumps(error)}\n\n".encode()
    async with ModelServer(Answer([*sse(event(content="He")), broken]), Answer([broken])) as server:
        middle, types = await failed(provider, call(server))
        assert types == ["response-metadata", "text-start", "text-delta"]
        first, types = await failed(provider, call(server))
    assert (middle.kind, middle.message, middle.code) == ("stream", "the engine died", "500")
    assert (first.kind, first.message, first.status_code) == ("api", "the engine died", 500)
    assert (first.retryable, types) == (True, [])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"detail": "the engine died", "code": 500}, "the engine died"),
        ({"detail": [{"loc": ["body"], "msg": "the engine died"}], "code": 500}, "the engine died"),
        ({"message": "the engine died", "code": 500}, "the engine died"),
        ({"type": "error", "message": "the engine died", "code": 500}, "the engine died"),
        ({"success": False, "errors": [{"message": "the engine died"}], "code": 500}, "the engine died"),
        ({"error": True, "message": "the engine died", "code": 500}, "the engine died"),
        ({"error": "Bad Gateway", "message": "the engine died", "code": 500}, "Bad Gateway: the engine died"),
        ({"error": [{"message": "the engine died", "code": 500}]}, "the engine died"),
        (
            {"error": {"code": 500, "reason": "engine"}},
            'the provider reported an error: {"code": 500, "reason": "engine"}',
        ),
        (
            {"error": {"message": "Provider returned error", "code": 500, "metadata": {"raw": "it died"}}},
            "Provider returned error: it died",
        ),
    ],
)
async def test_an_error_as_servers_and_proxies_write_them(
    provider: LiteLLMProvider, error: dict[str, Any], message: str
) -> None:
    async with ModelServer(Answer(sse(event(content="He"), error)), Answer(sse(error, "[DONE]"))) as server:
        middle, types = await failed(provider, call(server))
        first, _ = await failed(provider, call(server))
    assert types == ["response-metadata", "text-start", "text-delta"]
    assert (middle.kind, middle.message, middle.code) == ("stream", message, "500")
    assert (first.kind, first.message, first.code, first.status_code) == ("api", message, "500", 500)


async def test_what_came_before_an_event_that_cannot_be_read_counts(provider: LiteLLMProvider) -> None:
    """Whether they were read together or not."""
    strange = event(tool_calls=[{"index": 0, "id": "c1", "function": "boo"}])
    async with ModelServer(Answer(sse(event(content="He"), event(content="llo"), strange))) as server:
        error, types = await failed(provider, call(server))
    assert "cannot be read" in error.message
    assert types == ["response-metadata", "text-start", "text-delta", "text-delta"]


@pytest.mark.parametrize("choices", [[None], ["x"], [{"delta": "x"}], {"a": 1}], ids=str)
async def test_an_event_in_a_form_that_nobody_knows_is_quoted(
    provider: LiteLLMProvider, choices: Any
) -> None:
    async with ModelServer(Answer(sse(event(content="He"), {"choices": choices}))) as server:
        error, _ = await failed(provider, call(server))
    said = f"the provider sent an event that cannot be read: {json.dumps({'choices': choices})}"
    assert (error.kind, error.message) == ("stream", said)


async def test_an_error_that_is_only_text(provider: LiteLLMProvider) -> None:
    async with ModelServer(Answer([b"event: error\ndata: the engine died\n\n"])) as server:
        error, _ = await failed(provider, call(server))
    assert (error.kind, error.message, error.retryable) == ("api", "the engine died", False)


def whole(body: Any) -> Answer:
    """Answer without a stream, though under status 200."""
    said = body if isinstance(body, str) else json.dumps(body)
    return Answer([said.encode()], content_type="application/json")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [({"code": "model_not_found"}, None, "model_not_found"), ({"code": 429}, 429, "429")],
)
async def test_an_error_under_status_200_is_the_providers(
    provider: LiteLLMProvider, error: dict[str, Any], status: int | None, code: str
) -> None:
    body = {"error": {"message": "invalid model", "type": "invalid_request_error", **error}}
    async with ModelServer(whole(body)) as server:
        failure, types = await failed(provider, call(server))
    assert (failure.kind, failure.message, failure.code) == ("api", "invalid model", code)
    assert (failure.type, failure.status_code) == ("invalid_request_error", status)
    assert failure.retryable is (status is not None)
    assert types == []


async def test_the_whole_answer_of_a_server_that_knows_no_streams(provider: LiteLLMProvider) -> None:
    functions = [{"name": name, "arguments": '{"a": 1}'} for name in "fg"]
    calls = [{"id": f"c-{each['name']}", "type": "function", "function": each} for each in functions]
    message = {"role": "assistant", "reasoning_content": "hm", "content": "Hi", "tool_calls": calls}
    answer = {
        "id": "resp-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5},
    }
    async with ModelServer(whole(answer)) as server:
        chunks = await read(provider, call(server))
    assert brief(chunks)[:-1] == [
        ("reasoning-start",),
        ("reasoning-delta", "hm"),
        ("reasoning-end",),
        ("text-start",),
        ("text-delta", "Hi"),
        ("text-end",),
        ("tool-call", {"a": 1}),
        ("tool-call", {"a": 1}),
    ]
    assert end(chunks) == ("tool-calls", {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15})


@pytest.mark.parametrize("streamed", [True, False])
async def test_usage_that_no_answer_can_have_is_told_in_the_log(
    provider: LiteLLMProvider, caplog: pytest.LogCaptureFixture, streamed: bool
) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1e30, "total_tokens": 1e30}
    message = {"role": "assistant", "content": "Hi"}
    said = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
    answer = (
        stream(event(content="Hi"), event(finish="stop"), event(usage=usage)) if streamed else whole(said)
    )
    async with ModelServer(answer) as server:
        chunks = await read(provider, call(server))
    assert end(chunks) == ("stop", {"inputTokens": 5, "outputTokens": None, "totalTokens": 5})
    [warning] = caplog.messages
    assert "reported impossible numbers of tokens" in warning


async def test_what_is_no_answer_at_all_is_quoted(provider: LiteLLMProvider) -> None:
    async with ModelServer(whole("<html>Sign in</html>")) as server:
        error, types = await failed(provider, call(server))
    said = "the provider answered 200 without a single event: '<html>Sign in</html>'"
    assert (error.kind, error.retryable, error.message) == ("network", True, said)
    assert types == []


async def test_an_event_that_is_not_json(provider: LiteLLMProvider) -> None:
    async with ModelServer(Answer(sse(event(content="He"), '{"choices": [{"del'))) as server:
        error, _ = await failed(provider, call(server))
    assert (error.kind, error.message) == ("stream", "the provider sent an event that is not JSON")


@pytest.mark.parametrize("model", COMPATIBLE)
async def test_a_cut_connection(provider: LiteLLMProvider, model: str) -> None:
    async with ModelServer(Answer(end="drop"), Answer(sse(event(content="He")), end="drop")) as server:
        before, types = await failed(provider, call(server, model))
        assert types == []
        middle, types = await failed(provider, call(server, model))
    assert (before.kind, before.retryable, before.status_code) == ("network", True, None)
    assert middle.kind == "network"
    assert middle.message == "the connection to the provider broke in the middle of its answer"
    assert types == ["response-metadata", "text-start", "text-delta"]


@pytest.mark.parametrize("done", [True, False])
async def test_a_call_of_an_answer_that_just_ends_has_no_arguments_yet(
    provider: LiteLLMProvider, done: bool
) -> None:
    begun = event(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}])
    async with ModelServer(Answer(sse(begun, *(["[DONE]"] if done else [])))) as server:
        chunks = await read(provider, call(server))
    [payload] = [chunk["payload"] for chunk in chunks if chunk["type"] == "tool-call"]
    told: dict[str, Any] = {"args": {}} if done else {"argsText": ""}
    assert payload == {"toolCallId": "c1", "toolName": "f", **told}
    assert end(chunks)[0] == "other"


async def test_an_event_that_is_cut_off_is_a_cut_connection(provider: LiteLLMProvider) -> None:
    cut = b'data: {"choices": [{"del'
    async with ModelServer(Answer([cut]), Answer([*sse(event(content="He")), cut])) as server:
        for told in ([], ["response-metadata", "text-start", "text-delta"]):
            error, types = await failed(provider, call(server))
            assert (error.kind, error.retryable, types) == ("network", True, told)
            assert error.message == "the connection to the provider broke in the middle of its answer"


@pytest.mark.parametrize("reasons", [[None, "stop"], [None, None], ["stop", "stop"]])
async def test_an_answer_with_a_reason_needs_no_end(
    provider: LiteLLMProvider, reasons: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some send one with every event: they have not said when it is over."""
    monkeypatch.setattr(litellm_provider, "_SILENCE_SECONDS", 0.2)
    told = [event(content=text, finish=reason) for text, reason in zip(("Hi", ""), reasons, strict=True)]
    said = [*sse(*told), b": alive\n\n"]
    settings = {"timeout": {"chunkMs": 2000}}
    async with asyncio.timeout(20), ModelServer(Answer(said, end="hang")) as server:
        if reasons.count("stop") == 1:
            assert end(await read(provider, call(server, model_settings=settings)))[0] == "stop"
        else:
            error, _ = await failed(provider, call(server, model_settings=settings))
            assert error.kind == "timeout"
        await server.left.wait()


async def test_nobody_listens(provider: LiteLLMProvider) -> None:
    async with ModelServer() as server:
        gone = call(server)
    error, _ = await failed(provider, gone)
    assert (error.kind, error.retryable) == ("network", True)
    assert error.message.startswith("the provider cannot be reached: ")


@pytest.mark.filterwarnings("ignore:coroutine 'OpenAIChatCompletion:RuntimeWarning")  # left before it began
@pytest.mark.parametrize(
    ("limits", "pieces"),
    [
        (50, [event(content="He")]),
        ({"firstChunkMs": 50}, []),
        ({"chunkMs": 50}, [event(content="He")]),
    ],
)
async def test_timeouts(provider: LiteLLMProvider, limits: Any, pieces: list[Any]) -> None:
    await provider.prepare()
    async with ModelServer(Answer(sse(*pieces), end="hang")) as server:
        error, _ = await failed(provider, call(server, model_settings={"timeout": limits}))
        if server.requests:  # a machine that is busy may not have got so far
            await server.left.wait()
    assert (error.kind, error.retryable, error.name) == ("timeout", False, "TimeoutError")
    assert f"modelSettings.timeout is {json.dumps(limits)} (milliseconds)" in error.message


async def test_a_missing_key_is_no_server_error(
    provider: LiteLLMProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("OPENAI_")]:
        monkeypatch.delenv(name)
    async with ModelServer(stream(event(content="ok"))) as server:
        error, _ = await failed(provider, call(server, api_key=None))
        assert server.requests == []
    assert "api_key" in error.message
    assert (error.retryable, error.status_code) == (False, None)


# --- leaving (D-21) --------------------------------------------------------------------------

ANTHROPIC_BEGIN = [
    {
        "type": "message_start",
        "message": {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": "c",
            "usage": {},
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "He"}},
]
GEMINI_BEGIN = {
    "candidates": [{"content": {"parts": [{"text": "He"}], "role": "model"}, "index": 0}],
    "responseId": "r",
}
OLLAMA_BEGIN = {
    "model": "x",
    "created_at": "2026-01-01T00:00:00Z",
    "message": {"content": "He"},
    "done": False,
}


def completed(text: str, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """An event of a model that completes texts."""
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], **fields}


async def test_models_that_complete_texts(provider: LiteLLMProvider) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    answer = stream(completed("He"), completed("llo", "length"), completed("", usage=usage, choices=[]))
    async with ModelServer(answer) as server:
        chunks = await read(provider, call(server, TEXTS))
        assert server.requests[0].path == "/completions"
    assert [chunk["payload"]["text"] for chunk in chunks if chunk["type"] == "text-delta"] == ["He", "llo"]
    assert chunks[-1]["payload"]["stepResult"]["reason"] == "length"
    assert chunks[-1]["payload"]["output"]["usage"]["totalTokens"] == 12


TEXTS = "text-completion-openai/gpt-3.5-turbo-instruct"
ENDLESS = {
    TEXTS: Answer(sse(completed("He")), end="hang"),
    "openai/demo": Answer(sse(event(content="He")), end="hang"),
    "azure/demo": Answer(sse(event(content="He")), end="hang"),
    "hosted_vllm/demo": Answer(sse(event(content="He")), end="hang"),
    "anthropic/claude-sonnet-4-5": Answer(sse(*ANTHROPIC_BEGIN), end="hang"),
    "gemini/gemini-2.5-flash": Answer(sse(GEMINI_BEGIN), end="hang"),
    "ollama_chat/demo": Answer(
        [json.dumps(OLLAMA_BEGIN).encode() + b"\n"], content_type="application/x-ndjson", end="hang"
    ),
}


async def first_text(answer: AsyncIterator[list[Chunk]]) -> None:
    async for chunks in answer:
        if any(chunk["type"] == "text-delta" for chunk in chunks):
            return


@pytest.mark.parametrize("model", ENDLESS)
async def test_closing_the_stream_closes_the_connection(provider: LiteLLMProvider, model: str) -> None:
    async with ModelServer(ENDLESS[model]) as server:
        answer = provider.stream(call(server, model))
        await first_text(answer)
        assert not server.left.is_set()
        await answer.aclose()
        await asyncio.wait_for(server.left.wait(), 20)


@pytest.mark.parametrize("model", ENDLESS)
async def test_cancelling_the_reader_closes_the_connection(provider: LiteLLMProvider, model: str) -> None:
    reading = asyncio.Event()

    async def read_on(server: ModelServer) -> None:
        answer = provider.stream(call(server, model))
        await first_text(answer)
        reading.set()
        await anext(answer)

    async with ModelServer(ENDLESS[model]) as server:
        task = asyncio.create_task(read_on(server))
        await reading.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.left.wait(), 20)


@pytest.mark.parametrize("model", ENDLESS)
async def test_cancelling_before_the_first_event_closes_the_connection(
    provider: LiteLLMProvider, model: str
) -> None:
    async with ModelServer(Answer(end="hang")) as server:
        task = asyncio.create_task(read(provider, call(server, model)))
        await server.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.left.wait(), 20)


# --- models and prices -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("openai/whatever", True),
        ("anthropic/claude-x", True),
        ("openrouter/meta/llama", True),
        ("nobody/gpt-4o", False),
        ("gpt-4o", False),
        ("openai/", False),
        ("huggingface/https://models.example.com", False),
        ("/x", False),
        ("", False),
    ],
)
def test_known_models_name_a_provider(model: str, known: bool) -> None:
    assert LiteLLMProvider().knows(model) is known


def test_costs() -> None:
    provider, usage = LiteLLMProvider(), {"inputTokens": 1000, "outputTokens": 100, "totalTokens": 1100}
    priced = ModelCall(model="openai/gpt-4o", prompt=[])
    cost = provider.cost(priced, usage)
    assert cost is not None
    assert cost > 0
    cached = provider.cost(priced, {**usage, "cachedInputTokens": 1000})
    assert cached is not None
    assert cached < cost
    assert provider.cost(priced, UNKNOWN_USAGE) is None
    assert provider.cost(priced, {"inputTokens": 0, "outputTokens": 0}) == 0
    assert provider.cost(ModelCall(model="openai/no-such-model", prompt=[]), usage) is None


def test_a_class_of_service_has_its_own_prices() -> None:
    def cost(**own: Any) -> float:
        call = ModelCall(model="openai/gpt-5", prompt=[], provider_options={"openai": own})
        return LiteLLMProvider().cost(call, {"inputTokens": 1000, "outputTokens": 100}) or 0.0

    assert 0 < cost(serviceTier="flex") < cost() < cost(service_tier="priority")
    assert cost(serviceTier="auto") == cost(serviceTier=["flex"]) == cost()


# --- quiet -----------------------------------------------------------------------------------


async def test_litellm_neither_logs_nor_prints(
    provider: LiteLLMProvider, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    async with ModelServer(stream(event(content="ok")), failure(500, "boom")) as server:
        await read(provider, call(server))
        await failed(provider, call(server))
        await failed(provider, call(server, "nobody/demo"))
    assert [record for record in caplog.records if record.name != "asyncio"] == []
    assert capfd.readouterr() == ("", "")


def test_the_first_import_is_quiet_and_needs_no_network() -> None:
    """A socket that cannot be opened is what a machine without a network has."""
    program = """
import asyncio, logging, socket
logging.basicConfig(level=logging.DEBUG)
logging.getLogger("asyncio").setLevel(logging.WARNING)
def refuse(*args, **kwargs):
    raise AssertionError(f"a connection was tried: {args}")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider
import sys
assert "litellm" not in sys.modules
asyncio.run(LiteLLMProvider().prepare())
assert "litellm" in sys.modules
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.parametrize("model", ["azure_ai/Llama-3.3-70B-Instruct", "databricks/meta-llama-3-3-70b"])
async def test_nobody_but_the_provider_is_looked_for(
    provider: LiteLLMProvider, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """LiteLLM would fetch a tokenizer from a hub, to count tokens that nobody asks for."""
    looked_for = set()
    look = socket.getaddrinfo

    def noted(host: Any, *args: Any, **kwargs: Any) -> Any:
        looked_for.add(host)
        if host != "127.0.0.1":
            raise socket.gaierror
        return look(host, *args, **kwargs)

    await provider.prepare()
    monkeypatch.setattr(socket, "getaddrinfo", noted)
    async with ModelServer(stream(event(content="ok"), event(finish="stop"))) as server:
        chunks = await read(provider, call(server, model))
    assert chunks[-1]["type"] == "finish"
    assert looked_for <= {"127.0.0.1"}


FUNCTION: dict[str, Any] = {"f": {"description": "d", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("openai/o3-pro", {}),
        ("openai/gpt-5.4", {"tools": FUNCTION, "provider_options": {"openai": {"reasoningEffort": "low"}}}),
    ],
    ids=["has no other", "refuses tools while it reasons"],
)
async def test_models_that_need_the_responses_api(
    provider: LiteLLMProvider, model: str, fields: dict[str, Any]
) -> None:
    head = {"id": "resp_1", "object": "response", "created_at": 0, "model": "m", "output": []}
    text: dict[str, Any] = {"type": "message", "id": "m1", "role": "assistant", "content": []}
    used: dict[str, Any] = {
        "type": "function_call",
        "id": "f1",
        "call_id": "c1",
        "name": "f",
        "arguments": "",
    }
    usage = {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": head},
        {"type": "response.output_item.added", "output_index": 0, "item": text},
        {
            "type": "response.output_text.delta",
            "item_id": "m1",
            "output_index": 0,
            "content_index": 0,
            "delta": "Grüß",
        },
        {"type": "response.output_item.added", "output_index": 1, "item": used},
        {
            "type": "response.function_call_arguments.delta",
            "item_id": "f1",
            "output_index": 1,
            "delta": '{"a":1}',
        },
        {"type": "response.output_item.done", "output_index": 1, "item": {**used, "arguments": '{"a":1}'}},
        {"type": "response.completed", "response": {**head, "output": [text, used], "usage": usage}},
    ]
    async with ModelServer(Answer(sse(*events))) as server:
        chunks = await read(provider, call(server, model, **fields))
        assert [request.path for request in server.requests] == ["/responses"]
    told = {chunk["type"]: chunk["payload"] for chunk in chunks}
    assert told["text-delta"]["text"] == "Grüß"
    assert (told["tool-call"]["toolCallId"], told["tool-call"]["args"]) == ("c1", {"a": 1})
    assert told["finish"]["output"]["usage"]["totalTokens"] == 12
