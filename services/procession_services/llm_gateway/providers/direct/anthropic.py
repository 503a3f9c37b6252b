"""Anthropic's messages."""

import os
from typing import Any

from procession_services.llm_gateway.providers.direct.http import Request
from procession_services.llm_gateway.providers.direct.lower import Target, dumped, reused, sse_request


def request(target: Target) -> Request | None:
    """The request; None without a key, and with options that only LiteLLM can place."""
    from litellm.llms.anthropic.chat.handler import ModelResponseIterator  # noqa: PLC0415 - takes seconds
    from litellm.llms.anthropic.chat.transformation import (  # noqa: PLC0415
        ANTHROPIC_TOOL_NAME_REVERSE_MAP_KEY,
    )

    config, litellm = target.config(), target.litellm
    key = target.key or litellm.anthropic_key or litellm.api_key or os.environ.get("ANTHROPIC_API_KEY")
    if config is None or not key or "extra_body" in target.kwargs:
        return None
    optional = target.optional()
    json_mode = optional.pop("json_mode", False)
    optional.pop("is_vertex_request", None)
    headers = config.validate_environment(
        headers=target.headers,
        model=target.model,
        messages=target.messages,
        optional_params=optional,
        litellm_params={},
        api_key=key,
    )
    noted: dict[str, Any] = {}
    body = config.transform_request(
        model=target.model,
        messages=target.messages,
        optional_params=dict(optional),
        litellm_params=noted,
        headers=headers,
    )
    url = target.base or litellm.api_base
    url = url or os.environ.get("ANTHROPIC_API_BASE") or os.environ.get("ANTHROPIC_BASE_URL")
    url = (url or "https://api.anthropic.com").rstrip("/")
    if not url.endswith("/v1/messages"):
        url = url.removesuffix("/v1") + "/v1/messages"
    iterator = ModelResponseIterator(
        iter(()),
        sync_stream=False,
        json_mode=json_mode,
        tool_name_reverse_map=noted.get(ANTHROPIC_TOOL_NAME_REVERSE_MAP_KEY),
    )
    parse = dumped(iterator.chunk_parser)
    return sse_request(url, headers, {**body, "stream": True}, parse if json_mode else reused(parse, _plain))


def _plain(event: dict[str, Any]) -> tuple[object, str] | None:
    delta = event.get("delta")
    if (
        event.keys() != {"type", "index", "delta"}
        or not isinstance(delta, dict)
        or delta.keys() != {"type", "text"}
    ):
        return None
    return (event["index"], delta["text"]) if delta["type"] == "text_delta" else None
