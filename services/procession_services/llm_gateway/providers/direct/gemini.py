"""Gemini of Google AI Studio; Vertex AI, with its access tokens, stays LiteLLM's."""

import os
from types import SimpleNamespace
from typing import Any, Final

from procession_services.llm_gateway.providers.direct.http import Request
from procession_services.llm_gateway.providers.direct.lower import Parse, Target, dumped, reused, sse_request

_KEYS: Final = ("GOOGLE_API_KEY", "GEMINI_API_KEY", "PALM_API_KEY")
_PLAIN: Final = frozenset({"candidates", "usageMetadata", "modelVersion", "responseId"})
"""What an event has that is nothing but a piece of text."""


def request(target: Target) -> Request | None:
    """The request; None without a key, and where LiteLLM has to fetch a file first."""
    from litellm.llms.vertex_ai.gemini.transformation import transform_request_body  # noqa: PLC0415 - takes seconds
    from litellm.llms.vertex_ai.gemini.vertex_and_google_ai_studio_gemini import (  # noqa: PLC0415
        ModelResponseIterator,
        VertexGeminiConfig,
        VertexLLM,
    )

    key = target.key or next((os.environ[name] for name in _KEYS if os.environ.get(name)), None)
    key = key or target.litellm.api_key
    if not key or "extra_body" in target.kwargs or target.has_remote_media() or target.needs_responses():
        return None
    optional = target.optional()
    optional.pop("stream", None)
    identity, url = VertexLLM().get_token_and_url(
        model=target.model,
        auth_header=None,
        gemini_api_key=key,
        vertex_project=None,
        vertex_location=None,
        vertex_credentials=None,
        stream=True,
        custom_llm_provider="gemini",
        api_base=target.base or target.litellm.api_base or os.environ.get("GEMINI_API_BASE"),
    )
    headers = VertexGeminiConfig().validate_environment(
        headers=target.headers,
        model=target.model,
        messages=target.messages,
        optional_params=optional,
        litellm_params={},
        api_key=identity,
    )
    asked: Any = SimpleNamespace(optional_params=optional)
    iterator = ModelResponseIterator(None, sync_stream=False, logging_obj=asked)
    body = transform_request_body(
        messages=target.messages,
        model=target.model,
        optional_params=dict(optional),
        custom_llm_provider="gemini",
        litellm_params={},
        cached_content=None,
    )
    return sse_request(url, headers, dict(body), _parser(iterator, VertexGeminiConfig.calculate_usage))


def _parser(iterator: Any, calculate_usage: Any) -> Parse:
    """Parses text and usage apart, as the usage grows with every piece of text; takes off invented reasons."""
    told = dumped(iterator.chunk_parser)

    def parse(event: dict[str, Any]) -> dict[str, Any] | None:
        made = told(event)
        candidates = event.get("candidates") or []
        if made and candidates and not any("finishReason" in candidate for candidate in candidates):
            for choice in made["choices"]:
                choice.pop("finish_reason", None)
        return made

    again = reused(parse, _plain)

    def parsed(event: dict[str, Any]) -> dict[str, Any] | None:
        if "usageMetadata" not in event or _plain(event) is None:
            return again(event)
        made = again({name: value for name, value in event.items() if name != "usageMetadata"})
        usage = calculate_usage(completion_response=event)
        return made and {**made, "usage": usage.model_dump(exclude_none=True, warnings=False)}

    return parsed


def _plain(event: dict[str, Any]) -> tuple[object, str] | None:
    candidates = event.get("candidates") or []
    if not event.keys() <= _PLAIN or len(candidates) != 1 or not candidates[0].keys() <= {"content", "index"}:
        return None
    parts = candidates[0].get("content", {}).get("parts") or []
    if len(parts) != 1 or parts[0].keys() != {"text"} or not parts[0]["text"]:
        return None
    return (event.get("responseId"), event.get("modelVersion"), candidates[0].get("index")), parts[0]["text"]
