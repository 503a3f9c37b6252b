"""What error processors read from a provider's error: its facts, its causes, and when it may be tried again (R-SER).

An error is looked at as plain facts, since a provider's own error object (an event of a stream, say) is just that: the
fields of the object, and over them those that an `APIError` has by name.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from procession.args import APIError

Facts = Mapping[str, Any]

_TRANSIENT: Final = (
    "rate_limit", "server_error", "internal_error", "timeout", "temporarily_unavailable", "service_unavailable",
    "overloaded",
)  # fmt: skip
_ADVICE: Final = "you can retry your request"
_FORBIDDEN_STATUSES: Final = (401, 403)
_FORBIDDEN: Final = frozenset(
    {"access_denied", "authentication_error", "forbidden", "invalid_api_key", "permission_denied"}
)
_INSIDE: Final = ("error", "data", "cause")
_BAD_REQUEST: Final = 400
_DIGITS: Final = re.compile(r"[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?[0-9.]+(?:e[+-]?[0-9]+)?", re.IGNORECASE)


def chain(error: APIError) -> Iterator[Facts]:
    """The facts of an error and of each cause behind it; a cycle ends the chain."""
    seen: set[int] = set()
    current: APIError | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield facts(current)
        current = current.cause


def facts(error: APIError) -> Facts:
    """One error without its causes."""
    named = {
        "message": error.message or None,
        "name": error.name or None,
        "statusCode": error.status_code,
        "isRetryable": error.is_retryable,
        "code": error.code,
        "type": error.type,
        "kind": error.kind,
        "responseHeaders": error.response_headers or None,
        "responseBody": error.response_body,
    }
    known = {key: value for key, value in named.items() if value is not None}
    return {key: value for key, value in {**error.data, **known}.items() if key != "cause"}


def texts(error: APIError) -> list[str]:
    """Where a provider says what it does not like: the message, and the body of a refused request (R-PRE-3)."""
    body = error.response_body if error.name == "APICallError" else None
    return [text for text in (error.message, body) if text]


# --- what may be tried again ---------------------------------------------------------------------------


def is_transient_openai_event(value: Any) -> bool:
    """Whether it is an error event of OpenAI's Responses API that passes by itself (R-SER-2)."""
    payload = _openai_payload(value)
    if payload is None:
        return False
    code, kind = payload.get("code"), payload.get("type")
    named = code if isinstance(code, str) else kind if isinstance(kind, str) else ""
    message = payload.get("message")
    advised = isinstance(message, str) and _ADVICE in message.lower()
    return advised or any(word in named.lower() for word in _TRANSIENT)


def _openai_payload(value: Any) -> Facts | None:
    if not isinstance(value, Mapping):
        return None
    found = None
    if value.get("type") == "error":
        found = value.get("error")
    elif value.get("type") == "response.failed" and isinstance(value.get("response"), Mapping):
        found = value["response"].get("error")
    return found if isinstance(found, Mapping) else None


def is_bad_request(value: Any) -> bool:
    """Whether an error says by itself that its status is 400 (R-SER-3)."""
    status = value.get("statusCode") if isinstance(value, Mapping) else None
    return isinstance(status, int) and not isinstance(status, bool) and status == _BAD_REQUEST


def is_refused(value: Any) -> bool:
    """Whether anything in an error says that the caller may not do this (R-SER-4)."""
    pending, seen = [value], set[int]()
    while pending:
        current = pending.pop()
        if not isinstance(current, Mapping) or id(current) in seen:
            continue
        seen.add(id(current))
        if any(current.get(key) in _FORBIDDEN_STATUSES for key in ("statusCode", "status")):
            return True
        words = (current.get("code"), current.get("type"))
        if any(isinstance(word, str) and word.strip().lower() in _FORBIDDEN for word in words):
            return True
        pending += [current.get(key) for key in _INSIDE]
        pending.append(_parsed(current.get("responseBody")))
    return False


def _parsed(body: Any) -> Any:
    if not isinstance(body, str):
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


# --- when it may be tried again ------------------------------------------------------------------------


def at_least_zero(milliseconds: float) -> float:
    """A number of milliseconds; what is negative or no number at all is none (R-SER-6)."""
    return milliseconds if math.isfinite(milliseconds) and milliseconds > 0 else 0.0


def wait_asked(found: Iterable[Facts], now: float) -> float | None:
    """Milliseconds that the provider asks for: the first usable header along the causes (R-SER-6).

    Args:
        found: The facts of the error and its causes.
        now: Seconds since the epoch, for headers that give a date.
    """
    for each in found:
        headers = each.get("responseHeaders")
        if isinstance(headers, Mapping):
            wait = _wait_in(
                {str(k).lower(): v.strip() for k, v in headers.items() if isinstance(v, str)}, now
            )
            if wait is not None:
                return wait
    return None


def _wait_in(headers: Mapping[str, str], now: float) -> float | None:
    millis, value = headers.get("retry-after-ms", ""), headers.get("retry-after", "")
    if _DIGITS.fullmatch(millis):
        return float(millis)
    if _DIGITS.fullmatch(value):
        return float(value) * 1000
    if not value or _NUMBER.fullmatch(value):
        return None
    until = _date(value)
    return (until.timestamp() - now) * 1000 if until and until.timestamp() > now else None


def _date(text: str) -> datetime | None:
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            found = read(text)
        except (ValueError, TypeError, OverflowError):
            continue
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return None
