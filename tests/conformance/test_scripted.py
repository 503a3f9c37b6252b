"""The scripted hooks do what the scenarios' README says, and everything is written down as recorded."""

from types import SimpleNamespace
from typing import Any

import pytest

from procession.calls import Calls, Link
from procession.context import RunContext
from procession.errors import ProcessorError, TripWire
from procession.hooks import run_input, run_input_step, run_llm_request, run_output_result, run_output_step
from procession.message_list import MessageList
from procession.processor import Hook
from procession.stream import StreamChain
from procession_schemas.run import RunResult
from procession_schemas.work import StepConfig
from tests.conformance.actions import substitute, when
from tests.conformance.board import LocalBoard
from tests.conformance.javascript import UNDEFINED, json_text, pattern, replace_all, text
from tests.conformance.model_calls import garbled_calls, model_event, playable
from tests.conformance.outcome import generate_record, stream_record
from tests.conformance.plan import Plan, seed_messages
from tests.conformance.record import chunk_of, db_of, error_info, prompt_of, scrub, usage_of, visible
from tests.conformance.refs import strict_schema
from tests.conformance.scripted import Scripted, ScriptedOptions, _declared
from tests.conformance.wording import loosely, recorded_words

Actions = list[dict[str, Any]]


class Writer:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def custom(self, chunk: Any) -> None:
        self.sent.append(dict(chunk))


class Bench:
    """A run's context with one scripted processor on a local board."""

    def __init__(self, hook: str, actions: Actions, **options: Any) -> None:
        numbers = iter(range(1000))
        messages = MessageList(new_id=lambda: f"id-{next(numbers)}", now=lambda: "2026-01-01T00:00:00.000Z")
        messages.add_system("You are a test agent.")
        messages.add("hello world", "input")
        self.ctx = RunContext(
            "run",
            "tenant",
            "agent",
            "message-1",
            messages,
            config=StepConfig(model="openai/script:k~model-a"),
        )
        given = {
            "id": "p",
            "hooks": {hook: actions},
            "ctx": {"key": "k", "run": 0, "model": "openai/script:k~"},
            **options,
        }
        self.board = LocalBoard()
        self.processor = Scripted(ScriptedOptions.model_validate(given))
        self.processor._board = self.board
        self.links = [Link(self.processor, "p")]
        self.calls = Calls(clock=lambda: 0)
        self.writer = Writer()

    @property
    def texts(self) -> list[tuple[str, str]]:
        return [
            (m["role"], p["text"])
            for m in self.ctx.messages.get.all.db()
            for p in m["content"]["parts"]
            if "text" in p
        ]

    async def stream(self, *chunks: dict[str, Any]) -> list[dict[str, Any]]:
        out: list[Any] = []
        chain = StreamChain(self.links, self.ctx, self.calls, out.append)
        for chunk in chunks:
            await chain.feed(chunk)  # type: ignore[arg-type]
        return out


def delta(told: str) -> dict[str, Any]:
    return {"type": "text-delta", "payload": {"id": "t", "text": told}}


async def test_a_processor_has_exactly_the_hooks_that_its_options_declare() -> None:
    hooks: dict[str, Any] = {"processInput": [], "processOutputStream": [], "processEverything": []}

    assert Scripted.hooks_for({"hooks": hooks}) == {Hook.INPUT, Hook.OUTPUT_STREAM}
    assert Scripted.sees_data_parts({"processDataParts": True})
    assert not Scripted.sees_data_parts({})


async def test_a_call_is_noted_with_what_the_hook_was_given() -> None:
    bench = Bench("processInput", [{"do": "noop"}])

    await run_input(bench.ctx, bench.links, bench.calls)

    assert bench.board.events == [
        {
            "ev": "hook",
            "hook": "processInput",
            "processor": "p",
            "retryCount": 0,
            "messages": [{"role": "user", "parts": [{"text": "hello world"}]}],
            "system": ["You are a test agent."],
        }
    ]


@pytest.mark.parametrize("shape", [None, "messages", "messageList", "void-mutate"])
async def test_messages_change_by_array_and_in_place(shape: str | None) -> None:
    returns = [{"do": "return", "shape": shape}] if shape else []
    bench = Bench(
        "processInput",
        [{"do": "uppercase"}, {"do": "append-message", "role": "user", "text": "${n}!"}, *returns],
    )

    await run_input(bench.ctx, bench.links, bench.calls)

    assert bench.texts == [("user", "HELLO WORLD"), ("user", "0!")]


