"""Finds out what really happened behind the exceptions that LiteLLM raises.

LiteLLM wraps the exception of a client library, which wraps one of its HTTP library, and gives everything a
status, also where no response ever came. The chain of causes still holds the truth, so it is read from its
far end. Classes are recognised by name: this module must not import the libraries that raised them.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.failures import FailureKind, ProviderError, retryable_status
from procession_services.llm_gateway.core.text import parse_json

_RESPONSE: Final = frozenset({"httpx.HTTPStatusError"})
_EVENT: Final = frozenset({"procession_services.EventError"})
_WORDED: Final = frozenset({"procession_services.NoEventError", "procession_services.CutError"})
_TIMEOUT: Final = frozenset(
    {"builtins.TimeoutError", "httpx.TimeoutException", "openai.APITimeoutError", "litellm.Timeout"}
)
_NETWORK: Final = frozenset(
    {"builtins.ConnectionError", "socket.gaierror", "httpx.TransportError", "aiohttp.ClientError"}
)
_WRAPPING: Final = re.compile(
    r"^(?:litellm\.\w+: (?:\w+(?:Error|Exception|Timeout): )*(?:\w+Exception - )?)?(?:[A-Z_]+ - )?"
)
_HEADERS: Final = ("retry-after", "retry-after-ms", "date")
_MAX_DEPTH: Final = 20
_CREDENTIAL: Final = re.compile("KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""What is in the name of an environment variable whose value nobody may read."""
_CARRIER: Final = re.compile(f"{_CREDENTIAL.pattern}|AUTH|COOKIE", re.IGNORECASE)
"""What is in the name of such a header."""
_SHORTEST_SECRET: Final = 8
_SERVER_ERROR: Final = 500
_QUOTED: Final = 1000
"""Characters of a body in a form that nobody knows, which may be a page."""


def provider_error(error: BaseException, call: ModelCall, *, begun: bool) -> ProviderError:
    """Return what an exception raised by LiteLLM means; `begun`: events of the answer had already come.

    Keys of this process and of the call are not in it, whatever the provider says.
    """
    return _provider_error(error, call, begun=begun).without(_secrets(call))


def _secrets(call: ModelCall) -> set[str]:
    given = {value for name, value in os.environ.items() if _CREDENTIAL.search(name)}
    for headers in (call.model_settings.get("headers") or {}, call.headers):
        carried = [str(value) for name, value in headers.items() if _CARRIER.search(name)]
        given.update(carried, [value.partition(" ")[2].strip() for value in carried])  # "Bearer ..."
    long = [value for value in (*given, call.api_key or "") if len(value) >= _SHORTEST_SECRET]
    return {form for value in long for form in _forms(value)}


def _forms(secret: str) -> set[str]:
    """A secret as it is, and as JSON may have it."""
    escaped = json.dumps(secret)[1:-1]
    return {secret, escaped, escaped.replace("/", "\\/"), json.dumps(secret, ensure_ascii=False)[1:-1]}


def _provider_error(error: BaseException, call: ModelCall, *, begun: bool) -> ProviderError:
    chain = list(_causes(error))
    kind = _kind(chain, begun=begun)
    facts: dict[str, Any] = {"kind": kind, "provider": call.provider, "model": call.model}
    worded = (each for each in reversed(chain) if _is(each, _TIMEOUT | _NETWORK) and str(each))
    told = next(worded, chain[-1])  # a timer's own has no words
    root = {"name": type(told).__name__, "message": str(told)}
    if kind == "timeout":
        return ProviderError(_late(told, call), **facts, cause=root)
    if kind == "network":
        return ProviderError(_broken(told, begun=begun), retryable=True, **facts, cause=root)
    payload = _payload(chain)
    said = {name: payload[name] for name in ("message", "code", "type", "status", "param") if name in payload}
    message = _message(payload) or (_said(chain) or "")[:_QUOTED] or _plain(error)
    facts |= {"code": _word(payload.get("code")), "type": _word(payload.get("type") or payload.get("status"))}
    if kind == "stream":
        event = {"type": "error", "error": {**said, "message": message}}
        return ProviderError(message, **facts, cause=event)
    status = _status(chain)
    return ProviderError(
        message,
        retryable=status is not None and retryable_status(status),
        status_code=status,
        response_body=_body(chain),
        headers=_headers(chain),
        **facts,
    )


