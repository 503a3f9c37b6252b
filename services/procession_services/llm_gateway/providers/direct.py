"""Streams at a plain reader's cost: LiteLLM's lower layers build the request and parse events, our client carries them.

LiteLLM has a configuration class for each provider that knows its parameters, URL, headers and body, and a parser for
one event of its stream. `acompletion` wraps them into machinery that costs more than all the rest of a run
(docs/adr/0012). Providers without these layers, and calls that need more than them, still go through it.
"""

import io
import os
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
import orjson

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.providers.openai_events import EventReader

Parse = Callable[[dict[str, Any]], dict[str, Any] | None]
"""One decoded event of the provider's stream -> a `chat.completion.chunk` as a dict, or None."""
_APART: Final = frozenset(
    {"model", "messages", "num_retries", "max_retries", "extra_headers", "api_base", "api_key", "extra_body"}
)
"""Arguments of `acompletion` that are no parameters of the answer."""
_CONNECT_SECONDS: Final = 30.0
_LARGE: Final = 1_000_000


class EventError(Exception):
    """The provider reports an error in its stream; `body` is its error object."""

    def __init__(self, body: Any) -> None:
        message = body.get("message") if isinstance(body, dict) else body
        super().__init__(str(message or "the provider reported an error"))
        self.body = body if isinstance(body, dict) else {"message": str(body)}


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a provider, ready to be sent, and what reads the events of the answer."""

    url: str
    headers: dict[str, str]
    body: bytes
    parse: Parse | None


class Connections:
    """The HTTP connections of one process; made when first needed."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    def session(self) -> aiohttp.ClientSession:
        """The client."""
        if self._session is None or self._session.closed:
            limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, timeout=limits)
        return self._session

    async def aclose(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()


async def direct_events(
    request: Request, connections: Connections
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Sends the request and yields the events of the answer, all that came in one read together.

    Raises:
        httpx.HTTPStatusError: The provider refused; LiteLLM's paths raise the same.
        EventError: An event reports an error.
        aiohttp.ClientError: The provider cannot be reached, or the connection broke.
        ValueError: An event is not JSON.
    """
    # The client's own `trust_env` would look for a .netrc in a thread, for every request.
    proxy = _proxy(urlsplit(request.url)[:2])
    body = request.body if len(request.body) < _LARGE else io.BytesIO(request.body)  # sent in pieces
    sending = connections.session().post(request.url, data=body, headers=request.headers, proxy=proxy)
    async with sending as response:
        if response.status >= httpx.codes.BAD_REQUEST:
            raise await _refusal(request, response)
        reader = EventReader()
        async for data in response.content.iter_any():
            events: list[dict[str, Any]] = []
            failure: Exception | None = None
            for body in reader.feed(data):
                try:
                    event = _parsed(orjson.loads(body), request.parse)
                except Exception as error:  # noqa: BLE001 - parsers raise what they like; what came before counts
                    failure = error
                    break
                if event is not None:
                    events.append(event)
            if events:
                yield events
            if failure is not None:
                raise failure
            if reader.done:
                return


@cache
def _proxy(place: tuple[str, str]) -> str | None:
    """The proxy that the environment names for a scheme and host."""
    scheme, host = place
    return None if proxy_bypass(host) else getproxies().get(scheme)


def _parsed(event: Any, parse: Parse | None) -> dict[str, Any] | None:
    if not isinstance(event, dict):
        raise EventError(f"an event is no object: {str(event)[:200]}")
    if event.get("error"):
        raise EventError(event["error"])
    return event if parse is None else parse(event)


async def _refusal(request: Request, response: aiohttp.ClientResponse) -> httpx.HTTPStatusError:
    asked = httpx.Request("POST", request.url)
    said = httpx.Response(
        response.status,
        headers=[(k, v) for k, v in response.headers.items() if k.lower() != "content-encoding"],
        content=await response.read(),
        request=asked,
    )
    return httpx.HTTPStatusError(f"HTTP {response.status}", request=asked, response=said)


def build_request(litellm: Any, call: ModelCall, kwargs: dict[str, Any]) -> Request | None:
    """The request of a call whose provider has the lower layers; None for one that LiteLLM must make itself.

    `kwargs` are the arguments that `acompletion` would get.
    """
    model, provider, key, base = litellm.get_llm_provider(
        model=call.model, api_base=call.api_base, api_key=call.api_key
    )
    if provider == "anthropic":
        return _anthropic(litellm, model, key or call.api_key, base, kwargs)
    return _openai(litellm, model, provider, (key, base), kwargs)


def _openai(
    litellm: Any, model: str, provider: str, given: tuple[str | None, str | None], kwargs: dict[str, Any]
) -> Request | None:
    config = _config(model, provider)
    if (
        config is None
        or not _is_openai_shaped(config, provider)
        or _needs_responses(litellm, model, provider)
    ):
        return None
    key, base = config.get_api_key(given[0]), given[1]
    if not key and provider == "openai":
        return None
    optional = _optional(litellm, model, provider, kwargs)
    extra = {**optional.pop("extra_body", {}), **kwargs.get("extra_body", {})}
    parameters: dict[str, Any] = {"api_base": base}
    headers = config.validate_environment(
        headers=dict(kwargs.get("extra_headers", {})),
        model=model,
        messages=kwargs["messages"],
        optional_params=optional,
        litellm_params=parameters,
        api_key=key,
        api_base=base,
    )
    if provider == "openai" and (
        organization := litellm.organization or os.environ.get("OPENAI_ORGANIZATION")
    ):
        headers.setdefault("OpenAI-Organization", organization)
    url = config.get_complete_url(
        api_base=base,
        api_key=key,
        model=model,
        optional_params=optional,
        litellm_params=parameters,
        stream=True,
    )
    body = config.transform_request(
        model=model,
        messages=kwargs["messages"],
        optional_params=optional,
        litellm_params=parameters,
        headers=headers,
    )
    return _request(url, headers, {**body, **extra, "stream": True}, _openai_parser(config))


def _is_openai_shaped(config: Any, provider: str) -> bool:
    """Whether the provider speaks OpenAI's dialect over plain HTTP: nothing to sign, no reader of its own."""
    from litellm.llms.base_llm.chat.transformation import BaseConfig  # noqa: PLC0415 - takes seconds
    from litellm.llms.openai.chat.gpt_transformation import OpenAIGPTConfig  # noqa: PLC0415

    return (
        isinstance(config, OpenAIGPTConfig)
        and provider not in ("azure", "azure_ai", "databricks")
        and type(config).sign_request is BaseConfig.sign_request
        and not config.has_custom_stream_wrapper
        and not config.uses_async_transform_request
        and hasattr(config.get_model_response_iterator(iter(()), sync_stream=False), "chunk_parser")
    )


def _openai_parser(config: Any) -> Parse | None:
    """None where an event is what we want already; else the provider's own parser."""
    from litellm.llms.openai.chat.gpt_transformation import OpenAIChatCompletionStreamingHandler  # noqa: PLC0415

    iterator = config.get_model_response_iterator(iter(()), sync_stream=False)
    if type(iterator) is OpenAIChatCompletionStreamingHandler:
        return None
    return _dumped(iterator.chunk_parser)


def _dumped(parse: Callable[[dict[str, Any]], Any]) -> Parse:
    def parsed(event: dict[str, Any]) -> dict[str, Any] | None:
        made = parse(event)
        return None if made is None else dict(made.model_dump(exclude_none=True, warnings=False))

    return parsed


def _needs_responses(litellm: Any, model: str, provider: str) -> bool:
    """Whether LiteLLM would take another API of the provider for this model."""
    if model.startswith("responses/") or (
        provider == "openai" and litellm.route_all_chat_openai_to_responses
    ):
        return True
    known = litellm.model_cost.get(model) or litellm.model_cost.get(f"{provider}/{model}") or {}
    return bool(known.get("mode", "chat") != "chat")


def _anthropic(
    litellm: Any, model: str, key: str | None, base: str | None, kwargs: dict[str, Any]
) -> Request | None:
    from litellm.llms.anthropic.chat.handler import ModelResponseIterator  # noqa: PLC0415 - takes seconds

    config = _config(model, "anthropic")
    key = key or litellm.anthropic_key or litellm.api_key or os.environ.get("ANTHROPIC_API_KEY")
    if config is None or not key or "extra_body" in kwargs:
        return None
    optional = _optional(litellm, model, "anthropic", kwargs)
    json_mode = optional.pop("json_mode", False)
    optional.pop("is_vertex_request", None)
    headers = config.validate_environment(
        headers=dict(kwargs.get("extra_headers", {})),
        model=model,
        messages=kwargs["messages"],
        optional_params=optional,
        litellm_params={},
        api_key=key,
    )
    body = config.transform_request(
        model=model,
        messages=kwargs["messages"],
        optional_params=dict(optional),
        litellm_params={},
        headers=headers,
    )
    url = base or os.environ.get("ANTHROPIC_API_BASE") or os.environ.get("ANTHROPIC_BASE_URL")
    url = (url or "https://api.anthropic.com").rstrip("/")
    iterator = ModelResponseIterator(iter(()), sync_stream=False, json_mode=json_mode)
    if not url.endswith("/v1/messages"):
        url += "/v1/messages"
    return _request(url, headers, {**body, "stream": True}, _dumped(iterator.chunk_parser))


def _config(model: str, provider: str) -> Any:
    from litellm.types.utils import LlmProviders  # noqa: PLC0415 - takes seconds
    from litellm.utils import ProviderConfigManager  # noqa: PLC0415

    try:
        return ProviderConfigManager.get_provider_chat_config(model, LlmProviders(provider))
    except ValueError:  # a provider that is registered by its users
        return None


def _optional(litellm: Any, model: str, provider: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in kwargs.items() if name not in _APART}
    return dict(
        litellm.utils.get_optional_params(
            model=model, custom_llm_provider=provider, messages=kwargs["messages"], **given
        )
    )


def _request(url: str, headers: dict[str, str], body: dict[str, Any], parse: Parse | None) -> Request | None:
    try:
        return Request(url, headers, orjson.dumps(body), parse)
    except TypeError:  # a value that only the provider's own library can send
        return None
