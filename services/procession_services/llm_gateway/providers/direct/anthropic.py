"""Anthropic's messages."""

import os
import re
from typing import Any, Final

import orjson

from procession_services.llm_gateway.providers.direct.http import Request
from procession_services.llm_gateway.providers.direct.lower import (
    UNKNOWN_REASON,
    Parse,
    Target,
    dumped,
    reused,
    sse_request,
)
from procession_services.llm_gateway.providers.openai_events import EventReader

_LAST: Final = re.compile(rb'\{\s*"type"\s*:\s*"message_stop"')


class MessageReader(EventReader):
    """Knows the event behind which nothing follows; some who speak this dialect leave the connection open."""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the data of the events that these bytes complete."""
        events = super().feed(data)
        if events and _LAST.match(events[-1]):
            self.done = True
        return events


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
    parse = _parser(dumped(iterator.chunk_parser))
    parse = parse if json_mode else reused(parse, _plain)
    return sse_request(url, headers, {**body, "stream": True}, parse, MessageReader)


def _parser(parse: Parse) -> Parse:
    """Adds what LiteLLM's parser leaves out: arguments that came with the name of the tool, and the real reasons."""
    given: tuple[int, Any] | None = None

    def parsed(event: dict[str, Any]) -> dict[str, Any] | None:
        nonlocal given
        made = parse(event)
        if made is None:
            return None
        choice = made["choices"][0]
        match event.get("type"):
            case "content_block_start":
                arguments, calls = event["content_block"].get("input"), choice["delta"].get("tool_calls")
                given = (calls[0]["index"], arguments) if arguments and calls else None
            case "content_block_delta" if given and event["delta"].get("partial_json"):
                given = None  # as usual, they come in pieces
            case "content_block_stop" if given:
                index, arguments = given
                function = {"arguments": orjson.dumps(arguments).decode()}
                choice["delta"]["tool_calls"] = [{"index": index, "function": function}]
                given = None
            case "message_delta":
                _set_reason(choice, event["delta"].get("stop_reason"))
            case _:
                pass
        return made

    return parsed


def _set_reason(choice: dict[str, Any], told: str | None) -> None:
    """LiteLLM takes no reason for a stop, and has one word for all that it does not know."""
    if not told:
        choice.pop("finish_reason", None)
    elif choice.get("finish_reason") == UNKNOWN_REASON:
        choice["finish_reason"] = told


def _plain(event: dict[str, Any]) -> tuple[object, str] | None:
    delta = event.get("delta")
    if (
        event.keys() != {"type", "index", "delta"}
        or not isinstance(delta, dict)
        or delta.keys() != {"type", "text"}
    ):
        return None
    return (event["index"], delta["text"]) if delta["type"] == "text_delta" else None
