"""What hooks and tools hand over that is no JSON or no text, or longer than a message, has one end, at once."""

import asyncio
import datetime as dt
from types import SimpleNamespace
from typing import Any

import pytest

from procession_services.processor_host import streams
from procession_services.processor_host.leases import lease_of
from procession_services.runs import phases
from tests.support.hooked import processor, same, tool
from tests.support.system import finished

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]
SAID, DONE = {"chunks": ["SEC", "RET"]}, {"chunks": ["done"]}
CALL = {"tool_calls": [{"id": "c", "name": "t", "arguments": {}}]}
REFUSED = {"error": {"status": 400, "message": "no"}}
SURROGATE = "\ud800"
ARRAYS = {
    "process_input": "i", "process_input_step": "i", "process_llm_request": "i", "process_llm_response": "i",
    "process_output_step": "o", "process_tool_result": "o", "process_output_result": "o", "process_api_error": "e",
}  # fmt: skip
ANSWERS = {"process_api_error": (REFUSED, DONE), "process_tool_result": (CALL, DONE)}


class MuteError(Exception):
    """As of a library whose texts are broken."""

    def __str__(self):
        raise RuntimeError("no text")


def raising(error):
    def hook(_args):
        raise error

    return hook


@pytest.fixture
def run(system):
    """Runs to the end."""

    async def run(*answers, i=(), o=(), e=(), tools=(), agent=None, **options):
        arrays = {"inputProcessors": i, "outputProcessors": o, "errorProcessors": e, "tools": tools}
        fields: dict[str, Any] = {name: list(array) for name, array in arrays.items()}
        handle = await system.start(
            agent={"model": system.script(*answers), **fields, **(agent or {})}, **options
        )
        result, chunks = await finished(handle)
        return SimpleNamespace(result=result, chunks=chunks)

    return run


async def with_hook(run, hook, function, **options):
    """A run whose processor `p` has that hook; gives it, and how often the hook was called."""
    calls = []

    def counted(args):
        calls.append(1)
        return function(args)

    hooks: dict[str, Any] = {hook: counted}
    tools = [tool("t", lambda _: "ok")] if hook == "process_tool_result" else ()
    answers = ANSWERS.get(hook, (SAID, DONE))
    told = await run(*answers, tools=tools, **{ARRAYS[hook]: [processor("p", **hooks)]}, **options)
    return told.result, len(calls)


def withheld(result):
    return "SECRET" not in result.model_dump_json() and not result.response["messages"]


@pytest.mark.parametrize("hook", ARRAYS)
@pytest.mark.parametrize("value", [{1}, float("nan")], ids=["set", "nan"])
async def test_a_state_that_is_no_json_is_told_at_once_and_by_name(run, hook, value):
    result, calls = await with_hook(run, hook, lambda args: args.state.update(x=value))
    assert (result.status, result.error.code, result.error.processor_id) == ("failed", "STATE_NOT_JSON", "p")
    assert "state['x'] is " in result.error.message
    assert calls == 1


async def test_nor_does_it_change_where_a_replica_of_the_chain_has_run_the_hook(run):
    hybrid = processor(
        "p",
        process_output_stream=same,
        process_tool_result=lambda args: args.state.update(x=float("nan")),
    )
    told = await run(CALL, DONE, o=[hybrid], tools=[tool("t", lambda _: "ok")])
    assert (told.result.status, told.result.error.code) == ("failed", "STATE_NOT_JSON")


@pytest.mark.parametrize("value", [object(), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), SURROGATE])
async def test_a_request_context_that_is_no_json_is_told_at_once(run, value):
    result, calls = await with_hook(run, "process_input", lambda args: args.request_context.set("x", value))
    assert (result.status, result.error.code, calls) == ("failed", "CONTEXT_NOT_JSON", 1)
    assert "run['requestContext']['x']" in result.error.message
    assert (result.error.processor_id, result.error.hook) == ("p", "processInput")


