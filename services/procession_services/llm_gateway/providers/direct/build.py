"""Finds out which dialect a call's provider speaks, and has its module build the request."""

import asyncio
from typing import Any

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.providers.direct import anthropic, azure, bedrock, gemini, openai
from procession_services.llm_gateway.providers.direct.http import Request
from procession_services.llm_gateway.providers.direct.lower import Target


async def build_request(litellm: Any, call: ModelCall, kwargs: dict[str, Any]) -> Request | None:
    """The request of a call whose provider has the lower layers; None for one that LiteLLM must make itself.

    `kwargs` are the arguments that `acompletion` would get.
    """
    target = Target.of(litellm, call, kwargs)
    match target.provider:
        case "anthropic":
            return anthropic.request(target)
        case "azure":
            return azure.request(target)
        case "bedrock":  # looking for credentials may take files and other servers
            return await asyncio.to_thread(bedrock.request, target)
        case "gemini":
            return gemini.request(target)
        case _:
            return openai.request(target)
