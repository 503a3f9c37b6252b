"""The scripted hooks do what the scenarios' README says."""

from typing import Any

import pytest

from procession.calls import Calls, Link
from procession.context import RunContext
from procession.errors import ProcessorError, TripWire
from procession.hooks import run_input, run_input_step, run_llm_request, run_output_result, run_output_step
from procession.message_list import MessageList
from procession.processor import Hook
from procession.stream import StreamChain
from procession_schemas.work import StepConfig
from tests.conformance.board import LocalBoard
from tests.conformance.record import chunk_of, db_of, prompt_of
from tests.conformance.scripted import Scripted, ScriptedOptions

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