async def test_a_void_hook_changes_nothing_that_it_did_not_change_in_place() -> None:
    bench = Bench("processInput", [{"do": "uppercase"}, {"do": "return", "shape": "void"}])

    await run_input(bench.ctx, bench.links, bench.calls)

    assert bench.texts == [("user", "hello world")]


async def test_system_messages_come_back_in_the_object_form() -> None:
    bench = Bench("processInput", [{"do": "append-system", "text": "Be brief."}])

    await run_input(bench.ctx, bench.links, bench.calls)

    assert [m["content"] for m in bench.ctx.messages.get_all_system_messages()] == [
        "You are a test agent.",
        "Be brief.",
    ]


async def test_dropped_messages_are_gone() -> None:
    bench = Bench("processInput", [{"do": "drop-messages", "role": "user", "match": "^hello"}])

    await run_input(bench.ctx, bench.links, bench.calls)

    assert bench.texts == []


async def test_an_external_list_is_refused_by_the_runtime() -> None:
    bench = Bench("processInput", [{"do": "return", "shape": "external-messageList"}])

    with pytest.raises(ProcessorError) as caught:
        await run_input(bench.ctx, bench.links, bench.calls)

    assert caught.value.code == "PROCESSOR_RETURNED_EXTERNAL_MESSAGE_LIST"


async def test_step_settings_are_returned_in_the_contracts_shape() -> None:
    bench = Bench(
        "processInputStep",
        [
            {"do": "switch-model", "model": "model-b"},
            {"do": "set-tool-choice", "toolChoice": {"tool": "echo"}},
            {"do": "set-active-tools", "tools": ["echo"]},
            {"do": "set-tools", "tools": ["echo"]},
            {"do": "set-model-settings", "settings": {"temperature": 0.5}},
            {"do": "set-provider-options", "options": {"mock-provider": {"effort": "low"}}},
            {
                "do": "set-structured-output",
                "schema": {"type": "object", "properties": {"n": {"type": "number"}}},
            },
        ],
        ctx={"key": "k", "run": 0, "model": "openai/script:k~", "tools": {"echo": {"name": "echo"}}},
    )

    await run_input_step(bench.ctx, bench.links, bench.calls, bench.writer)

    config = bench.ctx.config
    assert config.model == "openai/script:k~model-b"
    assert config.tool_choice == {"type": "tool", "toolName": "echo"}
    assert config.active_tools == ["echo"]
    assert config.tools["echo"].id == "scripted-tool"
    assert config.tools["echo"].name == "echo"
    assert config.model_settings == {"temperature": 0.5}
    assert config.provider_options == {"openai": {"effort": "low"}}
    assert config.structured_output
    assert config.structured_output.schema_["required"] == ["n"]
    assert bench.board.events[0]["model"] == "model-a"


async def test_a_prompt_can_be_replaced_appended_to_and_answered() -> None:
    bench = Bench(
        "processLLMRequest",
        [
            {"do": "replace-prompt", "messages": [{"role": "user", "text": "a dog"}]},
            {"do": "append-prompt", "role": "system", "text": "step ${step}"},
            {"do": "replace-text", "find": "(d)og", "with": "$1uck"},
            {"do": "respond", "chunks": ["x", "y"]},
        ],
    )

    await run_llm_request(bench.ctx, bench.links, bench.calls, bench.writer)

    assert prompt_of(bench.ctx.prompt) == [
        {"role": "user", "text": "a duck"},
        {"role": "system", "text": "step 0"},
    ]
    assert bench.ctx.cached
    assert [c["type"] for c in bench.ctx.cached["chunks"]] == [
        "text-start",
        "text-delta",
        "text-delta",
        "text-end",
        "finish",
    ]


