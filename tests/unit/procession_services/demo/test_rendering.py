import pytest

from procession_schemas.run import Failure, HookReport, ModelReport, RunResult, Tripwire
from procession_services.demo.rendering import chunk_text, summary, table


@pytest.mark.parametrize(
    ("chunk", "text"),
    [
        ({"type": "text-delta", "payload": {"id": "1", "text": "Hi"}}, "Hi"),
        ({"type": "text-start", "payload": {"id": "1"}}, ""),
        ({"type": "tool-call", "payload": {"toolName": "t", "args": {"a": 1}}}, '\n[calls t {"a":1}]\n'),
        (
            {"type": "tool-error", "payload": {"toolName": "t", "error": {"message": "no"}}},
            "\n[t failed: no]\n",
        ),
        (
            {
                "type": "tool-error",
                "payload": {"toolName": "t", "error": {"name": "KeyError", "message": "'x'"}},
            },
            "\n[t failed: KeyError: 'x']\n",
        ),
        (
            {
                "type": "tool-error",
                "payload": {"toolName": "t", "error": {"name": "TimeoutError", "message": "TimeoutError"}},
            },
            "\n[t failed: TimeoutError]\n",
        ),
        ({"type": "step-finish", "payload": {"stepResult": {"reason": "stop"}}}, ""),
        (
            {"type": "step-finish", "payload": {"stepResult": {"reason": "retry", "retryReason": "shorter"}}},
            "\n[tries again: shorter]\n",
        ),
        ({"type": "tripwire", "payload": {"processorId": "p", "reason": "no"}}, "\n[blocked by p: no]\n"),
        ({"type": "error", "payload": {"error": {"message": "broken"}}}, "\n[error: broken]\n"),
        ({"type": "error", "payload": {"error": "broken"}}, "\n[error: broken]\n"),
        ({"type": "data-count", "data": {"n": 1}}, '\n[data-count {"n":1}]\n'),
        ({"type": "something-new", "payload": {}}, ""),
        ({"type": "finish"}, ""),
    ],
)
def test_what_a_terminal_shows_of_a_chunk(chunk, text):
    assert chunk_text(chunk) == text


def test_a_long_value_is_cut():
    assert len(chunk_text({"type": "data-x", "data": "x" * 5000})) < 200


def test_a_table_aligns_numbers_right_and_leaves_out_empty_columns():
    assert table(["name", "n", "none"], [["a", "10", ""], ["bcdef", "2", ""]]) == (
        "name    n\n"
        "a      10\n"
        "bcdef   2\n"
    )  # fmt: skip


def test_a_sentence_that_begins_with_a_number_is_no_number():
    why = "9 validation errors for WorkCommand"
    assert table(["took", "why"], [["10 ms", why]]) == f" took  why\n10 ms  {why}\n"


def test_a_summary_tells_what_the_processors_did_and_what_it_cost():
    text = summary(
        RunResult(
            run_id="run-1",
            agent="demo",
            status="finished",
            finish_reason="stop",
            steps=[{}, {}],
            retries=1,
            duration_ms=1234,
            processors=[
                HookReport(processor="redactor", hook="processOutputStream", calls=7, micros=1500, changed=2),
                HookReport(processor="check", hook="processInput", calls=1, micros=12),
            ],
            models=[
                ModelReport(model="a/b", calls=2, usage={"inputTokens": 5, "outputTokens": 0}, cost=0.00012),
                ModelReport(model="c/d", calls=1, usage={}),
            ],
        )
    ).splitlines()
    rows = [line.split() for line in text]
    assert ["redactor", "processOutputStream", "7", "1.5", "ms", "2"] in rows
    assert ["check", "processInput", "1", "12", "µs"] in rows
    assert ["a/b", "2", "5", "0", "$0.000120"] in rows
    assert ["c/d", "1", "unknown"] in rows
    assert "finished (stop) in 1.23 s; 2 steps, retries: 1; run run-1" in text


def test_a_summary_tells_why_a_run_ended_badly():
    bad = RunResult(
        run_id="r",
        agent="a",
        status="failed",
        finish_reason="error",
        error=Failure(
            code="BAD", message="broken", field="tools.0.id", hook="processInput", processor_id="p"
        ),
        tripwire=Tripwire(reason="no", processor_id="guard"),
    )
    assert "BAD [tools.0.id]: broken (processInput of p)\n" in summary(bad)
    assert "blocked by guard: no\n" in summary(bad)


def test_a_summary_tells_how_to_decide_about_calls_that_wait():
    calls = [{"toolCallId": "c1", "kind": "approval"}, {"toolCallId": "c2", "kind": "suspended"}]
    told = summary(
        RunResult(
            run_id="r",
            agent="a",
            status="suspended",
            finish_reason="suspended",
            suspend_payload={"calls": calls},
        )
    )
    assert told.endswith("procession approve r c1, or decline\nprocession resume r c2 JSON\n")
