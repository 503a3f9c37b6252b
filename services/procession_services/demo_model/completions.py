"""Renders answers as the JSON of OpenAI's chat completions: events of a stream, whole completions, errors."""

import json
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii as quote
from typing import Any, Final

from procession_services.demo_model.answers import Reply, ToolCall, Usage

# A constant, so that equal requests get equal bytes: 2026-01-01T00:00:00Z.
CREATED: Final = 1_767_225_600
DONE: Final = b"data: [DONE]\n\n"
BROKEN_EVENT: Final = b'data: {"choices": [{"delta": {"content": "unfini\n\n'
_compact: Final = json.JSONEncoder(separators=(",", ":")).encode
_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ChunkEncoder:
    """Renders the `chat.completion.chunk` events of one stream."""

    def __init__(self, completion_id: str, model: str) -> None:
        self._head = (
            f'data: {{"id":{quote(completion_id)},"object":"chat.completion.chunk","created":{CREATED},'
            f'"model":{quote(model)},"choices":['
        )
        self._text_head = f'{self._head}{{"index":0,"delta":{{"content":'

    def text(self, text: str) -> bytes:
        """Render a delta of text; the hot path of every benchmark."""
        return f'{self._text_head}{quote(text)}}},"finish_reason":null}}]}}\n\n'.encode("ascii")

    def delta(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        """Render any other delta."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return f"{self._head}{_compact(choice)}]}}\n\n".encode("ascii")

    def tool_call(self, index: int, call: ToolCall) -> list[bytes]:
        """Render a tool call: one delta, or several when its arguments come in pieces."""
        opening = {
            "index": index,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": "" if call.pieces else call.arguments},
        }
        pieces = [{"index": index, "function": {"arguments": piece}} for piece in call.pieces]
        return [self.delta({"tool_calls": [part]}) for part in (opening, *pieces)]

    def usage(self, usage: Usage) -> bytes:
        """Render the last chunk, which has usage and no choices."""
        return f'{self._head}],"usage":{_compact(usage_json(usage))}}}\n\n'.encode("ascii")


def completion(completion_id: str, model: str, reply: Reply) -> bytes:
    """Render a reply as one `chat.completion` document."""
    text = "".join(reply.text)
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not reply.tool_calls else None}
    if reply.reasoning:
        message["reasoning_content"] = "".join(reply.reasoning)
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason, "logprobs": None}
    return dump(
        {
            "id": completion_id,
            "object": "chat.completion",
            "created": CREATED,
            "model": model,
            "choices": [choice],
            "usage": usage_json(reply.usage),
        }
    )


def usage_json(usage: Usage) -> dict[str, int]:
    """Return usage as OpenAI spells it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def error_body(status: int, message: str) -> bytes:
    """Render an error document; its type follows from the HTTP status, as at OpenAI."""
    fallback = "server_error" if status >= 500 else "invalid_request_error"  # noqa: PLR2004 - the class of 5xx
    kind = _ERROR_TYPES.get(status, fallback)
    return dump({"error": {"message": message, "type": kind, "param": None, "code": None}})


def error_event(message: str) -> bytes:
    """Render the event that reports an error in the middle of a stream."""
    return f"data: {_compact({'error': {'message': message, 'type': 'server_error'}})}\n\n".encode("ascii")


def dump(value: object) -> bytes:
    """Render compact JSON in ASCII."""
    return _compact(value).encode("ascii")
