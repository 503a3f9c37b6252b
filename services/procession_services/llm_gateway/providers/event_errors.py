"""How a stream fails: errors that the provider reports in it, in whatever form, and streams that are none."""

import json
from typing import Any, Final

import httpx

_QUOTED: Final = 200
_STATUSES: Final = {
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Errors that Anthropic and OpenAI report in a stream that they have opened already."""
_TOLD: Final = ("message", "Message", "detail", "msg", "errors")
"""Where an error has its words."""
_PARTS: Final = frozenset({"choices", "id", "object", "usage"})
"""What events of an answer have, though there is nothing to tell."""
_STATUS_DIGITS: Final = 3
UNEXPECTED: Final = (AttributeError, LookupError, TypeError, ValueError)
"""What readers raise at an event in a form that nobody knows."""


class EventError(Exception):
    """The provider reports an error in its stream, or in its place.

    `body` is its error object, which has a `message`, `status_code` what the status would have been before the stream
    had begun.
    """

    def __init__(self, body: Any, status_code: int | None = None) -> None:
        message = _words(body) if isinstance(body, dict) else body
        if not message:
            quoted = f": {json.dumps(body, ensure_ascii=False)[:_QUOTED]}" if body else ""
            message = f"the provider reported an error{quoted}"
        super().__init__(str(message))
        self.body = {**(body if isinstance(body, dict) else {}), "message": str(message)}
        self.status_code = _status(body) if status_code is None else status_code


class NoEventError(ConnectionError):
    """The provider answered, but what came is not an answer: a proxy's page, or nothing."""


class CutError(ConnectionError):
    """The answer has ended within an event: whoever sent it, or a proxy on the way, has gone."""

    def __init__(self) -> None:
        super().__init__("the connection to the provider broke in the middle of its answer")


def unreadable(event: Any) -> EventError:
    """The error for an event at which a reader has failed: what it is tells more than where."""
    told = json.dumps(event, ensure_ascii=False, default=str)[:_QUOTED]
    return EventError(f"the provider sent an event that cannot be read: {told}")


def raise_told(event: dict[str, Any]) -> None:
    """Raises EventError if an event reports an error, or is one without saying so."""
    error = event.get("error") or choice_error(event.get("choices"))
    if told := _explained(error, event) if error else _flat(event):
        raise EventError(told)


def choice_error(choices: Any) -> Any:
    """The error that the first choice reports, as OpenRouter may put it there."""
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0].get("error")
    return None


def _explained(error: Any, event: dict[str, Any]) -> Any:
    """An error object, or its words; where `error` is only a name, or `true`, the fields beside it belong to it."""
    if isinstance(error, list) and error:
        error = error[0]
    beside = event.get("message")
    if isinstance(error, dict) or not isinstance(beside, str):
        return error
    rest = {name: value for name, value in event.items() if name != "error"}
    return {**rest, "message": f"{error}: {beside}" if isinstance(error, str) else beside}


def _flat(event: dict[str, Any]) -> dict[str, Any] | None:
    """An error as web frameworks and proxies write it: what is no part of an answer, and has words."""
    if event.get("object") == "error":
        return event
    if not _PARTS.isdisjoint(event):
        return None
    words = _words(event)
    if isinstance(words, list):
        words = words[0]
    if isinstance(words, dict):
        words = _words(words)
    return {**event, "message": words} if words and isinstance(words, str) else None


def _words(error: dict[str, Any]) -> Any:
    return next((error[name] for name in _TOLD if error.get(name)), None)


def _status(error: Any) -> int | None:
    """The HTTP status that an error object tells: as its code, or by its code or type."""
    if not isinstance(error, dict):
        return None
    code = str(error.get("code"))
    if len(code) == _STATUS_DIGITS and code.isdecimal() and httpx.codes.is_error(int(code)):
        return int(code)
    return _STATUSES.get(code) or _STATUSES.get(str(error.get("type")))