async def test_where_a_tool_may_have_done_it_no_processor_is_named(run):
    hooked = processor("p", process_tool_result=lambda _: None)
    spoiling = tool("t", lambda context: context.request_context.set("x", {1}))
    error = (await run(CALL, DONE, o=[hooked], tools=[spoiling])).result.error
    assert (error.code, error.processor_id) == ("CONTEXT_NOT_JSON", None)
    assert error.message == (
        "one of the tools 't' left what is not JSON: requestContext['x'] is of type set; only JSON values are allowed"
    )


@pytest.mark.parametrize("value", [5, None, "x"])
async def test_a_message_that_a_tool_has_made_unreadable_is_told_with_its_name(run, value):
    spoiling = tool("t", lambda context: context.messages[0]["content"].update(parts=value))
    error = (await run(CALL, DONE, tools=[spoiling])).result.error
    assert error.code == "INVALID_MESSAGE_CONTENT"
    assert error.message.startswith("one of the tools 't' left a message that cannot be read: messages.0.")


async def test_nor_where_another_one_may_have(run):
    refs = [
        processor("p", process_input=lambda args: args.request_context.set("x", {1})),
        processor("q", process_input=lambda _: None),
    ]
    error = (await run(SAID, i=refs)).result.error
    assert (error.code, error.processor_id) == ("CONTEXT_NOT_JSON", None)


@pytest.mark.parametrize("hook", ["process_output_step", "process_output_result"])
@pytest.mark.parametrize("value", [{1}, float("nan")], ids=["set", "nan"])
async def test_what_is_written_and_no_json_is_told_at_once_and_by_name(run, hook, value):
    async def write(args):
        await args.writer.custom({"type": "data-x", "data": value})

    hooks: dict[str, Any] = {hook: write}
    told = await run(SAID, o=[processor("p", **hooks)])
    error = told.result.error
    assert (error.code, error.processor_id) == ("PROCESSOR_FAILED", "p")
    assert error.hook == {"process_output_step": "processOutputStep"}.get(hook, "processOutputResult")
    assert "chunk['data'] is " in error.message
    assert "data-x" not in {chunk["type"] for chunk in told.chunks}


@pytest.mark.parametrize("hook", ["process_output_step", "process_output_result"])
async def test_metadata_of_messages_that_are_no_json_are_told_at_once(run, hook):
    def edit(args):
        args.messages[-1]["content"]["metadata"]["x"] = object()

    result, calls = await with_hook(run, hook, edit)
    assert (result.status, result.error.code, calls) == ("failed", "CONTEXT_NOT_JSON", 1)
    assert result.error.processor_id == "p"


@pytest.mark.parametrize("hook", ["process_input", "process_output_step", "process_output_result"])
@pytest.mark.parametrize(
    ("error", "text"), [(MuteError(), "MuteError"), (ValueError(f"not {SURROGATE}"), "not ?")]
)
async def test_an_error_without_a_text_fails_the_run_once(run, hook, error, text):
    """D-30."""
    result, calls = await with_hook(run, hook, raising(error))
    told = result.error
    assert (told.code, told.processor_id, told.message) == ("PROCESSOR_FAILED", "p", text)
    assert calls == 1


async def cancelling(_args):
    task = asyncio.current_task()
    assert task
    task.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize("hook", sorted(ARRAYS.keys() - {"process_api_error"}))
async def test_a_hook_that_cancels_its_own_task_fails_the_run_once_and_is_named(run, hook):
    result, calls = await with_hook(run, hook, cancelling)
    told = result.error
    assert (told.code, told.processor_id, told.message) == ("PROCESSOR_FAILED", "p", "cancelled its own task")
    assert calls == 1


async def test_an_error_hook_that_cancels_its_own_task_leaves_the_error_of_the_model(run):
    """R-AE-7."""
    result, calls = await with_hook(run, "process_api_error", cancelling)
    assert (result.error.code, calls) == ("MODEL_FAILED", 1)


