"""The kit that authors test with: it has to fail where production would."""

import datetime as dt
from typing import Any

import pytest
from pydantic import BaseModel, Field

from procession import Options, Processor
from procession.errors import BrokenComponentError, InvalidOptionsError, ProcessorError
from procession.testing import ConformanceError, ProcessorKit, check_processor
from procession.testing.answers import answer
from tests.unit.procession.making import delta, on, processor, retext

# --- the run that a kit plays ----------------------------------------------------------------


def keep(args):
    return args.part


def nothing(_args):
    return None


async def test_a_whole_run_hook_by_hook():
    noted = []

    def note(name):
        def hook(args):
            noted.append((name, getattr(args, "step_number", None), args.retry_count))
            if name == "judge" and args.text == "bad":
                args.abort("bad", retry=True)

        return hook

    kit = ProcessorKit(
        processor(
            process_input=note("input"),
            process_input_step=note("step"),
            process_output_step=note("judge"),
            process_tool_result=note("tool"),
            process_output_result=note("result"),
        ),
        instructions="Be kind.",
    )
    await kit.input("question")
    await kit.input_step()
    await kit.output_step("bad")
    await kit.input_step()
    await kit.output_step("let me look", tool_calls=[{"toolName": "lookup", "args": {"q": 1}}])
    await kit.tool_result("lookup", "found")
    await kit.input_step()
    await kit.output_step("done")
    out = await kit.output_result()
    assert noted == [
        ("input", None, 0), ("step", 0, 0), ("judge", 0, 0), ("step", 0, 1), ("judge", 0, 1), ("tool", 0, 1),
        ("step", 1, 1), ("judge", 1, 1), ("result", None, 1),
    ]  # fmt: skip
    assert out.texts == ["question", "let me lookdone"]
    assert [step["finishReason"] for step in kit.context.steps] == ["retry", "tool-calls", "stop"]
    assert kit.context.steps[1]["toolResults"] == [
        {"toolCallId": "call-1", "toolName": "lookup", "output": "found"}
    ]
    assert kit.context.usage == {"inputTokens": 30, "outputTokens": 15, "totalTokens": 45}


class Named(Processor[Options]):
    id = "named"

    @classmethod
    def hooks_for(cls, options: dict[str, Any]) -> Any:
        return ["process_input"]

    async def process_input(self, args):
        args.abort("seen")


async def test_hooks_may_be_named_as_they_may_be_in_production():
    assert (await ProcessorKit(Named).input("hi")).blocked.reason == "seen"
    await check_processor(Named)


async def test_what_is_no_hook_is_told_as_it_is_in_production():
    class Lost(Named):
        @classmethod
        def hooks_for(cls, options):
            return ["process_output"]

    with pytest.raises(BrokenComponentError, match="process_output"):
        await ProcessorKit(Lost).input("hi")
    with pytest.raises(BrokenComponentError, match="process_output"):
        await check_processor(Lost)


async def test_a_blocked_answer_is_taken_back_and_costs_no_retry():
    kit = ProcessorKit(processor(process_output_step=lambda args: args.abort("no")))
    out = await kit.output_step("secret")
    assert (out.messages, kit.context.retry_count, out.blocked.retry) == ([], 0, False)


async def test_a_texts_only_stream_is_a_whole_answer():
    types = []

    def note(args):
        types.append(args.part["type"])
        return args.part

    out = await ProcessorKit(processor(process_output_stream=note)).stream(["a", "b"])
    assert types == ["step-start", "text-start", "text-delta", "text-delta", "text-end", "finish"]
    assert out.deltas == ["a", "b"]
    assert [c["type"] for c in out.chunks] == types[:-1]


async def test_a_stream_with_chunks_is_exactly_these():
    chunk: Any = {"type": "source", "payload": {"id": "s"}}
    out = await ProcessorKit(processor(process_output_stream=keep)).stream(["a", chunk])
    assert [c["type"] for c in out.chunks] == ["text-delta", "source"]


def test_an_answer_has_ids_a_reason_and_usage():
    chunks = answer(
        ["x"], tool_calls=[{"toolName": "t"}, {"toolName": "u", "toolCallId": "own", "args": {"a": 1}}]
    )
    calls = [chunk["payload"] for chunk in chunks if chunk["type"] == "tool-call"]
    assert calls == [
        {"toolCallId": "call-1", "toolName": "t", "args": {}}, {"toolCallId": "own", "toolName": "u", "args": {"a": 1}},
    ]  # fmt: skip
    assert chunks[-1]["payload"]["stepResult"]["reason"] == "tool-calls"
    assert answer(finish_reason="length", usage={"inputTokens": 1})[-1]["payload"]["output"] == {
        "usage": {"inputTokens": 1}
    }


