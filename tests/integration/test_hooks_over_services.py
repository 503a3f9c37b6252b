"""What hooks do to a run counts wherever they run: in a stream beside the command, over a suspension, all at once."""

import asyncio
import copy
import sys
from types import SimpleNamespace
from typing import Any

import nats
import pytest

from procession import TripWire
from procession_schemas import subjects
from procession_services.output_processors.parts import PartsStore
from procession_services.processor_host import executor
from procession_services.processor_host.holders import Holders
from procession_services.runtime.store import RunStore
from tests.support.hooked import HookedTool, processor, same, tool
from tests.support.raising import panics
from tests.support.system import finished
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]
HELLO, DONE = {"chunks": ["Hel", "lo"]}, {"chunks": ["done"]}
NOTE = {"role": "user", "content": "NOTE"}


def call(*ids, name="tool", text=()):
    return {"chunks": list(text), "tool_calls": [{"id": i, "name": name, "arguments": {}} for i in ids]}


@pytest.fixture
def run(system):
    async def run(*answers, i=(), o=(), e=(), tools=(), agent=None, approve=(), **options):
        model = system.script(*answers)
        arrays = {"inputProcessors": i, "outputProcessors": o, "errorProcessors": e, "tools": tools}
        fields = {"model": model, **{name: list(array) for name, array in arrays.items()}, **(agent or {})}
        handle = await system.start(agent=fields, **options)
        chunks = []
        for call_id in approve:
            async with asyncio.timeout(20):
                chunks += [chunk async for chunk in handle]
                assert (await handle.result()).status == "suspended"
            await handle.approve(call_id)
        result, rest = await finished(handle)
        prompts = [request["messages"] for request in system.requests(model)]
        return SimpleNamespace(result=result, chunks=chunks + rest, prompts=prompts)

    return run


def data_of(chunks):
    return [chunk["data"] for chunk in chunks if chunk["type"].startswith("data-")]


def data(value):
    return {"type": "data-x", "data": value}


async def test_what_a_stream_hook_does_when_a_run_is_suspended_is_there_when_it_goes_on(run):
    """R-SS-5, R-RX-3, R-AR-7, R-WR-8, R-OS-6."""
    told: dict[str, Any] = {}

    async def stream(args):
        if args.part["type"] == "tool-call-approval":
            args.state["asked"] = True
            args.request_context.set("asked", True)
            args.message_list.add(NOTE, "input")
            await args.writer.custom(data("asked"))
        if args.part["type"] == "finish":
            told["parts"] = [part["type"] for part in args.stream_parts]
        return args.part

    def end(args):
        told["state"], told["context"] = dict(args.state), dict(args.request_context)
        told["messages"] = str(args.message_list.get.all.db())

    asking = {**tool("tool", lambda _: "ok"), "requireApproval": True}
    hooks = processor("p", process_output_stream=stream, process_output_result=end)
    await run(call("a", text=["look"]), DONE, o=[hooks], tools=[asking], approve=["a"])
    assert told["state"] == told["context"] == {"asked": True}
    assert "tool-call-approval" in told["parts"]
    assert "NOTE" in told["messages"]
    assert "'data-x'" in told["messages"]


@pytest.mark.parametrize("text", ["look", "look " * 10_000], ids=["short", "long"])
async def test_another_replica_knows_what_stream_hooks_have_received(run, monkeypatch, text):
    """R-OS-6, whoever has logged it: the sender of the stream with the run's context, or who had the stream."""
    seen, logged = list[list[str]](), list[str]()

    def stream(args):
        seen.append([part["type"] for part in args.stream_parts])
        return args.part

    async def appended(self, tenant, run, entry):
        logged.append(run)
        await append(self, tenant, run, entry)

    append = RunStore.append_parts
    monkeypatch.setattr(RunStore, "append_parts", appended)
    monkeypatch.setattr(PartsStore, "keep", lambda *_: None)  # as if each stream had a replica of its own
    told = await run(
        call("a", text=[text]),
        call("b", text=["again"]),
        DONE,
        o=[processor("p", process_output_stream=stream)],
        tools=[tool("tool", lambda _: "ok")],
    )
    assert told.result.status == "finished"
    kinds = seen[-1]
    assert seen == [kinds[: n + 1] for n in range(len(kinds))]
    assert (kinds.count("tool-result"), kinds.count("text-delta")) == (2, 3)
    assert logged == [told.result.run_id] * (2 if len(text) > 1000 else 0)


async def test_a_stream_hook_has_got_an_answer_that_was_not_the_object_which_the_run_is_about(run):
    """R-OS-6: it spans the attempts of a step, whatever was wrong with the one before."""
    seen = list[list[str]]()

    def stream(args):
        seen.append([part["type"] for part in args.stream_parts])
        return args.part

    wanted = {"schema": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}}
    told = await run(
        HELLO,
        {"chunks": ['{"a": "b"}']},
        o=[processor("p", process_output_stream=stream)],
        e=[processor("e", process_api_error=lambda _: {"retry": True})],
        structuredOutput=wanted,
    )
    assert told.result.object == {"a": "b"}
    kinds = seen[-1]
    assert seen == [kinds[: n + 1] for n in range(len(kinds))]
    assert (kinds.count("step-finish"), kinds.count("text-delta")) == (2, 3)


