"""Failures of model calls: wire form and retries (R-MS-3, R-SER-6)."""

from typing import Any

import pytest

from procession_services.llm_gateway.core.failures import (
    ProviderError,
    may_retry,
    retry_delay,
    retryable_status,
)


def error(**fields: Any) -> ProviderError:
    return ProviderError(
        **{"message": "boom", "retryable": True, "provider": "openai", "model": "openai/x", **fields}
    )


def test_the_wire_form_holds_what_is_known() -> None:
    assert error(retryable=False).to_wire() == {
        "name": "APICallError",
        "message": "boom",
        "kind": "api",
        "isRetryable": False,
        "provider": "openai",
        "model": "openai/x",
    }


def test_the_wire_form_comes_back_as_the_same_error() -> None:
    full = error(
        kind="stream",
        status_code=429,
        code="slow",
        type="rate_limit",
        response_body="{}",
        headers={"retry-after": "3"},
        cause={"type": "error", "error": {"message": "boom"}},
    )
    wire = full.to_wire()
    assert (wire["name"], wire["statusCode"], wire["responseHeaders"]) == (
        "StreamError",
        429,
        {"retry-after": "3"},
    )


def test_a_long_body_is_cut_on_the_wire() -> None:
    assert len(error(response_body="x" * 100_000).to_wire()["responseBody"]) < 10_000


def test_its_text_is_its_message() -> None:
    assert str(error()) == "boom"


@pytest.mark.parametrize(
    ("status", "expected"),
    [(400, False), (401, False), (408, True), (409, True), (422, False), (429, True), (529, True)],
)
def test_statuses_worth_another_try(status: int, expected: bool) -> None:
    assert retryable_status(status) is expected


def test_what_may_be_retried() -> None:
    assert may_retry(error())
    assert may_retry(error(kind="network"))
    assert not may_retry(error(retryable=False))
    assert not may_retry(error(kind="timeout"))


def test_the_wait_doubles() -> None:
    assert [retry_delay(attempt, error()) for attempt in range(4)] == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("headers", "attempt", "expected"),
    [
        ({"retry-after": "7"}, 0, 7),
        ({"retry-after": "7"}, 3, 8),
        ({"retry-after": "3600"}, 0, 30),
        ({"retry-after": "3600"}, 6, 64),
        ({"retry-after-ms": "2500", "retry-after": "9"}, 0, 2.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 0, 9),
        ({"retry-after-ms": "2500.0", "retry-after": "9"}, 0, 2.5),
        ({"retry-after": "1.5"}, 0, 1.5),
        ({"retry-after": "7.5s"}, 0, 1),
        ({"retry-after": "-5"}, 0, 1),
        ({"retry-after": "Fri, 02 Jan 2026 00:00:12 GMT", "date": "Fri, 02 Jan 2026 00:00:00 GMT"}, 0, 12),
        ({"retry-after": "Fri, 02 Jan 2026 00:00:00 GMT", "date": "Fri, 02 Jan 2026 00:00:12 GMT"}, 0, 1),
        ({"retry-after": "Fri, 02 Jan 2026 00:00:12 GMT"}, 0, 1),
    ],
)
def test_the_provider_may_ask_for_a_longer_wait(
    headers: dict[str, str], attempt: int, expected: float
) -> None:
    assert retry_delay(attempt, error(headers=headers)) == expected


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("name", ["retry-after", "retry-after-ms"])
def test_no_number_is_too_long_to_wait_for(name: str, digits: int) -> None:
    assert retry_delay(0, error(headers={name: "9" * digits})) == 30


def test_a_date_that_is_none_says_nothing() -> None:
    far = {"retry-after": f"Mon, 01 Jan {'9' * 30} 00:00:00 GMT", "date": "Mon, 01 Jan 2026 00:00:00 GMT"}
    assert retry_delay(0, error(headers=far)) == 1


def test_only_the_beginning_of_a_long_text_is_told_and_no_part_of_a_secret() -> None:
    told = "x" * 8190 + "my-secret-key" + "x" * 9000
    long = error(message=told, response_body=told, cause={"error": {"message": told}})
    wire = long.without({"my-secret-key"}).to_wire()
    texts = [wire["message"], wire["responseBody"], wire["cause"]["error"]["message"]]
    assert texts == [("x" * 8190 + "[redacted]")[:8192]] * 3
    assert len(str(long)) == 8192
