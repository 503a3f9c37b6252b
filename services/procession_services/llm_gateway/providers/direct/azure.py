"""OpenAI's models on Azure: OpenAI's dialect, another URL, another header."""

import os
from typing import Final
from urllib.parse import quote

from procession_services.llm_gateway.providers.direct.http import Request
from procession_services.llm_gateway.providers.direct.lower import Target, sse_request

_OWN_PATHS: Final = ("/openai", "gateway.ai.cloudflare.com")
"""What a base URL has that is no bare endpoint of Azure."""
_UNDATED: Final = ("v1", "latest", "preview")
"""API versions that live at another URL."""
_IDENTITIES: Final = ("AZURE_OPENAI_AD_TOKEN", "AZURE_AD_TOKEN", "AZURE_USERNAME", "AZURE_PASSWORD")
"""Other ways to say who asks; they go before a key."""


def request(target: Target) -> Request | None:
    """The request; None where it takes more than a key and a dated version of the API."""
    litellm, environ = target.litellm, os.environ
    base = target.base or litellm.api_base or environ.get("AZURE_API_BASE")
    version = litellm.api_version or environ.get("AZURE_API_VERSION") or litellm.AZURE_DEFAULT_API_VERSION
    key = target.key or litellm.api_key or litellm.azure_key
    key = key or environ.get("AZURE_OPENAI_API_KEY") or environ.get("AZURE_API_KEY")
    if not base or not key or version in _UNDATED or any(part in base for part in _OWN_PATHS):
        return None
    if any(name in environ for name in _IDENTITIES) or target.needs_responses():
        return None
    config = target.config()
    if config.should_fake_stream(target.model, stream=True, custom_llm_provider="azure"):
        return None
    # LiteLLM would look the version up itself, and what it translates would depend on the environment.
    optional = target.optional(api_version=version)
    extra = {**optional.pop("extra_body", {}), **target.kwargs.get("extra_body", {})}
    optional.pop("json_mode", None)
    headers = {"content-type": "application/json", "api-key": key, **target.headers}
    body = config.transform_request(
        model=target.model,
        messages=target.messages,
        optional_params=optional,
        litellm_params={},
        headers=headers,
    )
    deployment = quote(body["model"], safe="")  # without `gpt5_series/`, by which LiteLLM knows what it is
    url = f"{base.rstrip('/')}/openai/deployments/{deployment}/chat/completions?api-version={quote(version)}"
    return sse_request(url, headers, {**body, **extra, "stream": True}, None)