async def written(system, write, stream, seen):
    """The chunks of a run whose input step writes what a stream hook writes about; `seen`: that has come."""
    arrays = {
        "inputProcessors": [processor("w", process_input_step=write)],
        "outputProcessors": [processor("p", process_output_stream=stream, data=True)],
    }
    handle = await system.start(agent={"model": system.script(HELLO), **arrays})
    chunks = []
    async with asyncio.timeout(20):
        async for chunk in handle:
            chunks.append(chunk)
            if chunk.get("data") == "of the stream":
                seen.set()
    return chunks


async def test_what_is_written_is_not_lost_behind_a_write_that_was_given_up(system):
    """R-WR-1: its stream may have sent chunks, whose numbers are not free any more."""
    seen = asyncio.Event()

    async def stream(args):
        if args.part.get("data") == "slow":
            await args.writer.custom(data("of the stream"))
            await asyncio.Event().wait()
        return args.part

    async def write(args):
        slow = asyncio.ensure_future(args.writer.custom(data("slow")))
        await seen.wait()
        slow.cancel()
        await asyncio.wait([slow])
        await args.writer.custom(data("next"))

    chunks = await written(system, write, stream, seen)
    assert data_of(chunks) == ["of the stream", "next"]
    assert [chunk["type"] for chunk in chunks[:4]] == ["start", "data-x", "data-x", "step-start"]


async def test_what_a_hook_writes_beside_itself_comes_before_its_objection(system):
    """R-WR-1, R-AB-10: as before all that follows a hook that objects to nothing."""
    seen, go_on = asyncio.Event(), asyncio.Event()
    beside = []

    async def stream(args):
        if args.part.get("data") == "slow":
            await args.writer.custom(data("of the stream"))
            await go_on.wait()
        return args.part

    async def write(args):
        beside.append(asyncio.ensure_future(args.writer.custom(data("slow"))))
        await seen.wait()
        asyncio.get_running_loop().call_soon(go_on.set)
        args.abort("no")

    chunks = await written(system, write, stream, seen)
    assert [chunk["type"] for chunk in chunks] == ["start", "data-x", "data-x", "tripwire"]
    assert data_of(chunks) == ["of the stream", "slow"]


async def test_nobody_begins_what_somebody_is_at_that_needs_no_other_service(system):
    """The end of a step that was judged; a cancellation that comes too late for it is a reason to look at the run."""
    begun, asked, go_on = list[str](), asyncio.Event(), asyncio.Event()

    async def stream(args):
        if args.part["type"] == "step-finish":
            begun.append(args.run_id)
            await go_on.wait()
        return args.part

    async def owner_of(self, command):
        told = await owner(self, command)
        asked.set()
        return told

    owner = Holders.owner_of
    chain = [processor("p", process_output_stream=stream), processor("q", process_output_step=lambda _: None)]
    handle = await system.start(agent={"model": system.script(HELLO), "outputProcessors": chain})
    async with asyncio.timeout(20):
        await until(lambda: begun)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Holders, "owner_of", owner_of)
            await handle.cancel()
            await asked.wait()
        go_on.set()
        result, chunks = await finished(handle)
    assert (result.status, begun) == ("finished", [handle.run_id])
    assert [chunk["type"] for chunk in chunks][-2:] == ["step-finish", "finish"]


@pytest.mark.parametrize("hook", ["process_input_step", "process_llm_request", "process_llm_response"])
async def test_a_hook_that_writes_keeps_its_state(run, hook):
    """R-SS-3: what it notes after the chunk has been through the chain is in the same state."""
    told = {}

    async def write(args):
        args.state["before"] = 1
        await args.writer.custom(data(1))
        args.state["after"] = 1

    hybrid = processor(
        "p",
        data=True,
        **{hook: write},
        process_output_stream=same,
        process_output_result=lambda a: told.update(a.state),
    )
    await run(HELLO, i=[hybrid], o=[hybrid])
    assert told == {"before": 1, "after": 1}


async def test_an_error_processor_that_writes_keeps_count(run):
    async def error(args):
        await args.writer.custom(data("again"))
        args.state["tries"] = args.state.get("tries", 0) + 1
        return {"retry": args.state["tries"] < 3}

    hybrid = processor("p", data=True, process_api_error=error, process_output_stream=same)
    failing = {"error": {"status": 400, "message": "no"}}
    told = await run(*[failing] * 5, e=[hybrid], o=[hybrid], agent={"maxProcessorRetries": 9})
    assert len(told.prompts) == 3


