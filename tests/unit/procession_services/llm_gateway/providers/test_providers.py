"""Recorded provider streams through both ways: our own reader and LiteLLM's `acompletion`."""

import asyncio
import json
from typing import Any, Final

import pytest
from botocore.auth import SigV4Auth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import Credentials  # type: ignore[import-untyped]

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.core.request import litellm_kwargs
from procession_services.llm_gateway.providers import litellm_provider
from procession_services.llm_gateway.providers.direct import build_request
from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider
from tests.unit.procession_services.llm_gateway.loopback import (
    Answer,
    ModelServer,
    Received,
    event,
    failure,
    stream,
)
from tests.unit.procession_services.llm_gateway.providers.replay import (
    AMAZON,
    ANTHROPIC,
    BEDROCK,
    CASES,
    EVERY_MODEL,
    GEMINI,
    MODELS,
    RECORDED,
    REGION,
    STREAMS,
    TEXTS,
    asked,
    dialect,
    outcome,
    recorded,
)

WE_KNOW_MORE: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("anthropic-error-first.sse", ANTHROPIC): {"statusCode": 529, "isRetryable": True},
    ("gemini-error-first.sse", GEMINI): {"code": "429"},
    ("gemini-error.sse", GEMINI): {"code": "503"},
    ("openai-error-first.sse", "hosted_vllm/demo"): {
        "isRetryable": True,
        "statusCode": 500,
        "code": "overloaded",
    },
}
"""What LiteLLM's readers lose of an error in a stream."""


@pytest.mark.parametrize(("name", "model"), CASES)
async def test_both_ways_give_the_same(
    direct: LiteLLMProvider, wrapped: LiteLLMProvider, name: str, model: str
) -> None:
    ours = await outcome(direct, model, recorded(name))
    theirs = await outcome(wrapped, model, recorded(name))
    assert ours.chunks == theirs.chunks
    assert ours.said() == theirs.said() | WE_KNOW_MORE.get((name, model), {})
    assert ours.failure.get("message") == theirs.failure.get("message")
    assert bool(ours.failure) == ("-error" in name)


@pytest.mark.parametrize(("name", "model"), [(name, model) for name, model in TEXTS if model != BEDROCK])
async def test_comments_and_what_only_looks_like_the_end_of_a_line(
    direct: LiteLLMProvider, wrapped: LiteLLMProvider, name: str, model: str
) -> None:
    said = (
        (RECORDED / name).read_text().replace(" Gott, ", "\u2028Gott\x85").replace("\n\n", "\n\n: alive\n\n")
    )
    answer = Answer([b": alive\n\n", said.encode()])
    ours, theirs = [await outcome(provider, model, answer) for provider in (direct, wrapped)]
    assert ours.chunks == theirs.chunks
    assert ours.brief()[2] == ("text-delta", "\u2028Gott\x85")


@pytest.mark.parametrize("name", STREAMS)
async def test_it_does_not_matter_how_the_network_cuts(direct: LiteLLMProvider, name: str) -> None:
    model = MODELS[dialect(name)][0]
    whole, cut = [await outcome(direct, model, recorded(name, size=size)) for size in (None, 13)]
    assert (whole.chunks, whole.failure) == (cut.chunks, cut.failure)


