"""Pieces of text are read without asking LiteLLM's parser, and give what it would give."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.request import litellm_kwargs
from procession_services.llm_gateway.providers.direct import gemini
from procession_services.llm_gateway.providers.direct.lower import Target
from procession_services.llm_gateway.providers.litellm_provider import _litellm

Parse = Callable[[bytes], dict[str, Any] | None]


def reader() -> Parse:
    """What reads the events of a new answer of Gemini."""
    call = ModelCall("gemini/gemini-2.5-flash", [{"role": "user", "content": "hi"}])
    target = Target(_litellm(), "gemini-2.5-flash", "gemini", "k", None, litellm_kwargs(call))
    request = gemini.request(target)
    assert request is not None
    return request.parse


def parsed(parse: Parse, event: dict[str, Any]) -> dict[str, Any]:
    made = parse(orjson.dumps(event))
    assert made is not None
    return {name: value for name, value in made.items() if name != "created"}


counts = st.integers(0, 3)
reports = st.fixed_dictionaries(
    {"promptTokenCount": counts},
    optional={
        "thoughtsTokenCount": counts,
        "cachedContentTokenCount": counts,
        "toolUsePromptTokenCount": counts,
        "promptTokensDetails": st.just([{"modality": "TEXT", "tokenCount": 3}]),
        "candidatesTokensDetails": st.just([{"modality": "TEXT", "tokenCount": 1}]),
        "serviceTier": st.just("standard"),
    },
)
changes = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("candidatesTokenCount", "totalTokenCount", "thoughtsTokenCount"), counts)
)
texts = st.sampled_from(["a", "assistant", "é"])
kinds = st.sampled_from([{}, {"thought": True}, {"thought": False}])


@given(reports, kinds, st.lists(st.tuples(texts, st.just({}) | changes | st.none()), min_size=4, max_size=9))
@example(
    {"promptTokenCount": 9},
    {},
    [("a", {}), ("a", {"candidatesTokenCount": 0, "totalTokenCount": 9}), ("a", {})],
)
@settings(deadline=None)
def test_an_event_of_gemini_gives_what_it_gives_alone(
    report: dict[str, Any], kind: dict[str, bool], events: list[Any]
) -> None:
    parse = reader()
    for number, (text, change) in enumerate(events, 1):
        candidate = {"content": {"parts": [{"text": text, **kind}], "role": "model"}, "index": 0}
        event: dict[str, Any] = {"candidates": [candidate], "responseId": "r", "modelVersion": "g"}
        if change is not None:
            usage = {"candidatesTokenCount": number, "totalTokenCount": 9 + number, **change}
            event["usageMetadata"] = {**report, **usage}
        assert parsed(parse, event) == parsed(reader(), event)


def test_gemini_counts_tokens_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    from litellm.llms.vertex_ai.gemini.vertex_and_google_ai_studio_gemini import (  # noqa: PLC0415 - takes seconds
        VertexGeminiConfig,
    )

    asked = 0
    calculate = VertexGeminiConfig.calculate_usage

    def counted(completion_response: Any, **more: Any) -> Any:
        nonlocal asked
        asked += 1
        return calculate(completion_response, **more)

    monkeypatch.setattr(VertexGeminiConfig, "calculate_usage", counted)
    parse = reader()
    for number in range(2, 20):
        part = {"content": {"parts": [{"text": "a"}]}, "index": 0}
        report: dict[str, Any] = {"promptTokenCount": 9, "serviceTier": "standard"}
        report |= {"candidatesTokenCount": number, "totalTokenCount": 9 + number}
        made = parsed(parse, {"candidates": [part], "responseId": "r", "usageMetadata": report})
        assert (made["usage"]["completion_tokens"], made["usage"]["total_tokens"]) == (number, 9 + number)
    assert asked <= 2


def test_content_that_is_nothing_is_no_text() -> None:
    candidate = {"content": None, "index": 0}
    [choice] = parsed(reader(), {"candidates": [candidate], "responseId": "r"})["choices"]
    assert "content" not in choice["delta"]


def test_a_call_without_arguments_has_empty_ones() -> None:
    candidate = {"content": {"parts": [{"functionCall": {"name": "f"}}], "role": "model"}, "index": 0}
    [choice] = parsed(reader(), {"candidates": [candidate], "responseId": "r"})["choices"]
    assert choice["delta"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("said", "reason"),
    [("SAFETY", "SAFETY"), ("MAX_TOKENS", "MAX_TOKENS"), ("STOP", "tool_calls"), ("BRAND_NEW", "BRAND_NEW")],
)
def test_an_answer_with_a_call_may_have_been_stopped(said: str, reason: str) -> None:
    call = {"parts": [{"functionCall": {"name": "f", "args": {}}}], "role": "model"}
    candidate = {"content": call, "index": 0, "finishReason": said}
    [choice] = parsed(reader(), {"candidates": [candidate], "responseId": "r"})["choices"]
    assert choice["finish_reason"] == reason
