"""Conditions, texts, and everything that is written down: as the reference has it."""

from types import SimpleNamespace
from typing import Any

import pytest

from procession_schemas.run import RunResult
from tests.conformance.conditions import substitute, when
from tests.conformance.javascript import UNDEFINED, json_text, pattern, replace_all, text
from tests.conformance.model_calls import garbled_calls, model_event, playable
from tests.conformance.outcome import generate_record, stream_record
from tests.conformance.plan import Plan, seed_messages
from tests.conformance.record import chunk_of, db_of, error_info, scrub, usage_of, visible
from tests.conformance.refs import strict_schema
from tests.conformance.scripted import _declared
from tests.conformance.wording import loosely, recorded_words


def delta(told: str) -> dict[str, Any]:
    return {"type": "text-delta", "payload": {"id": "t", "text": told}}


@pytest.mark.parametrize(
    ("condition", "held"),
    [
        ({"step": 1}, True),
        ({"step": [0, 2]}, False),
        ({"retryCount": [2, 3]}, True),
        ({"retryCountBelow": 2}, False),
        ({"type": "text-delta"}, True),
        ({"toolName": "echo"}, False),
        ({"call": 4}, True),
        ({"call": [0, 1]}, False),
        ({"match": "^w.*d$"}, True),
        ({"state": {"k": {"a": 1.0}}}, True),
        ({"state": {"gone": None}}, False),
        ({"stateAtLeast": {"n": 3, "none": 0}}, True),
        ({"stateAtLeast": {"n": 4}}, False),
        ({"statusCode": 429}, False),
        ({"fromCache": False}, False),
        ({"finishReason": "stop", "step": 1}, False),
        (None, True),
    ],
)
def test_conditions(condition: dict[str, Any] | None, held: bool) -> None:
    state = {"k": {"a": 1}, "n": 3}
    args = SimpleNamespace(step_number=1, retry_count=2, state=state, part=delta("world"))

    assert when(condition, "processOutputStream", args, 4) is held


def test_an_unknown_condition_is_an_error() -> None:
    args = SimpleNamespace(retry_count=0, state={})

    with pytest.raises(ValueError, match="unknown condition moon"):
        when({"moon": "full"}, "processInput", args, 0)


def test_placeholders_are_filled() -> None:
    env = {"n": 3, "step": UNDEFINED, "retryCount": 0, "state": {"k": [1, 2], "f": 2.0, "__own": 1}}

    assert substitute("${n}-${step}-${retryCount}-${k}-${f}-${none}", env) == "3--0-1,2-2-"
    assert substitute({"a": ["$state", "$state.k"]}, env) == {"a": [{"k": [1, 2], "f": 2.0}, [1, 2]]}
    assert substitute("$state.gone", env) is UNDEFINED
    assert substitute("$state", {"state": {}}) is UNDEFINED


def test_javascript_patterns() -> None:
    assert replace_all(r"(?<a>\d)-(\d)", r"$<a>$2$$$&$9", "1-2") == "12$1-2$9"
    assert not pattern(r"^a$").search("a\n")
    assert not pattern(r"\d").search("٣")
    assert pattern(r"[^]b[]$]").flags
    assert replace_all("x*", "-", "ab") == "-a-b-"
    assert pattern(r"(?<q>['\"])x\k<q>").search("'x'")


def test_javascript_texts() -> None:
    assert json_text({"a": 1.0, "b": UNDEFINED, "c": [UNDEFINED, "é"]}) == '{"a":1,"c":[null,"é"]}'
    assert [text(v) for v in (True, None, 1.5, 2.0, [1, None])] == ["true", "", "1.5", "2", "1,"]


@pytest.mark.parametrize(
    ("chunk", "recorded"),
    [
        ({"type": "start", "payload": {"id": "a"}}, {"type": "start"}),
        (
            {
                "type": "tool-error",
                "payload": {"toolCallId": "c", "toolName": "t", "error": {"message": "boom"}},
            },
            {"type": "tool-error", "id": "c", "name": "t", "error": "boom"},
        ),
        (
            {"type": "tool-call-delta", "payload": {"toolCallId": "c", "argsTextDelta": "{}"}},
            {"type": "tool-call-delta", "id": "c", "delta": "{}"},
        ),
        (
            {
                "type": "step-finish",
                "payload": {
                    "stepResult": {"reason": "retry", "isContinued": True, "retryReason": "no"},
                    "output": {"usage": {"inputTokens": 1}},
                },
            },
            {
                "type": "step-finish",
                "reason": "retry",
                "isContinued": True,
                "retryReason": "no",
                "usage": {"input": 1, "output": None, "total": None},
            },
        ),
        (
            {"type": "tripwire", "payload": {"reason": "no", "retry": None, "processorId": "p"}},
            {"type": "tripwire", "reason": "no", "processorId": "p"},
        ),
        (
            {"type": "error", "payload": {"error": {"message": "m", "statusCode": 400}}},
            {"type": "error", "message": "m", "statusCode": 400},
        ),
        ({"type": "data-x", "data": None, "id": "1"}, {"type": "data-x", "data": None}),
        ({"type": "object", "object": {"a": 1}}, {"type": "object", "object": {"a": 1}}),
    ],
)
def test_chunks_as_recorded(chunk: dict[str, Any], recorded: dict[str, Any]) -> None:
    assert chunk_of(chunk) == recorded