async def test_every_hook_finds_its_processor_at_its_place_among_all_of_its_array(run):
    """`processorIndex`: others without the hook, or of another service, count as well."""
    seen: dict[str, set[int]] = {}

    def looks(*hooks):
        def look(hook):
            def looked(args, processor):
                seen.setdefault(f"{processor.options.key}.{hook}", set()).add(processor.processor_index)
                return args.part if hook == "process_output_stream" else None

            return looked

        return processor("p", **{hook: look(hook) for hook in hooks})

    ends = ("process_output_stream", "process_tool_result", "process_output_step", "process_output_result")
    inputs = [
        looks("process_input_step"),
        looks("process_input"),
        looks("process_input", "process_input_step"),
    ]
    outputs = [looks("process_output_result"), looks("process_output_stream"), looks(*ends)]
    failing = {"error": {"status": 400, "message": "no"}}
    errors = [looks(), looks("process_api_error")]
    tools = [tool("tool", lambda _: "ok")]
    await run(call("a", text=["look"]), DONE, i=inputs, o=outputs, tools=tools)
    await run(failing, e=errors)
    for array in (inputs, outputs, errors):
        for place, ref in enumerate(array):
            key = ref["options"]["key"]
            assert {at for name, found in seen.items() if name.startswith(f"{key}.") for at in found} <= {
                place
            }
    assert len(seen) == 4 + len(ends) + 2 + 1


def fails(_):
    raise ValueError("out of order")


def says(told, name="echo"):
    """An answer of a model that begins to number its calls anew each time."""
    return {"tool_calls": [{"id": "a", "name": name, "arguments": told}]}


async def test_a_model_reads_what_became_of_its_last_call_with_an_id(run):
    """R-TX-3, R-TX-4, D-38: who has corrected its arguments must not read again that they were wrong."""
    answers = [says('{"text": '), says({"text": "it"}), says({"text": "that"}), says({}, "tool"), DONE]
    told = await run(*answers, tools=["echo", tool("tool", fails)])
    asked = [prompt[-2]["tool_calls"][0]["function"] for prompt in told.prompts[1:]]
    assert [(each["name"], each["arguments"]) for each in asked] == [
        ("echo", "{}"), ("echo", '{"text":"it"}'), ("echo", '{"text":"that"}'), ("tool", "{}"),
    ]  # fmt: skip
    read = [prompt[-1]["content"] for prompt in told.prompts[1:]]
    assert "not valid JSON" in read[0]
    assert read[1:] == ["echo it", "echo that", "out of order"]


async def test_what_is_made_of_a_result_counts_where_an_earlier_call_with_its_id_has_failed(run):
    """R-TR-2."""

    def hide(args):
        made = {"state": "result", "toolCallId": args.tool_call_id, "result": "hidden"}
        args.message_list.update_tool_invocation({"type": "tool-invocation", "toolInvocation": made})

    hides = processor("p", process_tool_result=hide)
    answers = [says({}, "tool"), says({"text": "secret"}), DONE]
    told = await run(*answers, o=[hides], tools=["echo", tool("tool", fails)])
    assert told.prompts[2][-1]["content"] == "hidden"
    (shown,) = [chunk["payload"]["result"] for chunk in told.chunks if chunk["type"] == "tool-result"]
    assert shown == "hidden"


async def test_a_rejected_call_leaves_the_accepted_one_that_has_its_id(run):
    """R-AB-28: earlier accepted steps stay."""

    def look(args):
        if args.result == "echo that":
            args.abort("not that", retry=True)

    answers = [says({"text": "it"}), says({"text": "that"}), DONE]
    looks = processor("p", process_tool_result=look)
    told = await run(*answers, o=[looks], tools=["echo"], agent={"maxProcessorRetries": 1})
    assert told.prompts[2][-1]["content"] == "echo it"
    assert told.result.messages[-1]["content"]["parts"][0]["toolInvocation"]["args"] == {"text": "it"}


@pytest.mark.parametrize("moved", [False, True], ids=["in its place", "moved"])
@pytest.mark.parametrize("schema", [None, {"type": "object"}], ids=["text", "object"])
async def test_an_answer_is_not_told_that_a_judge_could_not_judge(run, schema, moved):
    """D-1, R-ER-4: what was accepted before is."""

    def move(args):
        said = {"role": "assistant", "content": args.text}
        return [*args.messages[:-1], said] if moved and "SECRET" in args.text else None

    def judge(args):
        if "SECRET" in args.text:
            raise ValueError("out of order")

    chain = [processor("m", process_output_step=move), processor("p", process_output_step=judge)]
    answers = [call("a", text=["look"]), {"chunks": ['{"a": "SECRET"}']}]
    wanted = {"structuredOutput": {"schema": schema}} if schema else {}
    told = await run(*answers, o=chain, tools=[tool("tool", lambda _: "ok")], stream=False, **wanted)
    result = told.result
    assert (result.status, result.text, result.error.hook) == ("failed", "look", "processOutputStep")
    assert "SECRET" not in result.model_dump_json()
    assert [part["type"] for part in result.messages[-1]["content"]["parts"]] == ["text", "tool-invocation"]


