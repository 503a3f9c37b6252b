"""Providers that speak OpenAI's dialect over plain HTTP."""

import os
from typing import Any, Final

from procession_services.llm_gateway.core.request import merged_headers
from procession_services.llm_gateway.providers.direct.http import Request
from procession_services.llm_gateway.providers.direct.lower import Parse, Target, dumped, sse_request

_INTERNAL: Final = frozenset({"fake_stream", "json_mode"})
"""What LiteLLM notes among the parameters for itself: it has to make the stream, or the text, of something else."""
_AS_THEY_ARE: Final = frozenset({"groq", "openrouter"})
"""Providers whose parser renames `reasoning`, which is known by both names, and fails where it misses a field."""


def request(target: Target) -> Request | None:
    """The request; None for a provider whose place or key only LiteLLM knows, or that it reads in a way of its own."""
    config = target.config()
    if config is None or not _is_openai_shaped(config, target.provider) or target.needs_responses():
        return None
    base, key = target.base, target.key
    if target.provider == "openai":  # of any other, these would name OpenAI's place and OpenAI's key
        base, key = config.get_api_base(base), config.get_api_key(key)
    if not base or not key:
        return None
    base = base.rstrip("/")
    optional = target.optional()
    if not _INTERNAL.isdisjoint(optional):
        return None
    extra = {**optional.pop("extra_body", {}), **target.kwargs.get("extra_body", {})}
    parameters: dict[str, Any] = {"api_base": base}
    headers = config.validate_environment(
        headers=target.headers,
        model=target.model,
        messages=target.messages,
        optional_params=optional,
        litellm_params=parameters,
        api_key=key,
        api_base=base,
    )
    organization = target.litellm.organization or os.environ.get("OPENAI_ORGANIZATION")
    if target.provider == "openai" and organization:
        headers.setdefault("OpenAI-Organization", organization)
    headers = merged_headers(headers, target.headers)  # an authorization of the caller's own, too
    url = config.get_complete_url(
        api_base=base,
        api_key=key,
        model=target.model,
        optional_params=optional,
        litellm_params=parameters,
        stream=True,
    )
    if url != f"{base}/chat/completions":
        return None
    body = config.transform_request(
        model=target.model,
        messages=target.messages,
        optional_params=optional,
        litellm_params=parameters,
        headers=headers,
    )
    return sse_request(url, headers, {**body, **extra, "stream": True}, _parser(config, target.provider))


def _is_openai_shaped(config: Any, provider: str) -> bool:
    """Whether the provider speaks OpenAI's dialect over plain HTTP: nothing to sign, no reader of its own."""
    from litellm.llms.base_llm.chat.transformation import BaseConfig  # noqa: PLC0415 - takes seconds
    from litellm.llms.openai.chat.gpt_transformation import OpenAIGPTConfig  # noqa: PLC0415

    return (
        isinstance(config, OpenAIGPTConfig)
        and provider not in ("azure_ai", "databricks")
        and type(config).sign_request is BaseConfig.sign_request
        and not config.has_custom_stream_wrapper
        and not config.uses_async_transform_request
        and hasattr(config.get_model_response_iterator(iter(()), sync_stream=False), "chunk_parser")
    )


def _parser(config: Any, provider: str) -> Parse | None:
    """None where an event is what we want already; else the provider's own parser."""
    from litellm.llms.openai.chat.gpt_transformation import OpenAIChatCompletionStreamingHandler  # noqa: PLC0415

    iterator = config.get_model_response_iterator(iter(()), sync_stream=False)
    if type(iterator) is OpenAIChatCompletionStreamingHandler or provider in _AS_THEY_ARE:
        return None
    return dumped(iterator.chunk_parser)