def test_messages_as_recorded() -> None:
    call = {"toolName": "t", "toolCallId": "c", "state": "output-error", "args": {}, "errorText": "boom"}
    parts = [
        {"type": "step-start"},
        {"type": "reasoning", "reasoning": "hm", "details": []},
        {"type": "tool-invocation", "toolInvocation": call},
        {"type": "data-x", "data": 1},
        {"type": "error", "error": {"name": "E", "message": "bad"}},
        {"type": "file", "data": ""},
    ]
    message = {"role": "assistant", "content": {"parts": parts, "metadata": {"modelId": "m", "mine": 1}}}

    assert db_of([message]) == [
        {
            "role": "assistant",
            "parts": [
                {"reasoning": "hm"},
                {"tool": "t", "id": "c", "state": "output-error", "args": {}, "error": "boom"},
                {"data": "data-x", "value": 1},
                {"error": "bad"},
                {"part": "file"},
            ],
            "metadata": {"mine": 1},
        }
    ]


def test_small_formats() -> None:
    assert visible({"__x": 1}) is None
    assert usage_of({"inputTokens": 1}) == {"input": 1, "output": None, "total": None}
    assert error_info(
        SimpleNamespace(message="m", status_code=None, cause=SimpleNamespace(status_code=500))
    ) == {
        "message": "m",
        "statusCode": 500,
    }
    assert scrub(["a 0b7f7c1e-1111-2222-3333-444455556666 z"]) == ["a <uuid> z"]


def test_a_model_call_is_read_back_from_http() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": '{"x":1}'}}
    body = {
        "model": "script:k~model-b",
        "stream": True,
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call, {**call, "id": "c2"}, {**call, "id": "c3"}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": '{"x":1}'},
            {"role": "tool", "tool_call_id": "c2", "content": "plain"},
            {"role": "tool", "tool_call_id": "c3", "content": "no such tool"},
        ],
        "temperature": 0.5,
        "max_tokens": 9,
        "effort": "low",
    }
    events: list[dict[str, Any]] = [
        {"ev": "_choice", "choice": "none"},
        {"ev": "_outcome", "id": "c1", "result": {"x": 1.0}},
        {"ev": "_outcome", "id": "c2", "result": "plain"},
    ]

    event = model_event(body, events, None, 2)

    assert (event["call"], event["model"], event["toolChoice"]) == (2, "model-b", "none")
    assert event["settings"] == {"temperature": 0.5, "maxOutputTokens": 9}
    assert event["providerOptions"] == {"mock-provider": {"effort": "low"}}
    assert event["prompt"][1] == {"role": "user", "text": ["a", "b"]}
    assert event["prompt"][2]["tool_calls"][0] == {"id": "c1", "name": "echo", "args": {"x": 1}}
    assert [r["output"] for r in event["prompt"][3]["tool_results"]] == [
        {"type": "json", "value": {"x": 1.0}},
        {"type": "text", "value": "plain"},
        {"type": "error-text", "value": "no such tool"},
    ]


def test_a_choice_of_an_earlier_attempt_does_not_count() -> None:
    events: list[dict[str, Any]] = [{"ev": "_choice", "choice": "none"}, {"ev": "model"}]

    assert "toolChoice" not in model_event({"messages": []}, events, None, 0)
    assert model_event({"messages": []}, events, "none", 0)["toolChoice"] == "none"


def test_scripts_are_made_playable() -> None:
    script = [
        {"error": {"status": 503}, "chunks": ["x"]},
        {"chunks": ["a"], "mid_error": {"kind": "drop"}, "tool_calls": []},
    ]

    assert playable(script, paced=False) == [
        {"error": {"status": 503, "message": "mock error 503"}},
        {"chunks": ["a"], "mid_error": {"kind": "drop", "message": "mid-stream error"}},
    ]
    assert playable([], paced=False) == [{}]


def scenario(**more: Any) -> dict[str, Any]:
    base = {"id": "s", "agent": {}, "model_script": [{}], "runs": [{"input": "hi"}]}
    return base | more


def test_a_request_is_made_from_the_scenario() -> None:
    plan = Plan(
        scenario(
            agent={"inputProcessors": ["p"], "tools": [{"name": "t"}], "maxProcessorRetries": 2},
            processors={
                "p": {"hooks": {"processInput": [{"do": "noop"}]}},
                "b": {"builtin": "unicode-normalizer"},
            },
            memory={"lastMessages": 3},
            runs=[
                {
                    "input": [{"role": "user", "text": "x"}],
                    "options": {"outputProcessors": ["b"], "maxSteps": 2},
                }
            ],
        ),
        "key",
        "http://m",
        stream=True,
    )

    request = plan.request(0)

    assert not plan.problems()
    assert request["input"] == [{"role": "user", "content": "x"}]
    assert request["outputProcessors"] == [{"id": "unicode-normalizer", "options": {}}]
    assert request["maxSteps"] == 2
    assert request["modelSettings"] == {"maxRetries": 0}
    assert request["memory"] == {"thread": "thread-1", "resource": "user-1"}
    agent = request["agent"]
    assert agent["model"] == "openai/script:key~model-a"
    assert agent["memory"] == {"lastMessages": 3}
    assert agent["inputProcessors"][0]["as"] == "p"
    assert agent["tools"][0]["as"] == "t"


