"""Providers that speak OpenAI's dialect over plain HTTP."""

import os
from functools import lru_cache
from typing import Any, Final

from procession_services.llm_gateway.core.request import merged_headers
from procession_services.llm_gateway.providers.direct.http import Request
from procession_services.llm_gateway.providers.direct.lower import (
    Parse,
    Target,
    config_of,
    dumped,
    sse_request,
)
from procession_services.llm_gateway.providers.keys import NO_KEY

_INTERNAL: Final = frozenset({"fake_stream", "json_mode"})
"""What LiteLLM notes among the parameters for itself: it has to make the stream, or the text, of something else."""
_AS_THEY_ARE: Final = frozenset({"groq", "mistral", "openrouter"})
"""Providers whose parser says nothing new to us, and fails where it misses a field."""
_ENVIRONMENT: Final[dict[str, dict[str, str]]] = {
    "openai": {
        "OPENAI_ORG_ID": "OpenAI-Organization",
        "OPENAI_ORGANIZATION": "OpenAI-Organization",
        "OPENAI_PROJECT_ID": "OpenAI-Project",
    },
    "openrouter": {"OR_SITE_URL": "HTTP-Referer", "OR_APP_NAME": "X-Title"},
}
"""Variables that say for whom it is, beside the key, and their headers, as OpenAI's SDK and LiteLLM have them."""


def request(target: Target) -> Request | None:
    """The request; None for a provider whose place or key only LiteLLM knows, or that it reads in a way of its own."""
    config = _config(target.model, target.provider)
    if config is None or target.needs_responses():
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
    parameters: dict[str, Any] = {"api_base": base, "custom_llm_provider": target.provider}
    headers = config.validate_environment(
        headers=target.headers,
        model=target.model,
        messages=target.messages,
        optional_params=optional,
        litellm_params=parameters,
        api_key=key,
        api_base=base,
    )
    ours = {} if key == NO_KEY else _from_environment(target.provider)
    # An authorization of the caller's own counts, too.
    headers = merged_headers(headers, ours, target.headers)
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


def _from_environment(provider: str) -> dict[str, str]:
    headers = _ENVIRONMENT.get(provider, {})
    return {header: value for name, header in headers.items() if (value := os.environ.get(name))}


@lru_cache(maxsize=256)
def _config(model: str, provider: str) -> Any:
    """LiteLLM's configuration class, which holds nothing of a call; None where the provider speaks otherwise."""
    config = config_of(model, provider)
    return config if config is not None and _is_openai_shaped(config, provider) else None


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
