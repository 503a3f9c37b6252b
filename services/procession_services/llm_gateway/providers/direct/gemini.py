"""Gemini of Google AI Studio; Vertex AI, with its access tokens, stays LiteLLM's."""

import os
from collections.abc import Callable, Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

from procession_services.llm_gateway.providers.direct.http import Request
from procession_services.llm_gateway.providers.direct.lower import (
    Parse,
    Target,
    dumped,
    has_remote_media,
    reused,
    sse_request,
)

_KEYS: Final = ("GOOGLE_API_KEY", "GEMINI_API_KEY", "PALM_API_KEY")
_PLAIN: Final = frozenset({"candidates", "usageMetadata", "modelVersion", "responseId"})
"""What an event has that is nothing but a piece of text."""
_WELL: Final = frozenset({"stop", "tool_calls"})
_TEXT: Final = "candidatesTokenCount"
_ALL: Final = "totalTokenCount"
_COUNTS: Final = frozenset(
    {
        _TEXT,
        _ALL,
        "promptTokenCount",
        "promptTokensDetails",
        "thoughtsTokenCount",
        "cachedContentTokenCount",
        "cacheTokensDetails",
        "serviceTier",
    }
)
"""What a report of usage has whose only tokens of text are those of the answer."""


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
    if (
        not key
        or "extra_body" in target.kwargs
        or has_remote_media(target.messages)
        or target.needs_responses()
    ):
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
    asked: Any = SimpleNamespace(optional_params=optional, litellm_params={})
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
    """Reads the usage, which comes with every piece of text, apart from it."""
    parse = dumped(iterator.chunk_parser)
    usage = _usage_reader(dumped(calculate_usage))
    return reused(parse, _plain, lambda event: {"usage": usage(event)} if "usageMetadata" in event else {})


def mend_parser() -> None:
    """Mends LiteLLM's parser of Gemini's events, through which Vertex AI's go as well.

    It fails at a call without arguments, which Google leaves out where they are empty.
    """
    reader = import_module(
        "litellm.llms.vertex_ai.gemini.vertex_and_google_ai_studio_gemini"
    ).ModelResponseIterator
    parse = reader.chunk_parser

    def chunk_parser(self: Any, chunk: dict[str, Any]) -> Any:
        candidates = chunk.get("candidates") or []
        for call in _calls(candidates):
            call.setdefault("args", {})
        made = parse(self, chunk)
        if made is not None and candidates:
            _set_reasons(made.choices, [candidate.get("finishReason") for candidate in candidates])
        return made

    reader.chunk_parser = chunk_parser


def _set_reasons(choices: list[Any], told: list[str | None]) -> None:
    """Sets the provider's reasons: LiteLLM makes up a missing one, and calls every end with a tool call a good one."""
    for choice in choices:
        if not any(told):
            choice.finish_reason = None
        elif told[0] not in (None, "STOP") and choice.finish_reason in _WELL:
            choice.finish_reason = told[0]


def _calls(candidates: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for candidate in candidates:
        for part in (candidate.get("content") or {}).get("parts") or []:
            if call := part.get("functionCall"):
                yield call


def _usage_reader(calculate: Parse) -> Callable[[dict[str, Any]], dict[str, Any] | None]:
    """Asks LiteLLM about the first of several reports that differ in nothing but the tokens of the text."""
    known: tuple[dict[str, Any], dict[str, Any]] | None = None

    def usage(event: dict[str, Any]) -> dict[str, Any] | None:
        nonlocal known
        report = event["usageMetadata"]
        more = _more_text(known[0], report) if known is not None else None
        if known is not None and more is not None:
            first = known[1]
            details = first["completion_tokens_details"]
            return {
                **first,
                "completion_tokens": first["completion_tokens"] + more,
                "total_tokens": first["total_tokens"] + more,
                "completion_tokens_details": {**details, "text_tokens": details["text_tokens"] + more},
            }
        made = calculate(event)
        known = (report, made) if made and report.keys() <= _COUNTS and report.get(_TEXT) else None
        return made

    return usage


def _more_text(before: dict[str, Any], now: dict[str, Any]) -> int | None:
    """How many tokens of text a report tells more than another; None if they differ in more than that."""
    if not now.get(_TEXT) or not isinstance(now.get(_ALL), int) or _ALL not in before:
        return None
    more: int = now[_TEXT] - before[_TEXT]
    return more if {**before, _TEXT: now[_TEXT], _ALL: before[_ALL] + more} == now else None


def _plain(event: dict[str, Any]) -> tuple[object, str] | None:
    candidates = event.get("candidates") or []
    if not event.keys() <= _PLAIN or len(candidates) != 1 or not candidates[0].keys() <= {"content", "index"}:
        return None
    parts = (candidates[0].get("content") or {}).get("parts") or []
    if len(parts) != 1 or not parts[0].keys() <= {"text", "thought"} or not parts[0].get("text"):
        return None
    about = (
        event.get("responseId"),
        event.get("modelVersion"),
        candidates[0].get("index"),
        parts[0].get("thought"),
        "usageMetadata" in event,
    )
    return about, parts[0]["text"]
