"""Bedrock's converse-stream: a signed request, and an answer in Amazon's binary event stream."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import orjson

from procession_services.llm_gateway.providers.direct.http import Request
from procession_services.llm_gateway.providers.direct.lower import (
    Parse,
    Target,
    dumped,
    has_remote_media,
    reused,
)
from procession_services.llm_gateway.providers.event_errors import CutError, EventError, unreadable
from procession_services.llm_gateway.providers.openai_events import forgiven
from procession_services.runs.merging import deep_merge

_LENGTH: Final = 4
"""Bytes at the beginning of a frame that tell how long it is."""
_MAX_FRAME: Final = 24 * 1024 * 1024
_QUOTED: Final = 200
_TELLING: Final = frozenset({"contentBlockIndex", "stopReason", "usage", "metrics", "trace"})
"""What an event has that says something; of the others, one that begins a message is no reason to keep to it."""


class FrameReader:
    """Cuts the bytes of an event stream into its frames; checksums are for who decodes them."""

    def __init__(self) -> None:
        self.done = False
        self._parts: list[bytes] = []
        self._size = self._wanted = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the frames that these bytes complete.

        Raises:
            EventError: What is told as a frame's length cannot be one.
        """
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._size < self._wanted:
                return []
            data = b"".join(self._parts)
            self._parts.clear()
        begin, size, frames = 0, len(data), []
        wanted = _LENGTH
        while size - begin >= _LENGTH:
            wanted = int.from_bytes(data[begin : begin + _LENGTH], "big")
            if not _LENGTH < wanted <= _MAX_FRAME:
                said = data[begin : begin + _QUOTED].decode(errors="replace")
                raise EventError(f"the provider's answer is not an event stream: {said!r}")
            if size - begin < wanted:
                break
            frames.append(data[begin : begin + wanted])
            begin, wanted = begin + wanted, _LENGTH
        if begin < size:
            self._parts, self._size, self._wanted = [data[begin:]], size - begin, wanted
        return frames

    def end(self) -> list[bytes]:
        """Returns nothing: a frame says itself where it ends.

        Raises:
            CutError: The stream ends within a frame.
        """
        if self._parts:
            raise CutError
        return []


def request(target: Target) -> Request | None:
    """The request; None for models that speak another dialect, and where LiteLLM has to fetch a file first.

    Looks for credentials and signs: not for the event loop's thread.
    """
    from litellm.llms.bedrock.chat.converse_transformation import AmazonConverseConfig  # noqa: PLC0415
    from litellm.llms.bedrock.chat.invoke_handler import AWSEventStreamDecoder  # noqa: PLC0415
    from litellm.llms.bedrock.common_utils import (  # noqa: PLC0415
        bedrock_route_for_request,
        without_bedrock_route_prefix,
    )

    kwargs = target.kwargs
    if bedrock_route_for_request(target.model, kwargs, None) != "converse":
        return None
    if has_remote_media(target.messages) or target.needs_responses():
        return None
    model = without_bedrock_route_prefix(target.model)
    call = _call(target, model)
    if call["fake_stream"]:
        return None
    made = AmazonConverseConfig().transform_request(
        model=model,
        messages=target.messages,
        optional_params=call["optional_params"],
        litellm_params=call["litellm_params"],
        headers=call["headers"],
    )
    body = json.dumps(deep_merge(dict(made), kwargs.get("extra_body", {})))
    signed = _handler()().get_request_headers(
        credentials=call["credentials"],
        aws_region_name=call["litellm_params"]["aws_region_name"],
        extra_headers=call["headers"],
        endpoint_url=call["api_base"],
        data=body,
        headers=call["headers"],
        api_key=call["api_key"],
    )
    decoder = AWSEventStreamDecoder(model=model, json_mode=call["json_mode"])
    parse = dumped(decoder.converse_chunk_parser)
    if not call["json_mode"]:
        parse = reused(parse, _plain)
    return Request(
        url=call["api_base"],
        headers=dict(signed.headers),
        body=body.encode(),
        parse=_parser(parse),
        reader=FrameReader,
        encoded=True,  # as it was signed
    )


def _parser(parse: Parse) -> Callable[[bytes], dict[str, Any] | None]:
    def parsed(frame: bytes) -> dict[str, Any] | None:
        event = _decoded(frame)
        if _TELLING.isdisjoint(event):
            return None
        try:
            return parse(event)
        except Exception as strange:  # LiteLLM wraps whatever it fails with
            raise unreadable(event) from strange

    return parsed


def _plain(event: dict[str, Any]) -> tuple[object, str] | None:
    delta = event.get("delta")
    if (
        not event.keys() <= {"contentBlockIndex", "delta", "p"}
        or not isinstance(delta, dict)
        or delta.keys() != {"text"}
    ):
        return None
    return event.get("contentBlockIndex"), delta["text"]


def _call(target: Target, model: str) -> dict[str, Any]:
    """What LiteLLM would send where, and as whom."""
    made: dict[str, Any] = _handler()().completion(
        model=model,
        messages=target.messages,
        api_base=target.base,
        custom_prompt_dict={},
        model_response=None,
        encoding=None,
        logging_obj=None,
        optional_params=target.optional(),
        acompletion=True,
        timeout=None,
        litellm_params={"drop_params": True},
        extra_headers=target.headers,
        api_key=target.key,
    )
    return made


@cache
def _handler() -> Any:
    from litellm.llms.bedrock.chat.converse_handler import BedrockConverseLLM  # noqa: PLC0415 - takes seconds

    class Handler(BedrockConverseLLM):
        """Stops where LiteLLM would begin to send, and tells what."""

        def async_streaming(self, **call: Any) -> Any:  # type: ignore[override]
            return call

    return Handler


def _decoded(frame: bytes) -> dict[str, Any]:
    """The JSON object of a frame; empty where it has none.

    Raises:
        EventError: The frame reports an error.
        botocore.eventstream.ParserError: A checksum is wrong.
    """
    from botocore.eventstream import EventStreamBuffer  # type: ignore[import-untyped] # noqa: PLC0415

    buffer = EventStreamBuffer()
    buffer.add_data(frame)
    message = next(buffer)
    headers = message.headers
    if headers.get(":message-type") != "event" or str(headers.get(":event-type")).endswith("Exception"):
        raise _error(headers, message.payload)
    event: dict[str, Any]
    try:
        event = orjson.loads(message.payload or b"{}")
    except orjson.JSONDecodeError as broken:
        event = forgiven(message.payload, broken)
    return event


def _error(headers: dict[str, Any], payload: bytes) -> EventError:
    from litellm.llms.bedrock.common_utils import bedrock_stream_event_error_status  # noqa: PLC0415 - takes seconds

    kinds = (":exception-type", ":error-code", ":event-type")
    kind = next((headers[name] for name in kinds if name in headers), None)
    try:
        body = orjson.loads(payload)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        body = {"message": headers.get(":error-message") or payload.decode(errors="replace") or kind}
    return EventError({**body, "type": kind}, bedrock_stream_event_error_status(kind))
