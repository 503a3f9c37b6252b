"""LiteLLM's lower layers, as all dialects use them: a provider's configuration class, its parameters, its parser."""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec
import orjson

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.providers.direct.http import Request
from procession_services.llm_gateway.providers.openai_events import EventReader, Reader, json_parser

Parse = Callable[[dict[str, Any]], dict[str, Any] | None]
"""One decoded event of the provider's stream -> a `chat.completion.chunk` as a dict, or None."""
Plain = Callable[[dict[str, Any]], tuple[object, str] | None]
"""An event that is nothing but a piece of text -> what it belongs to, and the text; None for every other event."""
_APART: Final = frozenset(
    {"model", "messages", "num_retries", "max_retries", "extra_headers", "api_base", "api_key", "extra_body"}
)
"""Arguments of `acompletion` that are no parameters of the answer."""
UNKNOWN_REASON: Final = "finish_reason_unspecified"
"""What LiteLLM is to make of a reason that it does not know: a word that its types allow, and that is none of ours."""
_Found = tuple[str, str, str | None, str | None]
"""The model without its provider, the provider, its key, and its base."""
_NOTHING_ADDED: Final = frozenset({"openai", "anthropic", "gemini", "bedrock"})
"""Providers whose base and key are looked for later, by whoever makes the request."""
_SHORT: Final = 32_768
"""Bytes of parameters, tools among them, whose translation is worth remembering."""


class Target(msgspec.Struct, frozen=True):
    """What is asked of whom: `model` without its provider, and the arguments that `acompletion` would get."""

    litellm: Any
    model: str
    provider: str
    key: str | None
    base: str | None
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, litellm: Any, call: ModelCall, kwargs: dict[str, Any]) -> "Target":
        """Whom LiteLLM would ask; raises its `BadRequestError` for a provider that it does not know."""
        place = litellm, call.model, call.api_base, call.api_key
        model, provider, key, base = _known_provider(*place) or _provider(*place)
        return cls(litellm, model, provider, key or call.api_key, base, kwargs)

    @property
    def messages(self) -> Any:
        """The messages, as dicts in OpenAI's form."""
        return self.kwargs["messages"]

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the call adds."""
        return dict(self.kwargs.get("extra_headers", {}))

    def config(self) -> Any:
        """LiteLLM's configuration class of the provider; None for one that its users registered."""
        return config_of(self.model, self.provider)

    def optional(self, **besides: Any) -> dict[str, Any]:
        """The parameters of the answer in the provider's words."""
        given = {name: value for name, value in self.kwargs.items() if name not in _APART} | besides
        try:
            asked = orjson.dumps(given)
        except TypeError:
            return _translated(self.model, self.provider, given)
        known = _known_translation(self.model, self.provider, asked) if len(asked) < _SHORT else None
        return _translated(self.model, self.provider, given) if known is None else orjson.loads(known)

    def needs_responses(self) -> bool:
        """Whether LiteLLM would take another API of the provider for this call."""
        if self._chat_refuses() or (self.provider == "xai" and "web_search_options" in self.kwargs):
            return True
        if self.model.startswith("responses/") or (
            self.provider == "openai" and self.litellm.route_all_chat_openai_to_responses
        ):
            return True
        prices = self.litellm.model_cost
        known = prices.get(f"{self.provider}/{self.model}") or prices.get(self.model) or {}
        return bool(known.get("mode", "chat") != "chat")

    def _chat_refuses(self) -> bool:
        """Whether it is a younger model of OpenAI, whose chat API refuses tools while it reasons."""
        if self.provider not in ("openai", "azure"):
            return False
        from litellm.litellm_core_utils.model_param_helper import (  # noqa: PLC0415 - takes seconds
            peek_reasoning_summary_aliases,
        )
        from litellm.responses.bridge_check import responses_api_bridge_check  # noqa: PLC0415

        if not self.litellm.OpenAIGPT5Config.is_model_gpt_5_model(self.model):
            return False
        taken, _ = responses_api_bridge_check(
            model=self.model,
            custom_llm_provider=self.provider,
            tools=self.kwargs.get("tools"),
            reasoning_effort=self.kwargs.get("reasoning_effort"),
            reasoning_summary=peek_reasoning_summary_aliases(self.kwargs),
            api_base=self.base,
        )
        return bool(taken.get("mode") == "responses")