async def test_hooks_after_a_stream_use_its_answer():
    kit = ProcessorKit(
        processor(
            process_output_stream=lambda args: (
                retext(args.part, "X") if args.part["type"] == "text-delta" else keep(args)
            ),
            process_output_step=lambda args: args.state.update(text=args.text),
        )
    )
    await kit.stream(["a", "b"])
    out = await kit.output_step()
    assert (kit.state["text"], out.texts) == ("XX", ["XX"])


async def test_each_outcome_tells_only_what_its_own_call_wrote():
    async def write(args):
        await args.writer.custom({"type": "data-x", "data": args.step_number})

    kit = ProcessorKit(processor(process_input_step=write))
    await kit.input_step()
    out = await kit.input_step()
    assert len(out.written) == 1
    assert len(kit.written) == 2


async def test_a_reprogrammed_context_is_what_hooks_see():
    kit = ProcessorKit(
        processor(process_input_step=lambda args: args.state.update(n=args.step_number, r=args.retry_count))
    )
    kit.context.step_number, kit.context.retry_count = 4, 2
    await kit.input_step()
    assert kit.state == {"n": 4, "r": 2}


async def test_processors_behind_get_what_the_first_one_left():
    kit = ProcessorKit(
        *on("process_output_stream", lambda _args: None)[:1],
        then=[processor("z", process_output_stream=keep)],
    )
    assert (await kit.stream(["x"])).chunks == []


async def test_the_instance_id_of_an_agent_counts():
    kit = ProcessorKit(processor(process_input=lambda args: args.abort()), id="mine")
    assert (await kit.input("x")).blocked.processor_id == "mine"
    assert list(kit.context.states) == ["mine"]


# --- what the kit refuses --------------------------------------------------------------------


async def test_a_hook_that_is_not_there_cannot_be_called():
    with pytest.raises(ValueError, match="p has no process_input"):
        await ProcessorKit(processor(process_output_step=nothing)).input("x")


async def test_a_judge_needs_an_answer():
    with pytest.raises(ValueError, match=r"there is no answer yet; .* output_step\(text=\.\.\.\)"):
        await ProcessorKit(processor(process_output_step=nothing)).output_step()


async def test_an_outcome_without_an_abort_is_not_blocked():
    out = await ProcessorKit(processor(process_input=nothing)).input("x")
    with pytest.raises(AssertionError, match="did not abort"):
        assert out.blocked.reason


def test_wrong_options_are_refused():
    with pytest.raises(InvalidOptionsError):
        ProcessorKit(processor(), {"unknown": 1})


async def test_what_a_hook_raises_comes_out_with_its_cause():
    def broken(_args):
        raise KeyError("x")

    with pytest.raises(ProcessorError) as caught:
        await ProcessorKit(processor(process_input=broken)).input("x")
    assert isinstance(caught.value.__cause__, KeyError)
    assert (await ProcessorKit(processor(process_input=broken), on_error="skip").input("x")).texts == ["x"]


@pytest.mark.parametrize(
    ("value", "where"),
    [({"a", "b"}, r"state\['x'\] is"), ({1: "a"}, r"state\['x'\] has the key 1"),
     ([float("nan")], r"state\['x'\]\[0\]"), (b"x", "bytes"), (object(), "object"), (2**70, "64 bits")],
)  # fmt: skip
async def test_state_that_cannot_travel_is_an_error(value, where):
    kit = ProcessorKit(processor(process_input=lambda args: args.state.update(x=value)))
    with pytest.raises(ProcessorError, match=where) as caught:
        await kit.input("x")
    assert (caught.value.code, caught.value.processor_id) == ("STATE_NOT_JSON", "p")


async def test_a_request_context_that_cannot_travel_is_an_error():
    kit = ProcessorKit(processor(process_input=lambda args: args.request_context.set("x", object())))
    with pytest.raises(ProcessorError, match="requestContext") as caught:
        await kit.input("x")
    assert (caught.value.code, caught.value.processor_id) == ("CONTEXT_NOT_JSON", "p")


