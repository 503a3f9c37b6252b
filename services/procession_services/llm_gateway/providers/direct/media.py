"""Files that a prompt names by their URL, and that LiteLLM fetches to put them into the request.

Where it makes a request at once, it would fetch them at once, too, and nobody else had a turn meanwhile.
"""

from typing import Any, Final

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.providers.direct.lower import Target, has_remote_media

_PASSED_ON: Final = frozenset({"litellm_proxy"})
"""Providers in OpenAI's dialect to which LiteLLM leaves the fetching."""


async def with_media(litellm: Any, call: ModelCall, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `acompletion`, with the content of the files that LiteLLM would fetch for this provider.

    LiteLLM does fetch them, by its functions that wait: they refuse addresses that are not public.

    Raises:
        litellm.ImageFetchError: A file cannot be had, may not be had, or is too large.
    """
    if not has_remote_media(kwargs["messages"]):
        return kwargs
    from litellm.litellm_core_utils.prompt_templates.image_handling import (  # noqa: PLC0415 - takes seconds
        async_format_pdf_links,
        async_inline_remote_media,
    )
    from litellm.llms.anthropic.chat.transformation import AnthropicConfig  # noqa: PLC0415
    from litellm.llms.openai.chat.gpt_transformation import OpenAIGPTConfig  # noqa: PLC0415

    target = Target.of(litellm, call, kwargs)
    config = target.config()
    messages = target.messages
    if isinstance(config, OpenAIGPTConfig):
        if target.provider not in _PASSED_ON and not config.uses_async_transform_request:
            messages = [await _with_files(config, target.model, message) for message in messages]
    elif isinstance(config, AnthropicConfig):
        messages = await async_inline_remote_media(messages, config.inlines_remote_media)
        messages = list(await async_format_pdf_links(messages, config.probes_pdf_link))
    return {**kwargs, "messages": messages}


async def _with_files(config: Any, model: str, message: dict[str, Any]) -> dict[str, Any]:
    """The message with what the provider's configuration fetches for it; the other files keep their URLs."""
    if message["role"] not in ("user", "tool") or not has_remote_media([message]):
        return message
    if message["role"] == "user":
        [made] = await config._transform_messages([message], model, is_async=True)  # noqa: SLF001
        return dict(made)
    return {
        **message,
        "content": [await _with_file(config, model, message, part) for part in message["content"]],
    }


async def _with_file(
    config: Any, model: str, message: dict[str, Any], part: dict[str, Any]
) -> dict[str, Any]:
    """The part of a tool's result with its file.

    LiteLLM moves files into a user's message, which has to stay behind the results of all calls: so only the file is
    taken of what it makes.
    """
    asked = [{**message, "content": [part]}]
    *_, last = await config._transform_messages(asked, model, is_async=True)  # noqa: SLF001
    [*_, made] = last["content"]
    return made if isinstance(made, dict) and "file_data" in (made.get("file") or {}) else part


def limit_fetching() -> None:
    """Has LiteLLM stop reading a file at `MAX_IMAGE_URL_DOWNLOAD_SIZE_MB`; it would look at the size at the end."""
    from litellm.constants import MAX_IMAGE_URL_DOWNLOAD_SIZE_MB  # noqa: PLC0415 - takes seconds
    from litellm.exceptions import ImageFetchError  # noqa: PLC0415
    from litellm.litellm_core_utils.prompt_templates import factory, image_handling  # noqa: PLC0415
    from litellm.litellm_core_utils.url_utils import async_safe_get  # noqa: PLC0415
    from litellm.llms.custom_httpx.http_handler import HTTPResponseLimitError  # noqa: PLC0415

    most = int(MAX_IMAGE_URL_DOWNLOAD_SIZE_MB * 1024 * 1024)

    async def get(client: Any, url: str, **more: Any) -> Any:
        try:
            return await async_safe_get(client, url, **{"max_response_bytes": most, **more})
        except HTTPResponseLimitError as error:
            said = f"the file {url} cannot be fetched: {error} ({MAX_IMAGE_URL_DOWNLOAD_SIZE_MB:g} MB)"
            raise ImageFetchError(said) from error

    for module in (factory, image_handling):
        vars(module)["async_safe_get"] = get