@pytest.mark.parametrize("before", [[], [call("a", text=["look"])]], ids=["first step", "second step"])
async def test_what_is_written_at_the_end_of_a_cancelled_run_hides_nothing_of_its_answer(system, before):
    """R-CX-3, R-CX-4, D-35."""

    async def end(args):
        await args.writer.custom(data("end"))

    slow = {"chunks": ["word "] * 500, "chunk_delay_ms": 20}
    agent = {
        "model": system.script(*before, slow),
        "outputProcessors": [processor("p", process_output_result=end)],
        "tools": [tool("tool", lambda _: "ok")],
        "memory": {},
    }
    thread = f"cancelled-{len(before)}"
    handle = await system.start(agent=agent, memory={"thread": thread, "resource": "r"})
    said = ""
    async with asyncio.timeout(20):
        async for chunk in handle:
            if chunk["type"] == "text-delta":
                said += chunk["payload"]["text"]
                if said.count("word") == 1:
                    await handle.cancel()
        result = await handle.result()
    await handle.close()
    assert (result.status, result.text) == ("cancelled", said)
    messages = (await system.client.memory.messages(thread, "r"))["messages"]
    parts = [[part["type"] for part in message["content"]["parts"]] for message in messages[1:]]
    assert parts == ([["text", "tool-invocation", "data-x"], ["text"]] if before else [["text", "data-x"]])


@pytest.mark.parametrize("rejected", [False, True])
async def test_what_is_written_for_a_model_that_fails_is_of_the_attempt_in_which_the_next_one_answers(
    run, system, rejected
):
    """R-DM-2, R-OR-5, R-FB-2; with a rejected attempt it goes (R-AB-28, R-AB-35)."""

    async def write(args):
        await args.writer.custom(data(args.retry_count))

    def judge(args):
        if rejected and args.retry_count == 0:
            args.abort("again", retry=True)

    def edit(args):
        parts = args.messages[0]["content"]["parts"]
        told = [{**part, "text": part["text"].upper()} if part["type"] == "text" else part for part in parts]
        return [{**args.messages[0], "content": {"format": 2, "parts": told}}]

    failing = {"error": {"status": 400}}
    good = system.script(*[HELLO] * rejected, call("a", text=["look"]), DONE)
    agent = {"model": [{"model": system.script(failing)}, {"model": good}], "maxProcessorRetries": 1}
    hooks = processor("p", process_input_step=write, process_output_step=judge, process_output_result=edit)
    told = await run(HELLO, i=[hooks], o=[hooks], agent=agent, tools=[tool("tool", lambda _: "ok")])
    parts = told.result.messages[-1]["content"]["parts"]
    written = [part["data"] for part in parts if part["type"] == "data-x"]
    # The attempt after a rejection begins with the model that answered (R-AE-15); each step with the first one.
    assert written == ([1] * 3 if rejected else [0] * 4)
    assert [part["type"] for part in parts].count("step-start") == 1
    texts = [step["text"] for step in told.result.steps if step["finishReason"] != "retry"]
    assert (texts, told.result.text) == (["LOOK", "DONE"], "LOOKDONE")


async def test_what_a_tool_sets_after_it_wrote_counts(run):
    """R-RX-1, R-RX-3: beside what the output chain sets and removes meanwhile."""
    seen = {}

    async def execute(context):
        context.request_context.set("a", 1)
        await context.writer.custom(data(1))
        context.request_context.set("b", 2)
        return "ok"

    def stream(args):
        if args.part["type"] == "data-x":
            args.request_context.set("c", 3)
            args.request_context.pop("old")
        return args.part

    def step(args):
        seen[args.step_number] = dict(args.request_context)

    await run(
        call("1"),
        DONE,
        i=[processor("i", process_input_step=step)],
        o=[processor("o", data=True, process_output_stream=stream)],
        tools=[tool("tool", execute)],
        request_context={"old": 0},
    )
    assert seen[1] == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize("hook", ["process_input_step", "process_llm_response", "process_output_step"])
async def test_chunks_that_are_written_at_once_go_one_by_one(run, hook):
    """R-WR-1."""

    async def write(args):
        await asyncio.gather(*(args.writer.custom(data(n)) for n in range(5)))

    hooks: dict[str, Any] = {hook: write}
    hybrid = processor("p", data=True, process_output_stream=same, **hooks)
    told = await run(HELLO, i=[] if hook == "process_output_step" else [hybrid], o=[hybrid])
    assert data_of(told.chunks) == [0, 1, 2, 3, 4]