def test_a_scenario_with_unknown_parts_is_refused_before_it_runs() -> None:
    processors = {"p": {"hooks": {"processOutputStream": [{"do": "dance"}]}}}
    plan = Plan(scenario(processors=processors, agent={"errorProcessors": ["q"]}), "k", "", stream=True)

    assert plan.problems() == [
        "processor p, hook processOutputStream: unknown action 'dance'",
        "no processor 'q'",
    ]


def test_seeds_are_a_second_apart() -> None:
    first, second = seed_messages(
        {"seed": [{"role": "user", "text": "a"}, {"role": "assistant", "text": "b"}]}
    )

    assert (first["createdAt"], second["createdAt"]) == (
        "2024-01-01T00:00:01.000Z",
        "2024-01-01T00:00:02.000Z",
    )


def test_schemas_require_what_they_declare() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {}}, "b": {}},
        "required": ["a"],
    }

    assert strict_schema(schema)["required"] == ["a"]
    assert strict_schema({"type": "object", "properties": {"a": {}}})["required"] == ["a"]
    assert _declared({"a": 1, "z": 2}, {"type": "object", "properties": {"a": {}}}) == {"a": 1}


def test_results_as_recorded() -> None:
    result = RunResult(
        run_id="r",
        agent="a",
        status="blocked",
        finish_reason="other",
        text="t",
        usage={"inputTokens": 1, "outputTokens": 2, "totalTokens": 3},
        steps=[
            {
                "text": "x",
                "finishReason": "tool-calls",
                "toolCalls": [{"toolCallId": "c", "toolName": "echo", "input": {}}],
                "toolResults": [{"toolCallId": "c", "toolName": "echo", "output": 1}],
                "tripwire": {"reason": "no", "processorId": "p", "retry": None},
            }
        ],
        tool_results=[{"type": "tool-result", "payload": {"toolName": "echo", "result": 1}}],
        tripwire={"reason": "no", "processorId": "p"},  # type: ignore[arg-type]
    )

    record = stream_record([delta("x")], result, {})

    tripwire = {"reason": "no", "processorId": "p"}
    assert record["tripwire"] == tripwire
    assert record["steps"] == [
        {
            "text": "x",
            "finishReason": "tool-calls",
            "toolCalls": ["echo"],
            "toolResults": [1],
            "tripwire": tripwire,
        }
    ]
    assert record["toolResults"] == [{"name": "echo", "result": 1}]
    assert generate_record(result, {})["steps"] == 1


def test_only_wording_is_changed() -> None:
    told = (
        "[Processor feedback] Your last answer was rejected: too short. "
        "Produce a new answer that takes this into account."
    )
    unknown = "There is no tool 'a'. Available tools: b, c. Use one of these names exactly."
    side = {
        "text": told,
        "tool": unknown,
        "error": {"message": "Server disconnected"},
        "runs": ["Server disconnected"],
    }

    words = recorded_words(side, [{"error": {"network": True, "message": "ECONNRESET"}}])

    assert words["text"].startswith(
        "[Processor Feedback] Your previous response was not accepted: too short. "
    )
    assert words["tool"].startswith('Tool "a" not found. Available tools: b, c. ')
    assert words["error"] == {"message": "ECONNRESET"}
    assert words["runs"] == ["Server disconnected"]
    assert recorded_words(side["error"], []) == {"message": "Server disconnected"}


def test_some_wording_is_compared_loosely() -> None:
    wrapped = "Processor workflow a-b failed with status: failed — step bug; step processor:p: step bug"

    assert loosely([wrapped]) == loosely(["step bug"])
    assert loosely("Structured output validation failed: - age: x") == loosely("the answer is not JSON: y")
    assert loosely("the answer is no JSON") == "the answer is no JSON"


def test_garbled_arguments_are_left_out() -> None:
    calls: list[dict[str, Any]] = [
        {"id": "c1", "name": "t", "arguments": '{"x": '},
        {"id": "c2", "name": "t"},
    ]
    garbled = garbled_calls([{"tool_calls": calls}])
    made = [{"id": c["id"], "function": {"name": "t", "arguments": "{}"}} for c in calls]

    event = model_event({"messages": [{"role": "assistant", "tool_calls": made}]}, [], None, 0, garbled)

    assert event["prompt"][0]["tool_calls"] == [
        {"id": "c1", "name": "t"},
        {"id": "c2", "name": "t", "args": {}},
    ]