async def test_state_arrives_as_a_copy():
    kept = []

    def keeps(args):
        args.state["x"] = (1, 2)
        kept.append(args.state)

    kit = ProcessorKit(processor(process_input=keeps))
    await kit.input("x")
    assert kit.state == {"x": [1, 2]}
    kept[0]["x"] = "changed behind the back of the run"
    assert kit.state == {"x": [1, 2]}


SURROGATE = "\ud800"
DAY = dt.date(2026, 1, 1)


@pytest.mark.parametrize(
    ("hook", "call", "value"),
    [
        ("process_llm_request", "llm_request", {"prompt": [5]}),
        ("process_llm_request", "llm_request", {"prompt": [{"role": "nobody", "content": "x"}]}),
        ("process_input_step", "input_step", {"tool_choice": "sometimes"}),
        ("process_input_step", "input_step", {"tool_choice": {"type": "tool"}}),
    ],
)
async def test_what_no_model_can_be_asked_is_an_error(hook, call, value):
    kit = ProcessorKit(processor(**{hook: lambda _: value}))
    with pytest.raises(ProcessorError) as caught:
        await getattr(kit, call)()
    assert (caught.value.code, caught.value.processor_id) == ("PROCESSOR_RETURNED_INVALID_VALUE", "p")


async def test_a_choice_of_one_tool_is_spelled_as_the_contract_does():
    kit = ProcessorKit(
        processor(process_input_step=lambda _: {"tool_choice": {"type": "tool", "tool_name": "t"}})
    )
    assert (await kit.input_step()).config.tool_choice == {"type": "tool", "toolName": "t"}


@pytest.mark.parametrize("value", [{1}, SURROGATE, 2**70, DAY], ids=["set", "surrogate", "long", "date"])
async def test_a_chunk_that_cannot_be_sent_is_an_error(value):
    kit = ProcessorKit(processor(process_output_stream=lambda args: {**args.part, "x": value}))
    with pytest.raises(ProcessorError, match=r"returned a chunk that is not JSON: chunk\['x'\] ") as caught:
        await kit.stream(["x"])
    assert (caught.value.code, caught.value.processor_id) == ("PROCESSOR_RETURNED_INVALID_VALUE", "p")


@pytest.mark.parametrize(
    ("field", "value"), [("text", {1}), ("text", SURROGATE), ("text", 5), ("textual", DAY)]
)
async def test_so_is_one_that_a_hook_has_spoiled_in_place(field, value):
    def spoils(args):
        if args.part["type"] == "text-delta":
            args.part["payload"][field] = value
        return args.part

    kit = ProcessorKit(processor(process_output_stream=spoils))
    with pytest.raises(ProcessorError, match=r"left .*text.* (is|contains) ") as caught:
        await kit.stream(["x"])
    assert (caught.value.code, caught.value.processor_id) == ("PROCESSOR_RETURNED_INVALID_VALUE", "p")


async def test_a_chunk_arrives_as_the_client_gets_it():
    def writes(args):
        return [args.part, {"type": "data-x", "data": (1, 2), "transient": True}]

    out = await ProcessorKit(processor(process_output_stream=writes)).stream(["x"])
    assert out.written[0]["data"] == [1, 2]


async def test_an_abort_and_a_violation_tell_what_travels():
    async def aborts(args):
        await args.services.violation(f"x{SURROGATE}", {"seen": {1}})
        args.abort(ValueError("why"), metadata={"words": {"x"}})

    kit = ProcessorKit(processor(process_input=aborts))
    tripwire = (await kit.input("x")).blocked
    assert (tripwire.reason, tripwire.metadata) == ("why", {"words": ["x"]})
    assert [(each.message, each.detail) for each in kit.violations] == [
        ("x?", {"seen": [1]}),
        ("why", {"words": ["x"]}),
    ]


# --- the conformance kit ---------------------------------------------------------------------


class GoodOptions(Options):
    """Options."""

    mark: str = Field(default="!", description="What is added.")


class Good(Processor[GoodOptions]):
    """Keeps every rule, with one sync and one async hook."""

    id = "good-one"

    def process_input(self, args):
        return args.messages

    async def process_output_stream(self, args):
        return args.part


async def problems(kind, *args, **how):
    with pytest.raises(ConformanceError) as caught:
        await check_processor(kind, *args, **how)
    return caught.value.problems


async def test_a_good_processor_passes():
    await check_processor(Good, {"mark": "?"}, chunk_safe=True)
    await check_processor(Good)


