"""How a result is told that is longer than the broker takes."""

import pytest

from procession_schemas.run import Failure, RunResult, Tripwire
from procession_services.processor_host.driver import bare, cut, shortened

LONG = "x" * 1_000_000


def result(**fields):
    return RunResult(run_id="r", agent="a", status="blocked", finish_reason="other", **fields)


@pytest.mark.parametrize("field", ["messages", "steps", "tool_calls", "tool_results", "sources", "files"])
def test_what_the_chunks_had_goes_first(field):
    told = shortened(result(**{field: [{"text": LONG}]}, text="kept", retries=1))
    assert (told.text, told.retries, told.response) == ("kept", 1, {"shortened": True})
    assert len(told.to_json()) < 1_000


def test_a_text_is_cut_only_where_it_is_too_long_on_its_own():
    assert shortened(result(text=LONG)).text == LONG
    assert cut(result(text=LONG)).text == LONG[:200_000]


@pytest.mark.parametrize(
    "fields",
    [
        {"error": Failure(code="MODEL_FAILED", message=LONG, detail={"x": LONG})},
        {"tripwire": Tripwire(reason=LONG, processor_id="p", metadata={"x": LONG})},
        {"suspend_payload": {"calls": [{"toolCallId": "c", "toolName": "t", "args": {"x": LONG}}]}},
        {"text": LONG},
    ],
    ids=["error", "tripwire", "call", "text"],
)
def test_how_a_run_ended_is_told_whatever_is_too_long(fields):
    told = bare(result(**fields, duration_ms=7))
    assert len(told.to_json()) < 5_000
    assert (told.run_id, told.status, told.duration_ms) == ("r", "blocked", 7)
    assert told.error is None or (told.error.code, told.error.message[:3]) == ("MODEL_FAILED", "xxx")
    assert told.tripwire is None or (told.tripwire.processor_id, told.tripwire.reason[:3]) == ("p", "xxx")
    if told.suspend_payload:
        assert told.suspend_payload == {"calls": [{"toolCallId": "c", "toolName": "t"}]}