def _late(told: BaseException, call: ModelCall) -> str:
    limit = call.model_settings.get("timeout")
    own = "" if limit is None else f"modelSettings.timeout is {json.dumps(limit)} (milliseconds)"
    reason = str(told) or own
    return "the provider did not answer in time" + (f": {reason}" if reason else "")


def _broken(told: BaseException, *, begun: bool) -> str:
    if _is(told, _WORDED):
        return str(told)
    if begun:
        return "the connection to the provider broke in the middle of its answer"
    return f"the provider cannot be reached: {str(told) or type(told).__name__}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Give an exception and what it came from, outermost first, also where `from None` hides it."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(seen) < _MAX_DEPTH:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _is(error: BaseException, names: frozenset[str]) -> bool:
    return any(f"{cls.__module__.partition('.')[0]}.{cls.__name__}" in names for cls in type(error).__mro__)


def _kind(chain: list[BaseException], *, begun: bool) -> FailureKind:
    if any(_is(error, _RESPONSE) for error in chain):
        return "api"
    if any(_is(error, _TIMEOUT) for error in chain):
        return "timeout"
    if any(_is(error, _NETWORK) for error in chain):
        return "network"
    return "stream" if begun else "api"


def _status(chain: list[BaseException]) -> int | None:
    """Return the status of the response; without one LiteLLM's word counts, but its 500 says nothing."""
    for error in reversed(chain):
        if _is(error, _RESPONSE):
            status: int = error.response.status_code  # type: ignore[attr-defined]
            return status
        if _is(error, _EVENT):
            told: int | None = error.status_code  # type: ignore[attr-defined]
            return told
    guess = getattr(chain[0], "status_code", None)
    return guess if isinstance(guess, int) and guess != _SERVER_ERROR else None


def _texts(chain: list[BaseException]) -> Iterator[str]:
    """Give the texts that may be the response's body, the most direct first."""
    for error in reversed(chain):
        for candidate in (_response_text(error), getattr(error, "message", None)):
            if isinstance(candidate, str):
                yield candidate


def _response_text(error: BaseException) -> str | None:
    try:
        text = getattr(getattr(error, "response", None), "text", None)
    except RuntimeError:  # the body of a streamed response that nobody has read
        return None
    return text if isinstance(text, str) else None


def _said(chain: list[BaseException]) -> str | None:
    """Return the body of the response as it is; proxies and web frameworks refuse in forms of their own."""
    texts = (text.strip() for error in reversed(chain) if (text := _response_text(error)))
    return next(filter(None, texts), None)


def _body(chain: list[BaseException]) -> str | None:
    return next((text for text in _texts(chain) if _json_object(text) is not None), None) or _said(chain)


def _payload(chain: list[BaseException]) -> dict[str, Any]:
    """Return the provider's error object, such as `{"message", "type", "code"}`; empty when there is none."""
    bodies = [body for error in reversed(chain) if isinstance(body := getattr(error, "body", None), dict)]
    # LiteLLM puts the name of Amazon's exceptions before their body.
    told = (_json_object(text) or _json_object(text.partition(" ")[2]) for text in _texts(chain))
    for found in (*bodies, *told):
        if not found:
            continue
        inner = found.get("error") or found
        if isinstance(inner, str):
            beside = _message(found)
            return {**found, "message": f"{inner}: {beside}" if beside else inner}
        if isinstance(inner, dict) and _message(inner):
            return inner
    return {}


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = parse_json(text, nan=True)
    except ValueError:
        return None
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, dict) else None


def _message(payload: Mapping[str, Any]) -> str:
    for name in ("message", "Message", "detail", "msg"):
        if isinstance(payload.get(name), str):
            return f"{payload[name]}{_upstream(payload.get('metadata'))}"
    return ""


def _upstream(metadata: Any) -> str:
    """What the provider behind OpenRouter said; its own words are only that there is an error."""
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return f": {raw[:_QUOTED]}" if raw and isinstance(raw, str) else ""


def _plain(error: BaseException) -> str:
    """Return an exception's own words, without LiteLLM's."""
    if isinstance(error, json.JSONDecodeError):
        return "the provider sent an event that is not JSON"
    text = _WRAPPING.sub("", str(error)).partition("\nTraceback (most recent call last):")[0].strip()
    return text or f"the provider failed without a message ({type(error).__name__})"


def _word(value: Any) -> str | None:
    return None if value is None else str(value)


def _headers(chain: list[BaseException]) -> dict[str, str]:
    for error in reversed(chain):
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        found = {name: str(headers[name]) for name in _HEADERS if name in headers}
        if found:
            return found
    return {}
