"""What the recorded streams say, read by our own client: text, reasoning, calls, usage, reasons, errors."""

from typing import Any, Final

import pytest

from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider
from tests.unit.procession_services.llm_gateway.providers.replay import (
    MODELS,
    STREAMS,
    dialect,
    outcome,
    recorded,
)

SIGNATURE: Final = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds"


def streamed(*pieces: str, args: dict[str, Any]) -> list[Any]:
    """A call whose arguments come in pieces."""
    deltas = [("tool-call-delta", piece) for piece in pieces]
    return [
        ("tool-call-input-streaming-start",),
        *deltas,
        ("tool-call-input-streaming-end",),
        ("tool-call", args),
    ]


def text(*pieces: str) -> list[Any]:
    return [("text-start",), *(("text-delta", piece) for piece in pieces), ("text-end",)]


WEATHER: Final = streamed('{"ci', 'ty": "Pa', 'ris"}', args={"city": "Paris"})
TIME: Final = streamed('{"zone":', ' "Europe/Paris"}', args={"zone": "Europe/Paris"})
OKAY: Final = text("Okay, let's", " check.")
THOUGHT: Final = [
    ("reasoning-start",),
    ("reasoning-delta", "27 * 453:"),
    ("reasoning-delta", " 12231"),
    ("reasoning-signature", SIGNATURE),
    ("reasoning-end",),
]
GREETING: Final = text("Grüß", " Gott, ", "日本 🙂")

CONTENTS: Final[dict[str, list[Any]]] = {
    "openai-text.sse": GREETING,
    "anthropic-text.sse": GREETING,
    "gemini-text.sse": GREETING,
    "bedrock-text.bin": GREETING,
    "openai-reasoning.sse": [
        ("reasoning-start",),
        ("reasoning-delta", "The user"),
        ("reasoning-delta", " greets."),
        ("reasoning-end",),
        *text("Hello", "!"),
    ],
    "anthropic-thinking.sse": [
        *THOUGHT,
        (
            "redacted-reasoning",
            "EmwKAhgBEgy3va3pzix/LafPsn4aDFIT2Xlxh0L5L8rLVyIwxtE3rAFBa8cr3qpPkNRj2YfWXGmKDxH4",
        ),
        *text("27 * 453 = ", "12231"),
    ],
    "bedrock-thinking.bin": [
        *THOUGHT,
        ("redacted-reasoning", "EmwKAhgBEgy3va3pzix/LafPsn4aDFIT2Xlxh0L5L8rLVyIw"),
        *text("27 * 453 = ", "12231"),
    ],
    "gemini-thinking.sse": [
        ("reasoning-start",),
        ("reasoning-delta", "**Greeting**\n\nThe user"),
        ("reasoning-delta", " greets me.\n"),
        ("reasoning-end",),
        *text("Hello", "!"),
    ],
    "openai-tools.sse": [
        *streamed('{"ci', 'ty":"Paris"}', args={"city": "Paris"}),
        *streamed('{"zone":', '"Europe/Paris","24h":true}', args={"zone": "Europe/Paris", "24h": True}),
        *streamed("{}", args={}),
    ],
    "anthropic-tools.sse": [*OKAY, *WEATHER, *TIME, *streamed("{}", args={})],
    "bedrock-tools.bin": [*OKAY, *WEATHER, *TIME, ("tool-call", {})],
    "gemini-tools.sse": [
        *text("Let me look."),
        ("tool-call", {"city": "Paris"}),
        ("tool-call", {"zone": "Europe/Paris", "24h": True}),
        ("tool-call", {}),
    ],
    "anthropic-mixed.sse": [*text("a", "b"), *streamed("{}", args={}), *text("c", "d")],
    "gemini-mixed.sse": [*text("a", "b"), ("tool-call", {}), *text("c", "de", "f", "g")],
    "bedrock-mixed.bin": [*text("a", "b"), *streamed("{}", args={}), *text("c", "d")],
    "openai-refusal.sse": text("I'm sorry,", " I can't."),
    "openai-length-in-call.sse": [
        ("tool-call-input-streaming-start",),
        ("tool-call-delta", '{"text":"half of'),
        ("tool-call-input-streaming-end",),
        ("tool-call", '{"text":"half of'),
    ],
}


@pytest.mark.parametrize("name", CONTENTS)
async def test_contents(direct: LiteLLMProvider, name: str) -> None:
    answer = await outcome(direct, MODELS[dialect(name)][0], recorded(name))
    assert answer.brief() == CONTENTS[name]