async def test_a_tool_that_cancels_its_own_task_is_a_tool_error(run):
    """R-TX-4."""
    told = await run(CALL, DONE, tools=[tool("t", cancelling)])
    [failed] = [chunk for chunk in told.chunks if chunk["type"] == "tool-error"]
    assert failed["payload"]["error"]["message"] == "cancelled its own task"
    assert told.result.text == "done"


@pytest.mark.parametrize("hook", ["process_input", "process_output_step", "process_output_result"])
@pytest.mark.parametrize(
    ("reason", "given", "metadata"),
    [("why", {"words": {"x"}}, {"words": ["x"]}), (ValueError("why"), {"x": SURROGATE}, {"x": "?"})],
    ids=["set", "error and surrogate"],
)
async def test_an_abort_stays_one_whatever_it_tells(run, hook, reason, given, metadata):
    """R-AB-10."""
    result, calls = await with_hook(run, hook, lambda args: args.abort(reason, metadata=given))
    assert (result.status, calls) == ("blocked", 1)
    assert (result.tripwire.reason, result.tripwire.metadata) == ("why", metadata)
    assert withheld(result)


@pytest.mark.parametrize("array", ["i", "o"])
async def test_an_error_that_is_longer_than_a_message_fails_the_run_by_its_beginning(run, array):
    """D-30."""
    hook = "process_input" if array == "i" else "process_output_stream"
    ref = processor("p", **{hook: raising(ValueError("not " + "x" * 9_000_000))}) | {"onError": "fail"}
    result = (await run(SAID, **{array: [ref]})).result
    told = result.error
    assert (told.code, told.processor_id, told.message[:8]) == ("PROCESSOR_FAILED", "p", "not xxxx")


async def test_the_next_error_processor_is_asked_whatever_the_first_raised(run):
    """R-AE-7."""
    array = [
        processor("p", process_api_error=raising(MuteError())),
        processor("q", process_api_error=lambda _: {"retry": True}),
    ]
    assert (await run(REFUSED, DONE, e=array)).result.text == "done"


@pytest.mark.parametrize(("error", "text"), [(MuteError(), "MuteError"), (ValueError(SURROGATE), "?")])
async def test_a_tool_that_raises_an_error_without_a_text_is_a_tool_error(run, error, text):
    """R-TX-4."""
    told = await run(CALL, DONE, tools=[tool("t", raising(error))])
    [failed] = [chunk for chunk in told.chunks if chunk["type"] == "tool-error"]
    assert (failed["payload"]["error"]["message"], told.result.text) == (text, "done")


async def test_and_one_that_is_longer_than_a_message_does_not_end_the_run(run):
    """R-TX-4."""
    told = await run(CALL, DONE, tools=[tool("t", raising(ValueError("x" * 9_000_000)))])
    assert (told.result.status, told.result.text) == ("finished", "done")


@pytest.mark.parametrize("o", [[], [processor("p", process_output_stream=same)]], ids=["direct", "streamed"])
@pytest.mark.parametrize("how", ["result", "writes"])
async def test_a_tool_whose_result_is_longer_than_a_message_is_named(run, how, o):
    async def gives(context):
        if how == "writes":
            await context.writer.write("x" * 9_000_000)
        return "x" * 9_000_000

    error = (await run(CALL, DONE, tools=[tool("t", gives)], o=o)).result.error
    assert error.code == "CHUNK_NOT_SENDABLE"
    assert " of the tool 't') has 9000" in error.message


@pytest.mark.parametrize("how", ["raises", "takes too long"])
@pytest.mark.parametrize("streams", [False, True])
async def test_nothing_of_an_answer_is_told_that_could_not_be_judged(run, how, streams):
    """D-1, R-ER-4."""

    async def guard(_args):
        if how == "raises":
            raise ValueError("the detector is away")
        await asyncio.Event().wait()

    hooks: dict[str, Any] = {"process_output_stream": same} if streams else {}
    ref = {**processor("p", process_output_result=guard, **hooks), "timeout": 0.2}
    result = (await run(SAID, o=[ref], stream=False)).result
    assert (result.status, result.error.processor_id) == ("failed", "p")
    assert withheld(result)


