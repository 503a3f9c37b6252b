"""How an end or a violation is told that is longer than the broker takes."""

import orjson
import pytest

from procession_schemas.events import ProcessorViolation, RunFinished
from procession_schemas.run import Failure, RunResult, Tripwire
from procession_services.processor_host.fitting import (
    fitting_end,
    fitting_finish,
    fitting_tripwire,
    fitting_violation,
)

LONG = "x" * 1_000_000


def told(longest, **fields):
    result = RunResult(run_id="r", agent="a", status="blocked", finish_reason="other", **fields)
    event = RunFinished(run_id="r", at="2026-01-01T00:00:00.000Z", result=result)
    body = fitting_end(event, lambda body: len(body) <= longest)
    return RunFinished.model_validate_json(body).result, len(body)


def test_what_fits_is_told_as_it_is():
    result, _ = told(2_000_000, text=LONG, messages=[{"id": "m"}])
    assert (result.text, result.messages, result.response) == (LONG, [{"id": "m"}], {})


@pytest.mark.parametrize("field", ["messages", "steps", "tool_calls", "tool_results", "sources", "files"])
def test_what_the_chunks_had_goes_first(field):
    result, size = told(1_500, **{field: [{"text": LONG}]}, text="kept", retries=1)
    assert (result.text, result.retries, result.response) == ("kept", 1, {"shortened": True})
    assert size <= 1_500


def test_a_text_is_cut_only_where_it_is_too_long_on_its_own():
    assert told(1_100_000, text=LONG, messages=[{"text": LONG}])[0].text == LONG
    assert told(300_000, text=LONG)[0].text == LONG[:200_000]


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
    result, size = told(5_000, **fields, duration_ms=7)
    assert size <= 5_000
    assert (result.run_id, result.status, result.duration_ms) == ("r", "blocked", 7)
    assert result.error is None or (result.error.code, result.error.message[:3]) == ("MODEL_FAILED", "xxx")
    assert result.tripwire is None or (result.tripwire.processor_id, result.tripwire.reason[:3]) == (
        "p",
        "xxx",
    )
    if result.suspend_payload:
        assert result.suspend_payload == {"calls": [{"toolCallId": "c", "toolName": "t"}]}


@pytest.mark.parametrize(
    ("longest", "text", "metadata", "expected"),
    [
        (1_100_000, LONG, {"id": "m"}, {"output": {"text": LONG, "usage": {}}, "metadata": {"id": "m"}}),
        (
            300_000,
            LONG,
            {"id": "m"},
            {"output": {"text": LONG[:200_000], "usage": {}, "shortened": True}, "metadata": {"id": "m"}},
        ),
        (300_000, LONG, {"id": LONG}, {"output": {"text": "", "usage": {}, "shortened": True}}),
        (1_000, LONG, {"id": "m"}, {"output": {"text": "", "usage": {}, "shortened": True}}),
    ],
    ids=["fits", "text", "metadata", "nothing"],
)
def test_the_end_of_a_step_has_as_much_of_its_text_as_fits(longest, text, metadata, expected):
    payload = {"messageId": "m", "output": {"text": text, "usage": {}}, "metadata": metadata}
    chunk = fitting_finish(
        {"type": "step-finish", "payload": payload}, lambda chunk: len(orjson.dumps(chunk)) <= longest
    )
    assert chunk == {"type": "step-finish", "payload": {"messageId": "m", **expected}}
    assert payload["output"] == {"text": text, "usage": {}}


def test_a_violation_without_its_details():
    violation = ProcessorViolation(
        run_id="r", tenant="t", agent="a", processor_id="p", hook="processInput", message=LONG,
        detail={"x": LONG}, step=0,
    )  # fmt: skip
    assert orjson.loads(fitting_violation(violation, lambda _: True))["detail"] == {"x": LONG}
    short = orjson.loads(fitting_violation(violation, lambda _: False))
    assert (short["message"], short["detail"]) == (LONG[:2_000], {"shortened": True})


@pytest.mark.parametrize(
    ("reason", "metadata", "told"),
    [
        ("why", {"x": 1}, ("why", {"x": 1})),
        ("r" * 5_000, LONG, ("r" * 5_000, {"shortened": True})),
        (LONG, None, ("x" * 2_000, {"shortened": True})),
    ],
    ids=["short", "long metadata", "long reason"],
)
def test_a_tripwire_is_as_long_as_commands_have_room_for(reason, metadata, told):
    tripwire = fitting_tripwire(Tripwire(reason=reason, processor_id="p", metadata=metadata))
    assert (tripwire.reason, tripwire.metadata) == told