def config_of(model: str, provider: str) -> Any:
    """LiteLLM's configuration class for a model of a provider; None for a provider that its users registered."""
    from litellm.types.utils import LlmProviders  # noqa: PLC0415 - takes seconds
    from litellm.utils import ProviderConfigManager  # noqa: PLC0415

    try:
        return ProviderConfigManager.get_provider_chat_config(model, LlmProviders(provider))
    except ValueError:
        return None


def has_remote_media(messages: Iterable[dict[str, Any]]) -> bool:
    """Whether a message names a file elsewhere, which somebody has to fetch before the request is made."""
    return any(
        url is not None and not url.startswith("data:")
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
        for url in _urls(part)
    )


def _provider(litellm: Any, model: str, base: str | None, key: str | None) -> _Found:
    found: _Found = litellm.get_llm_provider(model=model, api_base=base, api_key=key)
    return found


@lru_cache(maxsize=256)
def _known_provider(litellm: Any, model: str, base: str | None, key: str | None) -> _Found | None:
    """What LiteLLM finds; None where it may add a base or a key, from an environment that may change."""
    found = _provider(litellm, model, base, key)
    return found if found[1] in _NOTHING_ADDED else None


@lru_cache(maxsize=256)
def _known_translation(model: str, provider: str, asked: bytes) -> bytes | None:
    """A translation as JSON, since whoever gets the parameters may change them; None if JSON loses something."""
    made = _translated(model, provider, orjson.loads(asked))
    try:
        told = orjson.dumps(made)
    except TypeError:
        return None
    return told if orjson.loads(told) == made else None


def _translated(model: str, provider: str, given: dict[str, Any]) -> dict[str, Any]:
    from litellm.utils import get_optional_params, validate_and_fix_thinking_param  # noqa: PLC0415 - takes seconds

    if "thinking" in given:
        given = given | {"thinking": validate_and_fix_thinking_param(given["thinking"])}
    return dict(get_optional_params(model=model, custom_llm_provider=provider, **given))


def _urls(part: dict[str, Any]) -> Iterator[str | None]:
    image, file = part.get("image_url"), part.get("file") or {}
    yield image.get("url") if isinstance(image, dict) else image
    yield file.get("file_id")


def sse_request(
    url: str,
    headers: dict[str, str],
    body: dict[str, Any],
    parse: Parse | None,
    reader: Callable[[], Reader] = EventReader,
) -> Request | None:
    """A request whose answer is a stream of server-sent events; without `parse` they are what we want already.

    None when a value can only be sent by the provider's own library.
    """
    try:
        return Request(url, headers, orjson.dumps(body), json_parser(parse), reader)
    except TypeError:
        return None


def dumped(parse: Callable[[dict[str, Any]], Any]) -> Parse:
    """LiteLLM's parser, giving dicts instead of its objects."""

    def parsed(event: dict[str, Any]) -> dict[str, Any] | None:
        made = parse(event)
        return None if made is None else dict(made.model_dump(exclude_none=True, warnings=False))

    return parsed


def reused(
    parse: Parse, plain: Plain, besides: Callable[[dict[str, Any]], dict[str, Any]] | None = None
) -> Parse:
    """A parser that asks `parse` only about the first of several pieces of text that belong to the same.

    The others differ in nothing but the text and what `besides` finds in them, and LiteLLM's parsers build half a
    dozen objects for each.
    """
    known: tuple[object, str, dict[str, Any]] | None = None

    def parsed(event: dict[str, Any]) -> dict[str, Any] | None:
        nonlocal known
        found = plain(event)
        if found is None:
            return parse(event)
        about, text = found
        if known is not None and known[0] == about:
            _, name, first = known
            choice = first["choices"][0]
            again = {**first, "choices": [{**choice, "delta": {**choice["delta"], name: text}}]}
            return {**again, **besides(event)} if besides else again
        made = parse(event)
        if made is not None and (field := _field(made, text)) is not None:
            known = about, field, made
        return made

    return parsed


def _field(made: dict[str, Any], text: str) -> str | None:
    """The only field of the only delta that holds the text."""
    if len(made["choices"]) != 1:
        return None
    fields = [name for name, value in made["choices"][0]["delta"].items() if value == text]
    return fields[0] if len(fields) == 1 else None