async def test_nor_where_what_was_judged_cannot_be_stored(run):
    result, _ = await with_hook(run, "process_output_result", lambda args: args.state.update(x={1}))
    assert (result.error.code, result.error.hook) == ("STATE_NOT_JSON", "processOutputResult")
    assert withheld(result)


async def test_nor_what_is_judged_while_the_time_of_the_run_is_up(run):
    async def guard(_args):
        await asyncio.Event().wait()

    result = (
        await run(SAID, o=[processor("p", process_output_result=guard)], timeout=3, stream=False)
    ).result
    assert (result.status, result.error.code) == ("failed", "DEADLINE_EXCEEDED")
    assert withheld(result)


@pytest.mark.parametrize("hook", ["process_input_step", "process_output_step"])
async def test_long_metadata_with_a_retry_are_shortened(run, hook):
    def again(args):
        args.abort("again", retry=True, metadata="x" * 5_000_000)

    result, calls = await with_hook(run, hook, again, agent={"maxProcessorRetries": 1})
    assert (result.status, result.tripwire.metadata, calls) == ("blocked", {"shortened": True}, 2)


async def test_the_name_of_a_processor_that_blocks_may_be_longer_than_headers(run):
    def block(args):
        args.abort("no")

    name = "x" * 100_000
    result = (await run(SAID, i=[{**processor("p", process_input=block), "as": name}])).result
    assert (result.status, result.tripwire.processor_id) == ("blocked", name)


async def test_a_command_that_is_longer_than_a_message_ends_the_run(run, monkeypatch):
    monkeypatch.setattr(phases, "feedback", lambda reason: reason + "x" * 9_000_000)
    retries = {"agent": {"maxProcessorRetries": 1}}
    result, calls = await with_hook(
        run, "process_output_step", lambda args: args.abort("again", retry=True), **retries
    )
    assert (result.status, result.error.code, calls) == ("failed", "COMMAND_TOO_LONG", 1)


@pytest.mark.parametrize("approval", [False, True])
async def test_a_number_that_no_message_can_hold_is_told_to_the_model_that_called_a_tool_with_it(
    run, approval
):
    call = {"tool_calls": [{"id": "c", "name": "t", "arguments": {"card": 2**70}}]}
    agent = {"requireToolApproval": approval}
    told = await run(
        call,
        DONE,
        tools=[tool("t", lambda _: "ok")],
        o=[processor("p", process_output_stream=same)],
        agent=agent,
    )
    assert told.result.text == "done"
    [error] = [chunk["payload"]["error"] for chunk in told.chunks if chunk["type"] == "tool-error"]
    assert "arguments['card'] is an integer of more than 64 bits" in str(error)


async def test_data_with_such_a_number_are_not_sent(system):
    handle = await system.start(DONE)
    with pytest.raises(TypeError, match="more than 64 bits"):
        await handle.resume("c", {"card": 2**70})
    with pytest.raises(TypeError, match="more than 64 bits"):
        await system.start(DONE, request_context={"card": 2**70})


async def test_a_lease_that_is_longer_than_a_message_ends_the_run(system, run, monkeypatch):
    async def long(*args, **options):
        return await lease_of(*args, **options) | {"long": "x" * 9_000_000}

    monkeypatch.setattr(streams, "lease_of", long)
    model = system.script(*[SAID] * 9)
    result = (await run(SAID, o=[processor("p", process_output_stream=same)], agent={"model": model})).result
    assert (result.status, result.error.code) == ("failed", "COMMAND_TOO_LONG")
    assert len(system.requests(model)) == 1