async def test_chunks_that_a_stream_hook_writes_at_once_reach_those_behind_it(run):
    seen = []

    async def write(args):
        if args.part["type"] == "text-delta":
            await asyncio.gather(*(args.writer.custom(data(n)) for n in range(3)))
        return args.part

    async def see(args):
        await asyncio.sleep(0)
        if args.part["type"] == "data-x":
            seen.append(args.part["data"])
        return args.part

    chain = [
        processor("w", process_output_stream=write),
        processor("s", data=True, process_output_stream=see),
    ]
    told = await run(DONE, o=chain)
    assert seen == data_of(told.chunks) == [0, 1, 2]


async def test_what_a_tool_result_hook_writes_goes_through_the_chain(run):
    """R-WR-7, D-19."""

    async def write(args):
        await args.writer.custom(data("secret"))

    def drop(args):
        return None if args.part["type"] == "data-x" else args.part

    chain = [
        processor("w", process_tool_result=write),
        processor("d", data=True, process_output_stream=drop),
    ]
    told = await run(call("1"), DONE, o=chain, tools=[tool("tool", lambda _: "ok")])
    assert data_of(told.chunks) == []
    assert told.result.text == "done"


@pytest.mark.parametrize("kind", ["data-x", "tool-result", "tool-call", "step-finish", "finish"])
async def test_what_a_stream_hook_adds_to_the_conversation_is_there(run, kind):
    """R-AR-7, whoever's chunk it has in hand."""
    seen = []

    async def execute(context):
        await context.writer.custom(data(1))
        return "ok"

    def stream(args):
        if args.part["type"] == kind and not args.state.get("added"):
            args.state["added"] = True
            args.message_list.add(NOTE, "input")
        return args.part

    def end(args):
        seen.append(str(args.message_list.get.all.db()))

    hooks = processor("o", data=True, process_output_stream=stream, process_output_result=end)
    told = await run(call("1"), DONE, o=[hooks], tools=[tool("tool", execute)])
    assert "NOTE" in seen[0]
    assert told.result.tool_results[0]["output"] == "ok"


@pytest.mark.parametrize("hook", ["process_input_step", "process_output_step"])
async def test_what_a_stream_hook_adds_while_another_hook_writes_is_beside_what_that_adds(run, hook):
    seen = []

    async def write(args):
        args.message_list.add({"role": "user", "content": "BEFORE"}, "input")
        await args.writer.custom(data(1))
        args.message_list.add({"role": "user", "content": "AFTER"}, "input")

    def stream(args):
        if args.part["type"] == "data-x":
            args.message_list.add(NOTE, "input")
        return args.part

    def end(args):
        seen.append(str(args.message_list.get.all.db()))

    listening = processor("o", data=True, process_output_stream=stream, process_output_result=end)
    hooks: dict[str, Any] = {hook: write}
    writing = processor("w", **hooks)
    told = await run(HELLO, i=[writing] if hook != "process_output_step" else [], o=[listening, writing])
    assert told.result.error is None
    assert all(text in seen[0] for text in ("BEFORE", "NOTE", "AFTER"))


async def test_what_a_stream_hook_adds_at_the_end_of_a_rejected_attempt_is_there(run):
    def stream(args):
        if args.part["type"] == "step-finish":
            args.message_list.add(NOTE, "input")
        return args.part

    def step(args):
        if args.retry_count == 0:
            args.abort("again", retry=True)

    hooks = processor("o", process_output_stream=stream, process_output_step=step)
    told = await run(HELLO, DONE, o=[hooks], agent={"maxProcessorRetries": 1})
    assert "NOTE" in str(told.prompts[1])


async def test_a_tripwire_of_ones_own_making_is_a_violation(run):
    """R-AB-5, R-VI-2."""
    violations: list[Any] = []

    def step(_):
        raise TripWire("no", processor_id="mine")

    told = await run(HELLO, i=[processor("mine", process_input_step=step, on_violation=violations.append)])
    assert (told.result.status, len(violations)) == ("blocked", 1)
    assert [report.aborts for report in told.result.processors] == [1]


async def test_a_call_under_a_used_id_is_guarded_like_any_other(run):
    """D-20, R-OS-8: what the chain drops does not run, although no second `tool-call` is told (R-CH-6)."""
    ran, offered = [], []

    def stream(args):
        if args.part["type"] != "tool-call":
            return args.part
        name = args.part["payload"]["toolName"]
        offered.append(name)
        return None if name == "danger" else args.part

    def execute(context):
        ran.append(context.tool_name)
        return "ok"

    tools = [tool(name, execute) for name in ("tool", "danger")]
    guard = processor("o", process_output_stream=stream)
    told = await run(call("c"), call("c"), call("c", name="danger"), DONE, o=[guard], tools=tools)
    assert offered == ["tool", "tool", "danger"]
    assert ran == ["tool", "tool"]
    assert sum(chunk["type"] == "tool-call" for chunk in told.chunks) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_nothing_of_an_answer_that_is_blocked_at_the_end_is_told(run, stream):
    """A-13."""
    secret = {"chunks": ["the ", "SECRET"], "reasoning": ["think SECRET"]}
    guard = processor("o", process_output_result=lambda args: args.abort("leak"))
    told = await run(secret, o=[guard], stream=stream)
    assert told.result.status == "blocked"
    assert "SECRET" not in told.result.model_dump_json()


