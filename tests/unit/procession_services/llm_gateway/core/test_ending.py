"""Ends of answers that are failures (R-AE-3c)."""

from typing import Any

import pytest

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.ending import Ending

TEXT = {"type": "text-delta", "payload": {"id": "t", "text": "x"}}
METADATA = {"type": "response-metadata", "payload": {"id": "r"}}
RAW = {"type": "raw", "payload": {}}


def finish(reason: str | None, said: str | None = None) -> dict[str, Any]:
    result = {k: v for k, v in {"reason": reason, "rawReason": said}.items() if v}
    return {"type": "finish", "payload": {"stepResult": result}}


def failure(*batches: Any) -> Any:
    ending = Ending(ModelCall(model="openai/x", prompt=[]))
    failures = [ending.failure(batch) for batch in batches]
    assert not any(failures[:-1])
    return failures[-1]


@pytest.mark.parametrize("reason", ["stop", "length", "content-filter", "tool-calls"])
def test_an_answer_may_be_empty(reason: str) -> None:
    assert failure([METADATA, finish(reason)]) is None


@pytest.mark.parametrize(
    "batches", [[[TEXT, finish("error")]], [[TEXT], [], [finish("error")]], [[finish("error")]]]
)
def test_an_error_that_is_not_told_is_one(batches: list[list[dict[str, Any]]]) -> None:
    found = failure(*batches)
    assert found.to_wire() == {
        "name": "StreamError",
        "message": "the answer ended with finish reason 'error', but no error was reported",
        "kind": "stream",
        "isRetryable": False,
        "provider": "openai",
        "model": "openai/x",
        "code": "AGENT_STREAM_ERROR",
    }


@pytest.mark.parametrize("reason", ["other", None])
def test_nothing_at_all_is_no_answer(reason: str | None) -> None:
    told = "the answer ended with finish reason 'other', and it was empty"
    assert str(failure([RAW, METADATA], [finish(reason)])) == told


@pytest.mark.parametrize(
    "kind", ["text-delta", "reasoning-delta", "tool-call", "tool-call-delta", "source", "file"]
)
def test_something_is(kind: str) -> None:
    assert failure([{"type": kind, "payload": {}}], [METADATA], [finish("other")]) is None
    assert failure([{"type": kind, "payload": {}}, finish("other")]) is None


def test_what_the_provider_called_it_is_told() -> None:
    assert "'MALFORMED_FUNCTION_CALL'" in str(failure([TEXT, finish("error", "MALFORMED_FUNCTION_CALL")]))
    assert "'pause'" in str(failure([finish("other", "pause")]))
