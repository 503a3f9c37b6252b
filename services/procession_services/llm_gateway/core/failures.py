"""What a failed model call is: one error type, its wire form, and whether and when it may be tried again."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal

FailureKind = Literal["api", "network", "timeout", "stream"]

MAX_RETRY_AFTER: Final = 30.0
"""Seconds; a provider cannot make a run wait longer (R-MS-3)."""

_NAMES: Final[Mapping[FailureKind, str]] = {
    "api": "APICallError",
    "network": "NetworkError",
    "timeout": "TimeoutError",
    "stream": "StreamError",
}
_RETRYABLE_STATUSES: Final = frozenset({408, 409, 429})
_SERVER_ERROR: Final = 500
_NUMBER: Final = re.compile(r"\d+(\.\d+)?")
_MAX_TEXT: Final = 8192
"""Characters of one text on the wire."""


@dataclass(slots=True, eq=False)
class ProviderError(Exception):
    """A model call failed.

    Attributes:
        message: The provider's own words, without what libraries wrap around them; only their start is told.
        kind: `api`: the provider refused the request. `network`: the connection could not be made, or broke.
            `timeout`: it took too long. `stream`: the provider reported an error in an answer that had begun.
        retryable: Whether the same request may succeed later.
        provider: Name before the slash of the model.
        model: The model asked for.
        status_code: HTTP status, when there was a response.
        code: The provider's own code of the error.
        type: The provider's own class of the error.
        response_body: Start of the response's body, for processors that look for a phrase (R-PRE-3).
        headers: Response headers that say when to come back, names in lower case.
        cause: What the error is made of, in wire form: for `stream` the event itself, as R-SER-2 reads it.
        setting: What of the step's settings cannot be sent, so that nobody was asked.
    """

    message: str
    kind: FailureKind = "api"
    retryable: bool = False
    provider: str = ""
    model: str = ""
    status_code: int | None = None
    code: str | None = None
    type: str | None = None
    response_body: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cause: dict[str, Any] | None = None
    setting: str = ""

    def __str__(self) -> str:
        return _cut(self.message)

    @property
    def name(self) -> str:
        """The error's name on the wire; it follows from its kind."""
        return _NAMES[self.kind]

    def to_wire(self) -> dict[str, Any]:
        """Return the error as a JSON object; only what is known is in it."""
        known = {
            "statusCode": self.status_code,
            "code": self.code,
            "type": self.type,
            "responseBody": self.response_body and _cut(self.response_body),
            "responseHeaders": self.headers or None,
            "cause": _changed(self.cause, _cut),
        }
        return {
            "name": self.name,
            "message": str(self),
            "kind": self.kind,
            "isRetryable": self.retryable,
            "provider": self.provider,
            "model": self.model,
            **{name: value for name, value in known.items() if value is not None},
        }

    def without(self, secrets: Collection[str]) -> "ProviderError":
        """The error with nothing of these in it: providers quote the key that they refuse.

        To be done before anything is cut off, which would leave half of a key.
        """
        if not secrets:
            return self
        longest_first = sorted(map(re.escape, secrets), key=len, reverse=True)
        hidden = re.compile("|".join(longest_first))
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        return ProviderError(**_changed(told, lambda text: hidden.sub("[redacted]", text)))


def _cut(text: str) -> str:
    return text[:_MAX_TEXT]


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """The value with each text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _changed(each, change) for name, each in value.items()}
    return [_changed(each, change) for each in value] if isinstance(value, list) else value


def retryable_status(status: int) -> bool:
    """Whether an HTTP status says that the same request may succeed later."""
    return status in _RETRYABLE_STATUSES or status >= _SERVER_ERROR


def may_retry(error: ProviderError) -> bool:
    """Whether the gateway may repeat the call by itself: never after a timeout or a refusal (R-MS-3)."""
    return error.retryable and error.kind != "timeout"


def retry_delay(attempt: int, error: ProviderError) -> float:
    """Return the seconds to wait before the next try.

    `attempt` counts the retries already made: 1, 2, 4 ... seconds. What the provider asks for lengthens that,
    up to 30 seconds.
    """
    return max(2.0**attempt, min(_retry_after(error.headers), MAX_RETRY_AFTER))


def _retry_after(headers: Mapping[str, str]) -> float:
    """Read `retry-after-ms`, else `retry-after`: a number, or a date after the response's own."""
    millis = headers.get("retry-after-ms", "").strip()
    if _NUMBER.fullmatch(millis):
        return float(millis) / 1000  # infinite where it is too long; an int would raise
    value = headers.get("retry-after", "").strip()
    if _NUMBER.fullmatch(value):
        return float(value)
    try:
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(headers["date"])
    except (KeyError, OverflowError, TypeError, ValueError):
        return 0.0
    return max(wait.total_seconds(), 0.0)