async def test_the_text_is_what_the_assistant_said(run):
    """R-FR-2: whatever hooks add behind it."""

    def step(args):
        return [*args.messages, {"role": "user", "content": "Please cite."}]

    hooks = processor("o", process_output_step=step)
    assert (await run(HELLO, o=[hooks])).result.text == "Hello"


@pytest.mark.parametrize("kind", ["text-end", "reasoning-end"])
async def test_a_block_whose_end_is_dropped_keeps_its_place(run, kind):
    """R-OS-4."""
    told = await run(
        {**call("1", text=["look"]), "reasoning": ["think"]},
        DONE,
        o=[processor("o", process_output_stream=lambda a: None if a.part["type"] == kind else a.part)],
        tools=[tool("tool", lambda _: "ok")],
    )
    parts = [part["type"] for part in told.result.messages[-1]["content"]["parts"]]
    assert parts.index("reasoning") < parts.index("text") < parts.index("tool-invocation")


async def test_data_of_a_step_that_was_cancelled_is_stored(run, system):
    """R-WR-8."""
    handles: list[Any] = []

    async def step(args):
        await args.writer.custom(data(1))
        await handles[0].cancel()
        await until(lambda: args.abort_signal.aborted)

    model = system.script(HELLO)
    agent = {"model": model, "inputProcessors": [processor("i", process_input_step=step)], "memory": {}}
    handles.append(await system.start(agent=agent, memory={"thread": "t", "resource": "r"}))
    result, chunks = await finished(handles[0])
    assert (result.status, data_of(chunks)) == ("cancelled", [1])
    stored = (await system.client.memory.messages("t", "r"))["messages"]
    assert "data-x" in str(stored)


async def test_the_usage_of_a_run_has_every_field(run):
    """R-US-1, R-US-4."""
    usage = {
        "inputTokens": 1,
        "outputTokens": 2,
        "totalTokens": 3,
        "reasoningTokens": 4,
        "cachedInputTokens": 5,
        "cacheCreationInputTokens": 6,
    }
    end = {"type": "finish", "payload": {"stepResult": {"reason": "stop"}, "output": {"usage": usage}}}
    cached = processor("i", process_llm_request=lambda _: {"response": {"chunks": [end]}})
    assert (await run(HELLO, i=[cached])).result.usage == usage


async def test_every_violation_is_stored(run, system):
    """D-17: also those of several streams of one command."""
    told: list[Any] = []

    async def write(args):
        for n in range(3):
            await args.writer.custom(data(n))

    async def stream(args):
        if args.part["type"] == "data-x":
            await args.services.violation(f"warn {args.part['data']}")
        return args.part

    hooks = processor("every", data=True, process_output_stream=stream, on_violation=told.append)
    await run(HELLO, i=[processor("i", process_input_step=write)], o=[hooks])
    assert len(told) == 3
    connection = await nats.connect(system.servers.nats_url)
    subject = subjects.violation(system.client.tenant, "every")
    stored = await connection.jetstream().stream_info("VIOLATIONS", subjects_filter=subject)
    await connection.close()
    assert stored.state.subjects == {subject: 3}