@pytest.mark.parametrize("model", EVERY_MODEL)
async def test_our_own_reader_takes_them(
    direct: LiteLLMProvider, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    await direct.prepare()
    monkeypatch.delattr(litellm_provider._litellm(), "acompletion")
    name = next(name for name, other in TEXTS if other == model)
    answer = await outcome(direct, model, recorded(name))
    assert answer.brief()[0] == ("text-start",)


@pytest.mark.parametrize(("name", "model"), TEXTS)
async def test_a_cut_connection(
    direct: LiteLLMProvider, wrapped: LiteLLMProvider, name: str, model: str
) -> None:
    middle = len((RECORDED / name).read_bytes()) * 2 // 3
    ours = await outcome(direct, model, recorded(name, cut=middle))
    theirs = await outcome(wrapped, model, recorded(name, cut=middle))
    assert ours.said() == theirs.said() == {"kind": "network", "isRetryable": True}
    assert ours.chunks == theirs.chunks
    assert ours.brief()[:2] == [("text-start",), ("text-delta", "Grüß")]


async def test_an_answer_may_speak_of_its_end(direct: LiteLLMProvider, wrapped: LiteLLMProvider) -> None:
    answer = stream(event(content="It ends with [DONE]"), event(content="."), event(finish="stop"))
    for way in (direct, wrapped):
        told = await outcome(way, "hosted_vllm/demo", answer)
        assert told.brief() == [
            ("text-start",),
            ("text-delta", "It ends with [DONE]"),
            ("text-delta", "."),
            ("text-end",),
        ]


@pytest.mark.parametrize("model", ["groq/demo", "mistral/demo", "openrouter/demo/x"])
async def test_an_event_may_lack_what_nobody_needs(direct: LiteLLMProvider, model: str) -> None:
    """LiteLLM's parsers of these providers fail then."""
    events = [
        {"choices": [{"delta": {"reasoning": "hm"}}], "error": None},
        {"choices": [{"delta": {"content": "a"}}], "created": 0.5},
        {"choices": [{"finish_reason": "stop"}]},
        {"choices": None, "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    ]
    answer = await outcome(direct, model, stream(*events))
    assert answer.brief()[1:5:3] == [("reasoning-delta", "hm"), ("text-delta", "a")]
    reason, usage = answer.end()
    assert (reason, usage["totalTokens"]) == ("stop", 5)


async def test_a_frame_that_never_ends(direct: LiteLLMProvider, wrapped: LiteLLMProvider) -> None:
    data = (RECORDED / "bedrock-text.bin").read_bytes()[:-40]
    network = {"kind": "network", "isRetryable": True}
    for provider, said in ((direct, network), (wrapped, {"kind": "stream", "isRetryable": False})):
        answer = await outcome(provider, BEDROCK, Answer([data], content_type=AMAZON))
        assert answer.said() == said
        assert answer.brief()[-1] == ("text-delta", "日本 🙂")


async def test_a_failure_before_anything_was_said_may_be_tried_again(
    direct: LiteLLMProvider, wrapped: LiteLLMProvider
) -> None:
    text, failed = [(RECORDED / f"bedrock-{name}.bin").read_bytes() for name in ("text", "error-first")]
    begin = text[: int.from_bytes(text[:4], "big")]
    for provider in (direct, wrapped):
        answer = await outcome(provider, BEDROCK, Answer([begin, failed], content_type=AMAZON))
        assert answer.said() == {"kind": "api", "isRetryable": True, "statusCode": 429}
        assert answer.chunks == []


@pytest.mark.parametrize("place", [5, -4], ids=["head", "end"])
async def test_a_frame_with_a_wrong_checksum(direct: LiteLLMProvider, place: int) -> None:
    data = bytearray((RECORDED / "bedrock-text.bin").read_bytes())
    data[place] ^= 1
    answer = await outcome(direct, BEDROCK, Answer([bytes(data)], content_type=AMAZON))
    assert "Checksum mismatch" in answer.failure["message"]


async def test_what_is_no_event_stream(direct: LiteLLMProvider) -> None:
    answer = await outcome(direct, BEDROCK, Answer([b"<html>busy</html>"], content_type="text/html"))
    said = "the provider's answer is not an event stream: '<html>busy</html>'"
    assert answer.failure["message"] == said


async def test_leaving_closes_the_connection(direct: LiteLLMProvider) -> None:
    data = (RECORDED / "bedrock-text.bin").read_bytes()[:600]
    async with ModelServer(Answer([data], content_type=AMAZON, end="hang")) as server:
        answer = direct.stream(asked(server, BEDROCK))
        await anext(answer)
        await answer.aclose()
        await asyncio.wait_for(server.left.wait(), 20)


# --- refusals --------------------------------------------------------------------------------

Refusal = tuple[int, dict[str, str], Any]
"""Status, headers and body."""
REFUSALS: Final[list[tuple[str, int, dict[str, str], Any]]] = [
    (
        "openai",
        429,
        {"retry-after": "20", "x-ratelimit-remaining-tokens": "0"},
        {
            "error": {
                "message": "Rate limit reached",
                "type": "tokens",
                "param": None,
                "code": "rate_limit_exceeded",
            }
        },
    ),
    (
        "openai",
        400,
        {},
        {
            "error": {
                "message": "too long",
                "type": "x",
                "param": "messages",
                "code": "context_length_exceeded",
            }
        },
    ),
    ("openai", 503, {"retry-after-ms": "1500"}, {"error": {"message": "overloaded", "type": "server_error"}}),
    (
        "anthropic",
        429,
        {"retry-after": "7"},
        {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}, "request_id": "r"},
    ),
    (
        "anthropic",
        400,
        {},
        {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long"}},
    ),
    ("anthropic", 529, {}, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
    (
        "gemini",
        429,
        {},
        {
            "error": {
                "code": 429,
                "message": "quota",
                "status": "RESOURCE_EXHAUSTED",
                "details": [{"@type": "x"}],
            }
        },
    ),
    ("gemini", 400, {}, {"error": {"code": 400, "message": "bad key", "status": "INVALID_ARGUMENT"}}),
    ("gemini", 503, {}, {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}),
    ("bedrock", 429, {"x-amzn-errortype": "ThrottlingException"}, {"message": "Too many requests"}),
    ("bedrock", 400, {"x-amzn-errortype": "ValidationException"}, {"message": "Malformed input"}),
    ("bedrock", 503, {"x-amzn-errortype": "ServiceUnavailableException"}, {"message": "Unavailable"}),
]


@pytest.mark.parametrize(
    ("model", "refusal"),
    [(model, refusal) for form, *refusal in REFUSALS for model in MODELS[form]],
)
async def test_refusals(
    direct: LiteLLMProvider, wrapped: LiteLLMProvider, model: str, refusal: Refusal
) -> None:
    status, headers, body = refusal
    answer = failure(status, headers=headers, body=body)
    ours, theirs = [await outcome(provider, model, answer) for provider in (direct, wrapped)]
    assert ours.said() == theirs.said()
    assert ours.failure["message"] == theirs.failure["message"] == body.get("error", body)["message"]
    assert ours.said()["statusCode"] == status
    assert ours.said()["isRetryable"] == (status != 400)
    later = {name: value for name, value in headers.items() if name.startswith("retry-after")}
    assert ours.said().get("responseHeaders", {}) == later
    assert ours.chunks == []


# --- requests --------------------------------------------------------------------------------

PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
FULL: Final[dict[str, Any]] = {
    "prompt": [
        {"role": "system", "content": "Be kind."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what?"},
                {"type": "image", "image": PIXEL, "mediaType": "image/png"},
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "tool-call", "toolCallId": "c1", "toolName": "f", "input": {"a": 1}}],
        },
        {
            "role": "tool",
            "content": [
                {
                    "type": "tool-result",
                    "toolCallId": "c1",
                    "toolName": "f",
                    "output": {"type": "text", "value": "one"},
                }
            ],
        },
        {"role": "user", "content": "and?"},
    ],
    "tools": {
        "f": {"description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}
    },
    "tool_choice": "required",
    "model_settings": {"temperature": 0.5, "maxOutputTokens": 9, "stopSequences": list("ABCDE"), "topP": 0.5},
    "headers": {"x-thread-id": "t"},
}


def telling(request: Received) -> dict[str, str]:
    """The headers that say something about the call; a signature has a time in it."""
    signed = request.headers.get("authorization", "").startswith("AWS4")
    names = ("x-thread-id", "x-goog-api-key", "x-api-key", "api-key", "content-type")
    told = {
        name: value
        for name, value in request.headers.items()
        if name in names or name.startswith("anthropic-") or (name == "authorization" and not signed)
    }
    return told | {"content-type": told["content-type"].partition(";")[0]}


def told(value: Any) -> Any:
    """A body without the keys that hold nothing: the content of a message that only has calls."""
    if isinstance(value, dict):
        return {key: told(each) for key, each in value.items() if each is not None}
    return [told(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("fields", [{}, FULL], ids=["short", "full"])
@pytest.mark.parametrize("model", EVERY_MODEL)
async def test_both_ways_ask_the_same(
    direct: LiteLLMProvider, wrapped: LiteLLMProvider, model: str, fields: dict[str, Any]
) -> None:
    name = next(name for name, other in TEXTS if other == model)
    ours = (await outcome(direct, model, recorded(name), **fields)).request
    theirs = (await outcome(wrapped, model, recorded(name), **fields)).request
    assert ours.path == theirs.path
    assert told(ours.body) == told(theirs.body)
    assert telling(ours) == telling(theirs)


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("model", [ANTHROPIC, GEMINI, BEDROCK])
async def test_both_ways_ask_to_think_where_nobody_says_how_much(
    direct: LiteLLMProvider, wrapped: LiteLLMProvider, model: str, thinking: bool
) -> None:
    options = {model.partition("/")[0]: {"thinking": thinking}}
    name = next(name for name, other in TEXTS if other == model)
    ours, theirs = [
        (await outcome(way, model, recorded(name), provider_options=options)).request
        for way in (direct, wrapped)
    ]
    assert told(ours.body) == told(theirs.body)
    assert ("thinking" in json.dumps(ours.body).lower()) == thinking


@pytest.mark.parametrize(
    ("model", "name"),
    [("openai/gpt-4o", "authorization"), ("hosted_vllm/demo", "Authorization"), ("azure/gpt-4o", "Api-Key")],
)
async def test_a_header_of_the_callers_own_goes_before_the_key(
    direct: LiteLLMProvider, model: str, name: str
) -> None:
    settings = {"headers": {"X-Who": "settings", "X-Other": "settings"}}
    headers = {"x-who": "call", name: "own"}
    answer = await outcome(
        direct, model, recorded("openai-text.sse"), model_settings=settings, headers=headers
    )
    sent = answer.request.headers
    assert (sent["x-who"], sent["x-other"], sent[name.lower()]) == ("call", "settings", "own")


@pytest.mark.parametrize(
    ("model", "variables"),
    [
        ("openai/gpt-4o", {"OPENAI_ORGANIZATION": "openai-organization"}),
        ("openai/gpt-4o", {"OPENAI_ORG_ID": "openai-organization", "OPENAI_PROJECT_ID": "openai-project"}),
        ("openrouter/x/demo", {"OR_SITE_URL": "http-referer", "OR_APP_NAME": "x-title"}),
    ],
)
async def test_both_ways_say_for_whom_it_is(
    direct: LiteLLMProvider,
    wrapped: LiteLLMProvider,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    variables: dict[str, str],
) -> None:
    for name in variables:
        monkeypatch.setenv(name, name.lower())
    for way in (direct, wrapped):
        sent = (await outcome(way, model, recorded("openai-text.sse"))).request.headers
        assert {name: sent.get(header) for name, header in variables.items()} == {
            name: name.lower() for name in variables
        }


async def test_azures_deployments_may_say_what_they_are(
    direct: LiteLLMProvider, wrapped: LiteLLMProvider
) -> None:
    for way in (direct, wrapped):
        answer = await outcome(way, "azure/gpt5_series/mine", recorded("openai-text.sse"))
        assert answer.request.path.startswith("/openai/deployments/mine/chat/completions?")
        assert answer.request.body["model"] == "mine"


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/", "/v1/messages", "/v1/messages/"])
async def test_anthropics_place_may_be_written_in_several_ways(direct: LiteLLMProvider, base: str) -> None:
    async with ModelServer(recorded("anthropic-text.sse")) as server:
        async for _ in direct.stream(asked(server, ANTHROPIC, api_base=server.base + base)):
            pass
    assert [request.path for request in server.requests] == ["/v1/messages"]


async def test_what_litellm_notes_for_itself_is_not_sent(direct: LiteLLMProvider) -> None:
    await direct.prepare()
    litellm = litellm_provider._litellm()
    asked, built = [{"role": "user", "content": "hi"}], set()
    for provider in litellm.LlmProviders:
        call = ModelCall(
            f"{provider.value}/some-model",
            asked,
            api_base="http://given/v9",
            api_key="k",
            response_format=SCHEMA,
        )
        try:
            request = await build_request(litellm, call, litellm_kwargs(call))
        except Exception:  # noqa: BLE001 - whatever LiteLLM raises where it cannot be asked so
            continue
        if request is not None:
            built.add(provider.value)
            assert INTERNAL.isdisjoint(json.loads(request.body)), provider.value
    assert {"openai", "anthropic", "azure", "gemini", "mistral", "deepseek", "xai"} <= built


INTERNAL: Final = {
    "fake_stream",
    "json_mode",
    "is_vertex_request",
    "drop_params",
    "custom_llm_provider",
    "api_base",
}
SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}


@pytest.mark.parametrize("name", ["llama-3.3-70b-versatile", "openai/gpt-oss-20b"])
async def test_groqs_structured_output(direct: LiteLLMProvider, name: str) -> None:
    """LiteLLM asks for it without a stream, or as a call of a tool of its own."""
    call = {"id": "c", "type": "function", "function": {"name": "json_tool_call", "arguments": '{"a":1}'}}
    native = "gpt-oss" in name
    message = (
        {"role": "assistant", "content": '{"a":1}'} if native else {"tool_calls": [call], "content": None}
    )
    reason = "stop" if native else "tool_calls"
    choices = [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}]
    body: dict[str, Any] = {
        "id": "r",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": choices,
    }
    body["service_tier"] = "on_demand"
    answer = Answer([json.dumps(body).encode()], content_type="application/json")
    told = await outcome(direct, f"groq/{name}", answer, response_format=SCHEMA)
    assert (INTERNAL | {"stream_options"}).isdisjoint(told.request.body)
    assert told.brief() == [("text-start",), ("text-delta", '{"a":1}'), ("text-end",)]


async def test_a_tool_keeps_its_name_where_anthropic_knows_it_by_another(
    direct: LiteLLMProvider, wrapped: LiteLLMProvider
) -> None:
    """The recorded stream calls `get_weather`."""
    tools = {"get.weather": {"description": "d", "parameters": {"type": "object", "properties": {}}}}
    for way in (direct, wrapped):
        told = await outcome(way, ANTHROPIC, recorded("anthropic-tools.sse"), tools=tools)
        assert told.request.body["tools"][0]["name"] == "get_weather"
        names = [each["payload"]["toolName"] for each in told.chunks if each["type"] == "tool-call"]
        assert names[0] == "get.weather"


async def test_cookies_are_not_kept(direct: LiteLLMProvider) -> None:
    answer = Answer(recorded("openai-text.sse").pieces, headers={"set-cookie": "who=a"})
    async with ModelServer(answer) as server:
        named = server.base.replace("127.0.0.1", "localhost")  # an address has no cookies anyway
        for _ in range(2):
            async for _ in direct.stream(asked(server, "openai/gpt-4o", api_base=named)):
                pass
        assert [request.headers.get("cookie") for request in server.requests] == [None, None]


@pytest.mark.parametrize("model", EVERY_MODEL)
async def test_parameters_are_translated_once(
    direct: LiteLLMProvider, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    name = next(name for name, other in TEXTS if other == model)
    fields = FULL | {"model_settings": {"temperature": 0.25, "seed": 7}}
    first = (await outcome(direct, model, recorded(name), **fields)).request
    monkeypatch.setattr("litellm.utils.get_optional_params", None)
    again = (await outcome(direct, model, recorded(name), **fields)).request
    assert again.body == first.body
    other = [{"role": "user", "content": "hey"}]
    changed = (await outcome(direct, model, recorded(name), **{**fields, "prompt": other})).request
    assert changed.body != first.body


async def test_other_parameters_are_translated_anew(direct: LiteLLMProvider) -> None:
    asked_for = []
    for settings in ({"temperature": 0.25}, {"temperature": 0.5}, {}):
        answer = await outcome(direct, GEMINI, recorded("gemini-text.sse"), model_settings=settings)
        asked_for.append(answer.request.body.get("generationConfig", {}).get("temperature"))
    assert asked_for == [0.25, 0.5, None]


async def test_bedrock_gets_what_was_signed(direct: LiteLLMProvider) -> None:
    request = (await outcome(direct, BEDROCK, recorded("bedrock-text.bin"))).request
    assert request.path == "/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse-stream"
    signed = request.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    again = AWSRequest(
        "POST",
        f"http://{request.headers['host']}{request.path}",
        {name: value for name, value in request.headers.items() if name in signed and name != "host"},
        json.dumps(request.body),
    )
    again.context["timestamp"] = request.headers["x-amz-date"]
    signer = SigV4Auth(Credentials("AKID", "secret"), "bedrock", REGION)
    signature = signer.signature(signer.string_to_sign(again, signer.canonical_request(again)), again)
    assert request.headers["authorization"].endswith(f"Signature={signature}")


@pytest.mark.parametrize(
    ("model", "marked"),
    [
        (ANTHROPIC, [{"type": "text", "text": "long", "cache_control": {"type": "ephemeral"}}]),
        (BEDROCK, [{"text": "long"}, {"cachePoint": {"type": "default"}}]),
    ],
)
async def test_both_ways_ask_to_keep_what_is_marked(
    direct: LiteLLMProvider, wrapped: LiteLLMProvider, model: str, marked: list[dict[str, Any]]
) -> None:
    mark = {model.partition("/")[0]: {"cacheControl": {"type": "ephemeral"}}}
    prompt = [{"role": "user", "content": [{"type": "text", "text": "long", "providerOptions": mark}]}]
    name = "anthropic-text.sse" if model == ANTHROPIC else "bedrock-text.bin"
    for way in (direct, wrapped):
        made = await outcome(way, model, recorded(name), prompt=prompt)
        assert made.request.body["messages"][0]["content"] == marked


async def test_bedrocks_own_options_are_where_bedrock_looks_for_them(direct: LiteLLMProvider) -> None:
    guard = {"guardrailIdentifier": "g", "guardrailVersion": "1"}
    own = {
        "guardrailConfig": guard,
        "inferenceConfig": {"topP": 0.5},
        "additionalModelRequestFields": {"k": 1},
    }
    request = (
        await outcome(
            direct,
            BEDROCK,
            recorded("bedrock-text.bin"),
            provider_options={"bedrock": own},
            model_settings={"temperature": 0.25},
        )
    ).request
    assert request.path.endswith("/converse-stream")
    told = {name: request.body[name] for name in own}
    assert told == {**own, "inferenceConfig": {"temperature": 0.25, "topP": 0.5}}


@pytest.mark.parametrize("model", [GEMINI, BEDROCK])
async def test_files_elsewhere_are_fetched_by_litellm(direct: LiteLLMProvider, model: str) -> None:
    await direct.prepare()
    content = [{"type": "image", "image": "https://example.com/a.png", "mediaType": "image/png"}]
    call = ModelCall(model, [{"role": "user", "content": content}], api_key="k")
    assert await build_request(litellm_provider._litellm(), call, litellm_kwargs(call)) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AZURE_API_VERSION", "preview"),
        ("AZURE_API_BASE", "https://x.example.com/openai/deployments/y"),
        ("AZURE_OPENAI_AD_TOKEN", "t"),
        (None, None),
    ],
)
async def test_what_azure_has_besides_keys_is_litellms(
    direct: LiteLLMProvider, monkeypatch: pytest.MonkeyPatch, name: str | None, value: str
) -> None:
    await direct.prepare()
    monkeypatch.setenv("AZURE_API_BASE", "https://x.example.com")
    if name:
        monkeypatch.setenv(name, value)
    call = ModelCall("azure/gpt-4o", [{"role": "user", "content": "hi"}], api_key="k")
    built = await build_request(litellm_provider._litellm(), call, litellm_kwargs(call))
    assert (built is None) == bool(name)


async def test_a_missing_key(
    direct: LiteLLMProvider, wrapped: LiteLLMProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "PALM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    async with ModelServer(recorded("gemini-text.sse")) as server:
        for provider in (direct, wrapped):
            with pytest.raises(ProviderError, match="key") as raised:
                async for _ in provider.stream(asked(server, GEMINI, api_key=None)):
                    pass
            assert (raised.value.retryable, raised.value.status_code) == (False, None)
        assert server.requests == []