ENDS: Final[dict[str, tuple[str, dict[str, int]]]] = {
    "openai-text.sse": ("stop", {"inputTokens": 2006, "outputTokens": 300, "cachedInputTokens": 1920}),
    "openai-reasoning.sse": ("stop", {"outputTokens": 40, "reasoningTokens": 32}),
    "openai-no-done.sse": ("stop", {}),
    "openai-tools.sse": ("tool-calls", {"inputTokens": 82, "outputTokens": 51, "totalTokens": 133}),
    "openai-length.sse": ("length", {"totalTokens": 12}),
    "openai-content-filter.sse": ("content-filter", {"totalTokens": 22}),
    "anthropic-text.sse": (
        "stop",
        {"inputTokens": 1923, "outputTokens": 15, "cachedInputTokens": 1800, "cacheCreationInputTokens": 120},
    ),
    "anthropic-tools.sse": ("tool-calls", {"totalTokens": 561}),
    "anthropic-length.sse": ("length", {"outputTokens": 3}),
    "anthropic-refusal.sse": ("content-filter", {"outputTokens": 2}),
    "anthropic-stop-sequence.sse": ("stop", {"outputTokens": 5}),
    "gemini-text.sse": ("stop", {"inputTokens": 2100, "outputTokens": 12, "cachedInputTokens": 2048}),
    "gemini-thinking.sse": ("stop", {"inputTokens": 9, "outputTokens": 43, "reasoningTokens": 41}),
    "gemini-tools.sse": ("tool-calls", {"totalTokens": 110}),
    "gemini-no-end.sse": ("stop", {"totalTokens": 10}),
    "gemini-length.sse": ("length", {"totalTokens": 13}),
    "gemini-unfinished.sse": (
        "other",
        {"inputTokens": 2100, "outputTokens": 12, "cachedInputTokens": 2048, "reasoningTokens": 7},
    ),
    "gemini-safety.sse": ("content-filter", {"totalTokens": 11}),
    "gemini-blocked.sse": ("content-filter", {"inputTokens": 9}),
    "bedrock-text.bin": (
        "stop",
        {"inputTokens": 1923, "outputTokens": 15, "cachedInputTokens": 1800, "cacheCreationInputTokens": 120},
    ),
    "bedrock-tools.bin": ("tool-calls", {"inputTokens": 472, "outputTokens": 89, "totalTokens": 561}),
    "bedrock-length.bin": ("length", {"outputTokens": 3}),
    "bedrock-guardrail.bin": ("content-filter", {"inputTokens": 25}),
    "bedrock-content-filter.bin": ("content-filter", {"outputTokens": 2}),
    "bedrock-unknown-event.bin": ("stop", {"totalTokens": 4}),
}


@pytest.mark.parametrize("name", ENDS)
async def test_ends(direct: LiteLLMProvider, name: str) -> None:
    answer = await outcome(direct, MODELS[dialect(name)][0], recorded(name))
    reason, usage = answer.end()
    expected, tokens = ENDS[name]
    assert (reason, {key: usage[key] for key in tokens}) == (expected, tokens)


ERRORS: Final[dict[str, dict[str, Any]]] = {
    "openai-error.sse": {"kind": "stream", "type": "server_error"},
    "openai-error-first.sse": {"kind": "api", "type": "server_error", "code": "overloaded"},
    "anthropic-error.sse": {"kind": "stream", "type": "overloaded_error", "message": "Overloaded"},
    "anthropic-error-first.sse": {"kind": "api", "statusCode": 529, "isRetryable": True},
    "gemini-error.sse": {"kind": "stream", "type": "UNAVAILABLE", "code": "503", "isRetryable": False},
    "gemini-error-first.sse": {
        "kind": "api",
        "type": "RESOURCE_EXHAUSTED",
        "statusCode": 429,
        "isRetryable": True,
    },
    "bedrock-error.bin": {
        "kind": "stream",
        "type": "modelStreamErrorException",
        "message": "The model failed in the middle.",
    },
    "bedrock-error-first.bin": {
        "kind": "api",
        "type": "throttlingException",
        "message": "Too many tokens, please wait before trying again.",
        "statusCode": 429,
        "isRetryable": True,
    },
}


@pytest.mark.parametrize("name", ERRORS)
async def test_errors_in_a_stream(direct: LiteLLMProvider, name: str) -> None:
    answer = await outcome(direct, MODELS[dialect(name)][0], recorded(name))
    expected = ERRORS[name]
    assert {key: answer.failure.get(key) for key in expected} == expected
    begun = [] if "-error-first" in name else [("text-start",), ("text-delta", "Hel"), ("text-delta", "lo")]
    assert answer.brief() == begun


def test_nothing_recorded_goes_unread() -> None:
    assert {*CONTENTS, *ENDS, *ERRORS} == set(STREAMS)