async def test_no_key_goes_where_a_request_says(run, monkeypatch):
    """An agent that comes with a request may have its calls sent anywhere; the operator's key stays here."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-operator")
    heads = []

    async def serve(reader, writer):
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 400 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        told = await run(HELLO, agent={"apiBase": base, "model": "openai/x"})
        refused = await run(HELLO, agent={"apiBase": base, "model": "bedrock/x"})
    assert (told.result.status, len(heads)) == ("failed", 1)
    assert "sk-of-the-operator" not in heads[0]
    assert refused.result.error.code == "UNSUPPORTED"
    assert "PROCESSION_API_BASES" in refused.result.error.message


async def test_a_run_ends_however_long_the_reason_is(run):
    """The end and the violation say what fits into a message of the broker."""
    violations: list[Any] = []
    guard = processor(
        "i",
        process_input=lambda args: args.abort("no", metadata={"x": "x" * 9_000_000}),
        on_violation=violations.append,
    )
    told = await run(HELLO, i=[guard], stream=False)
    assert (told.result.status, told.result.tripwire.metadata) == ("blocked", {"shortened": True})
    assert (told.result.tripwire.reason, len(violations)) == ("no", 1)


@pytest.mark.parametrize("hook", ["process_input", "process_output_stream", "process_output_result"])
async def test_a_hook_that_never_ends_is_left_when_its_run_has_ended(run, monkeypatch, hook):
    """Else it kept its place in the service for ever."""
    monkeypatch.setattr(executor, "LEAVE_SECONDS", 0.1)
    left = asyncio.Event()

    async def hang(_):
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    hooks: dict[str, Any] = {hook: hang}
    hanging = processor("p", **hooks)
    on_input = hook == "process_input"
    told = await run(HELLO, i=[hanging] if on_input else [], o=[] if on_input else [hanging], timeout=3)
    assert told.result.error.code == "DEADLINE_EXCEEDED"
    async with asyncio.timeout(30):
        await left.wait()


@pytest.mark.parametrize("hook", ["process_output_stream", "process_output_result"])
async def test_a_run_is_cancelled_whose_hook_never_ends(system, monkeypatch, hook):
    """R-CX-3: one `abort`, then `finish`, for whoever listens and whoever comes late; the hook is not called again."""
    monkeypatch.setattr(executor, "LEAVE_SECONDS", 0.1)
    hangs, calls = asyncio.Event(), []

    async def hang(args):
        if hook == "process_output_result" or args.part["type"] == "text-end":
            calls.append(hook)
            hangs.set()
            await asyncio.Event().wait()
        return args.part

    hooks: dict[str, Any] = {hook: hang}
    agent = {"model": system.script(HELLO), "outputProcessors": [processor("p", **hooks)]}
    handle = await system.start(agent=agent, timeout=60)
    async with asyncio.timeout(20):
        await hangs.wait()
        beside = await system.client.attach(handle.run_id)
        await handle.cancel()
    result, chunks = await finished(handle)
    types = [chunk["type"] for chunk in chunks]
    assert (result.status, result.finish_reason, types[-2:]) == ("cancelled", "aborted", ["abort", "finish"])
    assert types.count("abort") == 1
    assert "text-delta" in types
    assert len(calls) == 1
    assert (await finished(beside))[1] == chunks
    assert (await finished(await system.client.attach(handle.run_id)))[1] == chunks
    if hook == "process_output_result":
        assert (result.text, result.error.hook) == ("", "processOutputResult")  # which nobody has judged


@pytest.mark.parametrize(
    "hook", ["process_input_step", "process_llm_response", "process_output_step", "process_output_result"]
)
async def test_what_a_hook_writes_behind_its_end_is_refused(run, hook):
    """It had the number of a chunk of somebody else's, or none."""
    begun: list[asyncio.Task[None]] = []
    free = asyncio.Event()

    async def write(writer):
        await writer.custom(data("in time"))
        await free.wait()
        await writer.custom(data("late"))

    async def later(args):
        begun.append(asyncio.create_task(write(args.writer)))
        await asyncio.sleep(0)

    hooks: dict[str, Any] = {hook: later}
    on_input = hook in ("process_input_step", "process_llm_response")
    writing = processor("p", **hooks)
    told = await run(HELLO, i=[writing] if on_input else [], o=[] if on_input else [writing])
    free.set()
    with pytest.raises(ValueError, match="its writer is closed"):
        await begun[0]
    assert told.result.status == "finished"
    assert data_of(told.chunks) == ["in time"]


@pytest.mark.parametrize("hook", ["process_input", "process_output_stream", "process_output_result"])
@pytest.mark.parametrize("how", ["exits", "is cancelled by somebody else", "panics"])
async def test_what_a_hook_raises_is_its_own_failure(run, hook, how):
    async def fail(_):
        if how == "exits":
            sys.exit(3)
        if how == "panics":
            panics()
        other = asyncio.get_running_loop().create_future()
        other.cancel()
        await other

    hooks: dict[str, Any] = {hook: fail}
    failing = {**processor("p", **hooks), "onError": "fail"}
    on_input = hook == "process_input"
    told = await run(HELLO, i=[failing] if on_input else [], o=[] if on_input else [failing])
    assert (told.result.status, told.result.error.processor_id) == ("failed", "p")
    names = {"exits": "SystemExit", "panics": "PanicException"}
    assert told.result.error.name == names.get(how, "CancelledError")


def rewritten(**call):
    def hook(args):
        invocation = {"toolCallId": args.tool_call_id, **call}
        args.message_list.update_tool_invocation({"type": "tool-invocation", "toolInvocation": invocation})

    return processor("p", process_tool_result=hook)


@pytest.mark.parametrize(
    ("made", "kind", "read"),
    [
        ({"state": "result", "result": "masked"}, "tool-result", "masked"),
        ({"state": "output-error", "errorText": "broken"}, "tool-error", "broken"),
        (
            {"state": "output-denied", "approval": {"approved": False, "reason": "no"}},
            "tool-output-denied",
            "no",
        ),
    ],
)
async def test_nobody_gets_the_result_that_a_hook_has_replaced(run, monkeypatch, made, kind, read):
    """R-TR-2: neither client nor result nor model, though the tool has a model output of its own."""
    monkeypatch.setattr(HookedTool, "model_output", lambda _self, result: f"for the model: {result}")
    told = await run(call("a"), DONE, o=[rewritten(**made)], tools=[tool("tool", lambda _: "secret")])
    assert told.prompts[1][-1] == {"role": "tool", "tool_call_id": "a", "content": read}
    [outcome] = [
        chunk["type"]
        for chunk in told.chunks
        if chunk["type"].startswith(("tool-result", "tool-error", "tool-output"))
    ]
    assert outcome == kind
    assert "secret" not in str((told.chunks, told.result, told.prompts))