async def test_a_cached_answer_is_found_under_its_prompt() -> None:
    bench = Bench("processLLMRequest", [{"do": "cache-lookup", "key": "v1"}])
    await run_llm_request(bench.ctx, bench.links, bench.calls, bench.writer)
    assert bench.ctx.cached is None
    key = bench.ctx.states["p"]["cacheKey"]
    await bench.board.store(key, [delta("old")])

    await run_llm_request(bench.ctx, bench.links, bench.calls, bench.writer)

    assert key.startswith('v1[{"role":"system"')
    assert bench.ctx.cached == {"chunks": [delta("old")]}
    assert bench.board.events[-1]["state"] == {"cacheKey": "<key>"}


async def test_chunks_are_counted_changed_dropped_and_followed_by_data() -> None:
    bench = Bench(
        "processOutputStream",
        [
            {"do": "count-chunks", "key": "c"},
            {"do": "collect-text"},
            {"do": "drop-chunk", "when": {"match": "no"}},
            {"do": "uppercase"},
            {
                "do": "emit-data",
                "type": "data-seen",
                "data": {"n": "$state.c", "t": "<${text}>"},
                "when": {"call": 1},
            },
            {"do": "set-chunk", "chunk": {"type": "text-end"}, "when": {"match": "end"}},
        ],
    )

    out = await bench.stream(delta("yes"), delta("no"), delta("end"))

    assert [chunk_of(chunk) for chunk in out] == [
        {"type": "text-delta", "text": "YES"},
        {"type": "data-seen", "data": {"n": 2, "t": "<yesno>"}},
        {"type": "text-end"},
    ]
    assert [event["seen"] for event in bench.board.events] == [1, 2, 3]
    assert bench.ctx.states["p"] == {"c": 3, "text": "yesnoend"}


async def test_undefined_from_a_stream_hook_drops_the_chunk() -> None:
    bench = Bench(
        "processOutputStream", [{"do": "return", "shape": "undefined", "when": {"type": "text-delta"}}]
    )

    assert await bench.stream(delta("a"), {"type": "text-end", "payload": {"id": "t"}}) == [
        {"type": "text-end", "payload": {"id": "t"}}
    ]


async def test_an_abort_carries_reason_retry_and_metadata() -> None:
    abort = {"do": "abort", "reason": "no ${retryCount}", "retry": True, "metadata": {"score": 1}}
    bench = Bench("processOutputStep", [abort], onViolation=True)
    bench.ctx.response = {"text": "bad", "finishReason": "stop", "toolCalls": []}

    with pytest.raises(TripWire) as caught:
        await run_output_step(bench.ctx, bench.links, bench.calls, bench.writer)

    assert (caught.value.reason, caught.value.retry, caught.value.metadata) == ("no 0", True, {"score": 1})
    assert bench.board.events[-1] == {
        "ev": "violation",
        "processor": "p",
        "message": "no 0",
        "detail": {"score": 1},
    }


async def test_previous_steps_do_not_count_the_step_in_hand() -> None:
    bench = Bench("processOutputStep", [{"do": "noop"}])
    bench.ctx.steps = [{"stepNumber": 0, "text": "one"}]
    bench.ctx.step_number = 1
    bench.ctx.response = {"text": "two", "finishReason": "stop", "toolCalls": []}

    await run_output_step(bench.ctx, bench.links, bench.calls, bench.writer)

    assert bench.board.events[0]["previousSteps"] == 1


async def test_metadata_is_put_on_the_answer() -> None:
    bench = Bench("processOutputResult", [{"do": "set-metadata", "metadata": {"ok": True}}])
    bench.ctx.messages.add({"role": "assistant", "content": "hi"}, "response")

    await run_output_result(bench.ctx, bench.links, bench.calls, bench.writer, "stop")

    answer: list[Any] = bench.ctx.messages.get.response.db()
    assert db_of(answer) == [{"role": "assistant", "parts": [{"text": "hi"}], "metadata": {"ok": True}}]


async def test_a_hook_without_a_writer_says_so() -> None:
    bench = Bench("processInput", [{"do": "emit-data", "type": "data-x", "data": 1}])

    await run_input(bench.ctx, bench.links, bench.calls)

    assert bench.board.events[-1] == {"ev": "no-writer", "processor": "p", "hook": "processInput"}


async def test_an_unknown_action_is_an_error_that_names_it() -> None:
    bench = Bench("processInput", [{"do": "dance"}])

    with pytest.raises(ProcessorError, match="unknown action dance"):
        await run_input(bench.ctx, bench.links, bench.calls)


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
