"""What the exceptions of LiteLLM and its libraries mean, where no server can provoke them."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.providers.direct.lower import sse_request
from procession_services.llm_gateway.providers.event_errors import EventError
from procession_services.llm_gateway.providers.litellm_errors import provider_error

CALL = ModelCall(model="openai/demo", prompt=[])


def meaning(error: BaseException, *, begun: bool = False) -> ProviderError:
    return provider_error(error, CALL, begun=begun)


def wrapped(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("litellm.BadRequestError: OpenAIException - boom", "boom"),
        ("litellm.RateLimitError: RateLimitError: GroqException - slow: down", "slow: down"),
        ("litellm.APIConnectionError: no key\nTraceback (most recent call last):\n  File ...", "no key"),
        ("ValueError: the provider's own words - kept", "ValueError: the provider's own words - kept"),
        ("", "the provider failed without a message (RuntimeError)"),
    ],
)
def test_only_litellms_own_words_are_taken_off(text: str, expected: str) -> None:
    assert meaning(RuntimeError(text)).message == expected


def test_keys_of_this_process_and_of_the_call_are_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_API_KEY", "sk-crimson-key")
    monkeypatch.setenv("SOME_TOKEN", "short")
    call = ModelCall(model="openai/demo", prompt=[], api_key="sk-crimson-key-of-the-call")
    said = "wrong: sk-crimson-key-of-the-call, sk-crimson-key; in short"
    error = provider_error(RuntimeError(json.dumps({"error": {"message": said}})), call, begun=True)
    assert "crimson" not in json.dumps(error.to_wire())
    plain = provider_error(RuntimeError(said), call, begun=False)
    assert plain.message == "wrong: [redacted], [redacted]; in short"


def test_headers_of_the_call_that_say_who_asks_are_never_told() -> None:
    call = ModelCall(
        model="openai/demo",
        prompt=[],
        headers={"Authorization": "Bearer tok-crimson-1", "x-thread-id": "thread-12345"},
        model_settings={"headers": {"X-Api-Key": "key-crimson-2", "cookie": "session=crimson-3"}},
    )
    said = "tok-crimson-1, key-crimson-2, session=crimson-3 of Bearer tok-crimson-1 in thread-12345"
    told = provider_error(RuntimeError(said), call, begun=False)
    assert told.message == "[redacted], [redacted], [redacted] of [redacted] in thread-12345"


@pytest.mark.parametrize("escape", [json.dumps, lambda body: json.dumps(body).replace("/", r"\/")])
@pytest.mark.parametrize("key", ['sk-"crimson"/1', "sk-crimson-ü/1"])
def test_keys_are_not_told_in_the_words_of_json_either(escape: Callable[[Any], str], key: str) -> None:
    call = ModelCall(model="openai/demo", prompt=[], api_key=key)
    body = escape({"error": {"message": f"wrong: {key}"}})
    error = provider_error(RuntimeError(body), call, begun=False)
    refusal = httpx.HTTPStatusError(
        "HTTP 401",
        request=httpx.Request("POST", "http://x"),
        response=httpx.Response(401, text=body),
    )
    told = provider_error(refusal, call, begun=False).to_wire()
    assert "crimson" not in json.dumps(told)
    assert told["responseBody"]
    assert "crimson" not in str(error)


def test_an_error_of_our_own_is_not_worth_a_retry() -> None:
    error = meaning(KeyError("x"))
    assert (error.kind, error.retryable, error.status_code) == ("api", False, None)


def test_of_a_timer_that_ran_out_the_one_is_told_that_says_for_what() -> None:
    error = meaning(wrapped(TimeoutError("no connection to provider.example:443 in time"), TimeoutError()))
    assert error.cause == {"name": "TimeoutError", "message": "no connection to provider.example:443 in time"}
    assert (
        error.message == "the provider did not answer in time: no connection to provider.example:443 in time"
    )


@pytest.mark.parametrize(
    ("cause", "kind"), [(TimeoutError(), "timeout"), (ConnectionResetError("reset"), "network")]
)
@pytest.mark.parametrize("begun", [True, False])
def test_the_far_end_of_the_chain_decides(cause: BaseException, kind: str, begun: bool) -> None:
    error = meaning(wrapped(RuntimeError("litellm.InternalServerError: 500"), cause), begun=begun)
    assert error.kind == kind
    assert error.cause == {"name": type(cause).__name__, "message": str(cause)}


def test_a_cause_that_is_hidden_still_counts() -> None:
    error = RuntimeError("litellm.InternalServerError: 500")
    error.__context__ = TimeoutError()
    error.__suppress_context__ = True
    assert meaning(error).kind == "timeout"


def test_a_circle_of_causes_ends() -> None:
    first, second = RuntimeError("first"), RuntimeError("second")
    wrapped(wrapped(first, second), second)
    second.__context__ = first
    assert meaning(first).message == "first"


def test_the_call_is_named() -> None:
    error = meaning(RuntimeError("x"))
    assert (error.provider, error.model) == ("openai", "openai/demo")


def test_a_broken_event_is_told_in_words() -> None:
    with pytest.raises(json.JSONDecodeError) as raised:
        json.loads("{")
    error = meaning(raised.value, begun=True)
    assert (error.kind, error.message) == ("stream", "the provider sent an event that is not JSON")


class ToldError(Exception):
    """An exception of LiteLLM, which tells a status."""

    def __init__(self, status_code: int) -> None:
        super().__init__("x")
        self.status_code = status_code


@pytest.mark.parametrize(
    ("told", "status", "retryable"),
    [(429, 429, True), (403, 403, False), (503, 503, True), (500, None, False)],
)
def test_litellms_500_says_nothing(told: int, status: int | None, retryable: bool) -> None:
    error = meaning(ToldError(told))
    assert (error.status_code, error.retryable) == (status, retryable)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"code": 503}, 503),
        ({"code": 1301}, None),
        ({"code": "429"}, 429),
        ({"code": "9" * 5000}, None),
        ({"code": "rate_limit_exceeded", "type": "requests"}, 429),
        ({"code": None, "type": "server_error"}, 500),
        ({"code": "insufficient_quota", "type": "insufficient_quota"}, None),
        ({"type": "overloaded_error"}, 529),
        ({"code": "x"}, None),
        ("x", None),
    ],
)
def test_the_status_of_an_error_in_a_stream(body: Any, status: int | None) -> None:
    request = sse_request("http://x", {}, {}, None)
    assert request is not None
    with pytest.raises(EventError) as raised:
        request.parse(json.dumps({"error": body}).encode())
    assert meaning(raised.value).status_code == status


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            r'{"error": {"message": "cannot read \"hi \ud83d\""}}',
            'cannot read "hi \N{REPLACEMENT CHARACTER}"',
        ),
        ('{"error": ' + "[" * 5_000 + "]" * 5_000 + "}", None),
        ('{"error": null, "message": "no such model"}', "no such model"),
    ],
    ids=["half a character", "nested deep", "no error"],
)
def test_what_a_provider_says_of_an_error_can_travel_on(body: str, message: str | None) -> None:
    response = httpx.Response(400, text=body, request=httpx.Request("POST", "http://provider"))
    error = meaning(httpx.HTTPStatusError("refused", request=response.request, response=response))
    json.dumps(error.to_wire(), ensure_ascii=False).encode()
    assert message in (None, error.message)