async def test_a_result_that_a_hook_only_looks_at_is_shown_to_the_model_as_its_tool_does(run, monkeypatch):
    monkeypatch.setattr(HookedTool, "model_output", lambda _self, result: f"for the model: {result}")
    told = await run(
        call("a"), DONE, o=[rewritten(state="result", result="R")], tools=[tool("tool", lambda _: "R")]
    )
    assert told.prompts[1][-1]["content"] == "for the model: R"


@pytest.mark.parametrize(
    ("said", "status", "asked"), [(None, "finished", 2), (0, "failed", 1), (2, "finished", 2)]
)
async def test_a_step_hook_says_how_often_a_call_of_its_step_is_tried_again(run, said, status, asked):
    """R-MS-3, R-IS-5: what it leaves out is as the agent has it."""
    settings = {"temperature": 1, **({} if said is None else {"maxRetries": said})}
    busy = {"error": {"status": 503, "retryable": True, "headers": {"retry-after": "0"}}}
    told = await run(
        busy,
        HELLO,
        i=[processor("p", process_input_step=lambda _: {"model_settings": settings})],
        agent={"maxRetries": 0 if said else 1},
    )
    assert (told.result.status, len(told.prompts)) == (status, asked)


@pytest.mark.parametrize(
    "hook", ["process_input", "process_input_step", "process_output_step", "process_output_result"]
)
async def test_a_message_that_nobody_can_read_is_told_at_once_and_not_saved(run, hook):
    """R-AR-6: each service that reads it would fail five times, and each later run on the thread."""

    def spoil(args):
        args.messages[-1]["content"] = "a text"

    hooks: dict[str, Any] = {hook: spoil}
    on_input = hook in ("process_input", "process_input_step")
    thread = {"memory": {"thread": f"spoilt-{hook}", "resource": "r"}}
    agent = {"memory": {"lastMessages": 5}}
    spoiling = [processor("p", **hooks)]
    told = await run(
        HELLO, i=spoiling if on_input else [], o=[] if on_input else spoiling, agent=agent, **thread
    )
    error = told.result.error
    assert (told.result.status, error.code, error.processor_id) == ("failed", "INVALID_MESSAGE_CONTENT", "p")
    assert [chunk["type"] for chunk in told.chunks][-1] == "error"
    assert len(told.prompts) == (0 if on_input else 1)
    again = await run(HELLO, agent=agent, **thread)
    assert [message["content"] for message in again.prompts[0]] == ["Hello"]


async def test_a_thread_goes_on_behind_a_call_of_a_tool_without_a_name(run):
    """Models make such calls; nobody could read the thread any more, nor take copies of its messages."""
    thread = {"memory": {"thread": "nameless", "resource": "r"}, "agent": {"memory": {"lastMessages": 9}}}
    copies = processor("p", process_output_result=lambda args: copy.deepcopy(args.messages))
    told = await run(call("a", name=""), DONE, o=[copies], tools=[tool("tool", lambda _: "ok")], **thread)
    assert [chunk["type"] for chunk in told.chunks].count("tool-error") == 1
    again = await run(HELLO, **thread)
    assert (told.result.status, again.result.status) == ("finished", "finished")
    assert [message["role"] for message in again.prompts[0]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


@pytest.mark.parametrize(
    ("named", "code"),
    [({"id": "no-such-tool"}, "UNKNOWN_COMPONENT"), ({"id": "hooked-tool"}, "INVALID_OPTIONS")],
)
async def test_who_names_a_tool_that_there_is_not_is_told(run, named, code):
    """D-30."""
    naming = [processor("other"), processor("p", process_input_step=lambda _: {"tools": {"t": named}})]
    told = await run(HELLO, i=naming)
    error = told.result.error
    assert (told.result.status, error.code) == ("failed", code)
    assert (error.processor_id, error.hook) == ("p", "processInputStep")
    (tally,) = [each for each in told.result.processors if each.processor == "p"]
    assert tally.errors == 1


async def test_a_step_hook_sees_what_the_tools_are_that_the_one_before_has_named(run):
    """R-IS-4."""
    seen = list[Any]()
    naming = processor("a", process_input_step=lambda _: {"tools": {"t": {"id": "calculator"}}})
    looking = processor("b", process_input_step=lambda args: seen.append(args.tools["t"]))
    await run(HELLO, i=[naming, looking])
    assert seen[0]["description"]
    assert seen[0]["parameters"]["properties"]