@pytest.mark.parametrize(
    "wrong", ["Upper", "snake_case", "two--hyphens", "-x", "x-", "9x", "", "dot.ted", "sp ace"]
)
async def test_an_id_is_lower_case_with_hyphens(wrong):
    [problem] = await problems(processor(wrong, process_input=nothing))
    assert repr(wrong) in problem


class LooseOptions(BaseModel):
    """Neither closed nor frozen."""

    model_config = {"extra": "allow"}

    secret: int = 0


async def test_options_are_closed_frozen_and_described():
    kind: Any = type("Loose", (Good,), {"options_type": classmethod(lambda cls: LooseOptions)})
    told = await problems(kind)
    assert ["unknown options" in told[0], "can be changed" in told[1], "option secret" in told[2]] == [
        True
    ] * 3


async def test_a_processor_has_hooks():
    assert "it has no hook" in (await problems(processor()))[0]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("process_inputs", "process_input"),
        ("processInput", "process_input"),
        ("process_output", "process_output_step"),
    ],
)
async def test_a_misspelt_hook_is_found(name, meant):
    kind = type("Typo", (Good,), {name: lambda _self, _args: None})
    [problem] = await problems(kind)
    assert problem.startswith(f"{name} is not a hook")
    assert meant in problem


async def test_a_hook_takes_its_arguments_as_one_object():
    kind = type("Many", (Good,), {"process_input": lambda self, messages, abort: None})
    told = await problems(kind)
    assert "process_input has the signature (self, messages, abort)" in told[0]


async def test_a_hook_does_not_yield():
    def streams(self, args):
        yield args.part

    told = await problems(type("Yields", (Good,), {"process_output_stream": streams}))
    assert "process_output_stream uses yield" in told[0]


async def test_what_a_hook_raises_or_returns_wrongly_is_told():
    def broken(_args):
        raise RuntimeError("no network")

    told = await problems(processor(process_input=broken, process_output_step=lambda _args: "text"))
    assert "process_input fails (RuntimeError): no network" in told
    assert any("process_output_step fails (ProcessorReturnError)" in problem for problem in told)


async def test_state_that_is_not_json_is_told():
    kind = processor(process_output_step=lambda args: args.state.update(seen={args.text}))
    [problem] = await problems(kind, samples=["x"])
    assert "process_output_step fails (NotJsonError): " in problem
    assert "state['seen'] is of type set" in problem


async def test_a_tripwire_is_an_answer():
    await check_processor(
        processor(process_input=lambda args: args.abort("no"), process_output_stream=nothing)
    )


async def test_state_on_the_instance_is_found():
    class Forgetful(Good):
        """Counts chunks of all runs together."""

        seen = 0

        async def process_output_stream(self, args):
            self.seen += args.part["type"] == "text-delta"
            return retext(args.part, f"{self.seen}") if args.part["type"] == "text-delta" else args.part

    assert "a second run gives '3' instead of '2'" in (await problems(Forgetful))[0]


async def test_a_text_processor_that_depends_on_the_chunks_is_found():
    def censor(args):
        if args.part["type"] == "text-delta":
            return retext(args.part, args.part["payload"]["text"].replace("world", "*****"))
        return args.part

    kind = processor(process_output_stream=censor)
    await check_processor(kind)
    [problem] = await problems(kind, chunk_safe=True)
    assert (
        problem == "'Hello, world.' becomes 'Hello, world.' when it comes one character at a time, "
        "and 'Hello, *****.' in one piece"
    )


async def test_samples_can_be_chosen():
    kind = processor(
        process_output_stream=lambda args: None if args.part == delta("x", "text-1") else args.part
    )
    await check_processor(kind, chunk_safe=True, samples=["y"])
    assert await problems(kind, chunk_safe=True, samples=["xy"])


@pytest.mark.parametrize(("reason", "told"), [("Too short.", "Too short."), ("Too short", "Too short.")])
async def test_the_feedback_of_a_rejected_answer_is_what_models_read_in_a_run(reason, told):
    class Longer(Processor[Options]):
        id = "longer"

        def process_output_step(self, args):
            args.abort(reason, retry=True)

    kit = ProcessorKit(Longer, instructions="Answer.")
    await kit.output_step("No.")
    assert kit.prompt()[1] == {
        "role": "system",
        "content": f"[Processor feedback] Your last answer was rejected: {told} "
        "Produce a new answer that takes this into account.",
    }
