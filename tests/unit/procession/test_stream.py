import asyncio
from contextlib import suppress
from typing import Any
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.calls import Calls
from procession.errors import ProcessorError, TripWire
from procession.processor import Hook
from procession.response import ResponseCollector
from procession.stream import StreamChain
from procession.testing import ProcessorKit, environment
from procession_schemas.chunks import RUNTIME_TYPES
from tests.support.raising import RAISED, raising
from tests.unit.procession.making import calls, context, delta, link, on, processor, retext, texts

FINISH = {"type": "finish", "payload": {"stepResult": {"reason": "stop"}}}


def hook(*hooks, **members):
    return [
        processor(name, process_output_stream=h, **members) for name, h in zip("abcdef", hooks, strict=False)
    ]


def upper(args):
    return (
        retext(args.part, args.part["payload"]["text"].upper())
        if args.part["type"] == "text-delta"
        else args.part
    )


def keep(args):
    return args.part


async def through(kinds, chunks, *, tally=None, collector=None, parts=None, **how):
    """Feeds chunks; gives what the client gets."""
    out: list[Any] = []
    links = [link(kind, place, **how) for place, kind in enumerate(kinds)]
    chain = StreamChain(links, context(), tally or calls(), out.append, parts=parts, collector=collector)
    for chunk in chunks:
        await chain.feed(chunk)
    return out


# --- what a hook returns ---------------------------------------------------------------------


async def test_what_one_makes_of_a_chunk_is_what_the_next_one_gets():
    kinds = hook(upper, lambda args: retext(args.part, f"[{args.part['payload']['text']}]"))
    assert texts(await through(kinds, [delta("a"), delta("b")])) == ["[A]", "[B]"]


async def test_without_processors_chunks_pass():
    chunks = [delta("a"), {"type": "source", "payload": {}}]
    assert await through([], chunks) == chunks


@pytest.mark.parametrize("nothing", [None, []])
async def test_a_dropped_chunk_is_gone_for_all_behind_and_only_that_one(nothing):
    seen = []
    drop = hook(
        lambda args: nothing if args.part["payload"]["text"] == "x" else args.part,
        lambda args: seen.append(args.part),
    )
    tally = calls()
    await through(drop, [delta("a"), delta("x"), delta("b")], tally=tally)
    assert texts(seen) == ["a", "b"]
    assert tally.reports["a", Hook.OUTPUT_STREAM.value].dropped == 1


async def test_a_list_goes_on_one_after_another_through_the_links_behind():
    def twice(args):
        return [args.part, retext(args.part, "+")]

    assert texts(await through(hook(twice, upper, twice), [delta("a"), delta("b")])) == [*"A+++B+++"]


async def test_an_unchanged_chunk_is_the_same_object():
    chunk = delta("a")
    tally = calls()
    assert (await through(hook(keep), [chunk], tally=tally))[0] is chunk
    report = tally.reports["a", Hook.OUTPUT_STREAM.value]
    assert (report.calls, report.changed, report.dropped) == (1, 0, 0)


@pytest.mark.parametrize(
    "wrong", ["text", 5, {}, {"payload": {}}, {"type": 5}, [delta("a"), "b"], (delta("a"),)]
)
@pytest.mark.parametrize("on_error", ["fail", "skip"])
async def test_what_is_no_chunk_is_an_error_that_says_so(wrong, on_error):
    with pytest.raises(ProcessorError, match="it may return a chunk") as caught:
        await through(hook(lambda _args: wrong), [delta("a")], on_error=on_error)
    assert (caught.value.code, caught.value.processor_id) == ("PROCESSOR_RETURNED_INVALID_VALUE", "a")


NOT_READABLE = [
    ({"type": "text-delta", "payload": {"id": "b", "text": 5}}, "`payload.text` is int", "a string"),
    ({"type": "text-delta", "payload": {"id": "b", "text": b"x"}}, "`payload.text` is bytes", "a string"),
    ({"type": "text-delta"}, "`payload.text` is missing", "a string"),
    ({"type": "text-start", "payload": "b"}, "`payload` is str", "an object, or nothing"),
    ({"type": "reasoning-delta", "payload": {"id": "b", "text": {"x"}}}, "`payload.text` is set", "a string"),
    ({"type": "tool-call", "payload": {"toolName": "t"}}, "`payload.toolCallId` is missing", "a string"),
    (
        {"type": "tool-call", "payload": {"toolCallId": "c", "toolName": 5}},
        "`payload.toolName` is int",
        "a string",
    ),
    ({"type": "tool-result", "payload": {"result": 1}}, "`payload.toolCallId` is missing", "a string"),
    (
        {"type": "finish", "payload": {"stepResult": "stop"}},
        "`payload.stepResult` is str",
        "an object, or nothing",
    ),
]
"""Chunks that the runtime would fail over, and what is told of them."""


@pytest.mark.parametrize(("made", "found", "needed"), NOT_READABLE)
async def test_a_chunk_that_lacks_what_its_type_needs_is_refused_with_the_field(made, found, needed):
    with pytest.raises(ProcessorError) as caught:
        await through(hook(lambda args: [args.part, made]), [delta("a")])
    assert (caught.value.code, caught.value.processor_id) == ("PROCESSOR_RETURNED_INVALID_VALUE", "a")
    told = f"returned a chunk of type {made['type']!r} whose {found}; it must be {needed}"
    assert str(caught.value).endswith(told)


@pytest.mark.parametrize(
    "made",
    [
        {"type": "data-x", "data": 1, "payload": "mine"},
        {"type": "mine"},
        {"type": "finish"},
        {"type": "tool-result", "payload": {"toolCallId": "c"}},
        {"type": "object-result", "object": {}},
        {"type": "step-finish", "payload": None},
    ],
)
async def test_a_hook_makes_chunks_of_every_type_that_says_nothing_of_the_run(made):
    assert await through(hook(lambda args: [made, args.part]), [delta("a")], collector=ResponseCollector())


@pytest.mark.parametrize("value", [{1}, "\ud800", 2**70], ids=["set", "surrogate", "long"])
@pytest.mark.parametrize("kind", ["text-start", "data-x"])
async def test_a_chunk_that_is_not_json_is_refused_with_its_field(kind, value):
    made = {"type": kind, "payload": {"id": "b"}, "data": {"x": value}}
    tally = calls()
    with pytest.raises(
        ProcessorError, match=r"returned a chunk that is not JSON: chunk\['data'\]\['x'\] "
    ) as caught:
        await through(hook(lambda args: [args.part, made]), [delta("a")], tally=tally)
    assert (caught.value.code, caught.value.processor_id) == ("PROCESSOR_RETURNED_INVALID_VALUE", "a")
    assert tally.reports["a", Hook.OUTPUT_STREAM.value].errors == 1


@pytest.mark.parametrize("kind", ["tool-call", "tool-result"])
async def test_nor_may_a_call_or_a_result_hold_what_would_come_back_as_something_else(kind):
    made = {"type": kind, "payload": {"toolCallId": "c", "toolName": "t", "args": {"x": float("nan")}}}
    with pytest.raises(
        ProcessorError, match=r"returned a chunk that is not JSON: chunk\['payload'\]\['args'\]\['x'\] is nan"
    ) as caught:
        await through(hook(lambda args: [args.part, made]), [delta("a")])
    assert caught.value.processor_id == "a"


@pytest.mark.parametrize("field", ["toolCallId", "toolName"])
async def test_a_call_that_was_spoiled_in_place_does_not_get_through(field):
    def spoil(args):
        args.part["payload"][field] = ["t"]
        return args.part

    chain = StreamChain(
        [link(kind) for kind in hook(spoil)],
        context(),
        calls(),
        lambda _: None,
        collector=ResponseCollector(),
    )
    call: Any = {"type": "tool-call", "payload": {"toolCallId": "c", "toolName": "t", "args": {}}}
    with pytest.raises(TypeError) as caught:
        await chain.feed(call)
    told = chain.spoiled(caught.value)
    assert told
    assert (told.processor_id, told.code) == ("a", "PROCESSOR_RETURNED_INVALID_VALUE")
    assert f"`payload.{field}` is list" in str(told)


NO_TEXT = "a chunk of type 'text-delta' whose `payload.text` is int; it must be a string"


def spoil(args):
    args.part["payload"]["text"] = 5
    return args.part


@pytest.mark.parametrize(
    ("hooks", "told"),
    [
        ([keep, upper, spoil], ("c", f"left {NO_TEXT}")),
        ([spoil, keep], ("", f"one of 'a', 'b' left {NO_TEXT}")),
        ([keep, upper], None),
    ],
)
async def test_a_chunk_that_was_spoiled_in_place_is_told_with_who_had_it(hooks, told):
    chain = StreamChain(
        [link(kind, place) for place, kind in enumerate(hook(*hooks))], context(), calls(), lambda _: None
    )
    await chain.feed(delta("a"))
    error = chain.spoiled(TypeError("sequence item 0: expected str"))
    assert (error and (error.processor_id, str(error))) == told
    assert chain.spoiled(ProcessorError("mine", processor_id="b")) is None


@pytest.mark.parametrize("kind", sorted(RUNTIME_TYPES))
async def test_a_hook_makes_no_chunk_that_says_how_the_run_goes(kind):
    """R-CH-10; a client would take back what it has, or leave the run."""
    with pytest.raises(ProcessorError, match="belongs to the runtime") as caught:
        await through(hook(lambda args: [args.part, {"type": kind, "payload": {}}]), [delta("a")])
    assert (caught.value.code, caught.value.processor_id) == ("PROCESSOR_RETURNED_INVALID_VALUE", "a")


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("kind", [*sorted(RUNTIME_TYPES), None])
async def test_nor_does_it_make_one_of_the_chunk_in_hand(kind, listed):
    def edit(args):
        args.part["type"] = kind
        return [args.part] if listed else args.part

    with pytest.raises(ProcessorError) as caught:
        await through(hook(edit), [delta("a")])
    assert (caught.value.code, caught.value.processor_id) == ("PROCESSOR_RETURNED_INVALID_VALUE", "a")


@pytest.mark.parametrize("made", [5, {"type": "reset", "payload": {}}, {"type": "data-x", "data": {1}}])
@pytest.mark.parametrize("on_error", ["fail", "skip"])
async def test_a_wrong_return_is_counted_and_logged_without_its_text(made, on_error):
    logged: list[str] = []
    tally = Calls(clock=lambda: 0, environment=environment(log=logged.append))
    with pytest.raises(ProcessorError):
        await through(hook(keep, lambda _args: made), [delta("a")], tally=tally, on_error=on_error)
    assert logged == ["b: processOutputStream of run r failed with PROCESSOR_RETURNED_INVALID_VALUE"]
    assert [report.errors for report in tally.reports.values()] == [0, 1]


async def test_a_type_that_was_changed_in_place_counts_as_a_change():
    def edit(args):
        args.part["type"] = "data-x"
        return args.part

    tally = calls()
    [out] = await through(hook(edit), [delta("a")], tally=tally)
    assert out["type"] == "data-x"
    assert tally.reports["a", Hook.OUTPUT_STREAM.value].changed == 1


@pytest.mark.parametrize("kind", ["error", "tool-call-approval"])
async def test_a_hook_edits_those_that_it_gets_at_once_or_later(kind):
    """R-OS-8."""
    got = {"type": kind, "payload": {"error": "why"}}
    held = []

    def later(args):
        held.append(args.part)
        return held if args.part["type"] == "text-delta" else None

    edit = hook(lambda args: {**args.part, "metadata": {}}, later)
    assert await through(edit, [got, delta("a")]) == [
        {**got, "metadata": {}},
        {**delta("a"), "metadata": {}},
    ]


async def test_sync_and_async_hooks_mix_and_keep_the_order():
    async def slow(args):
        await asyncio.sleep(0)
        return upper(args)

    chunks = [delta(letter) for letter in "abcdef"]
    assert "".join(texts(await through(hook(slow, keep, slow), chunks))) == "ABCDEF"


OPERATIONS = {
    "drop": lambda text: [] if text == "x" else [text],
    "upper": lambda text: [text.upper()],
    "twice": lambda text: [text, text],
    "split": list,
    "keep": lambda text: [text],
}


@given(
    st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=5),
    st.lists(st.text("xyz", min_size=1, max_size=3), max_size=6),
    st.booleans(),
)
async def test_a_chain_is_its_links_one_after_another(names, pieces, asynchronous):
    def made(name):
        def sync(args):
            return [retext(args.part, text) for text in OPERATIONS[name](args.part["payload"]["text"])]

        async def later(args):
            return sync(args)

        return later if asynchronous else sync

    expected = pieces
    for name in names:
        expected = [out for piece in expected for out in OPERATIONS[name](piece)]
    parts: list[list[Any]] = [[] for _ in names]
    out = await through(hook(*map(made, names)), map(delta, pieces), parts=parts)
    assert texts(out) == expected
    so_far = pieces
    for name, received in zip(names, parts, strict=True):
        assert texts(received) == so_far
        so_far = [out for piece in so_far for out in OPERATIONS[name](piece)]


# --- what a hook gets ------------------------------------------------------------------------


async def test_stream_parts_are_what_this_processor_got_the_current_one_last():
    """A-18: later processors see what earlier ones made of a chunk."""
    seen = []

    def note(args):
        seen.append(texts(args.stream_parts))
        return args.part

    await through(hook(upper, note), [delta("a"), delta("b")])
    assert seen == [["A"], ["A", "B"]]


async def test_stream_parts_span_steps_and_retries():
    def count(args):
        args.state["parts"] = len(args.stream_parts)
        if args.part["type"] == "text-delta" and args.part["payload"]["text"] == "bad":
            args.abort("bad", retry=True)
        return args.part

    kit = ProcessorKit(processor(process_output_stream=count))
    await kit.stream([delta("a")], finish_reason="stop")
    await kit.stream([delta("bad")])
    await kit.stream([delta("b")])
    assert kit.state["parts"] == 3


async def test_the_retry_count_is_the_real_one():
    """D-36."""
    kit = ProcessorKit(processor(process_output_stream=lambda args: args.state.update(n=args.retry_count)))
    kit.context.retry_count = 2
    await kit.stream(["a"])
    assert kit.state["n"] == 2


async def test_a_hook_knows_its_place_in_the_array():
    kinds = [link(kind, place) for place, kind in enumerate(hook(keep, keep), 4)]
    StreamChain(kinds, context(), calls(), lambda _chunk: None)
    assert [at.processor.processor_index for at in kinds] == [4, 5]


async def test_the_response_is_not_in_the_conversation_while_it_streams():
    def look(args):
        args.state["messages"] = len(args.message_list.get.all.db())
        return args.part

    kit = ProcessorKit(processor(process_output_stream=look))
    kit.message_list.add("question", "input")
    await kit.stream(["answer"])
    assert kit.state["messages"] == 1


# --- what is offered, what is delivered ------------------------------------------------------


async def test_response_metadata_and_finish_are_offered_but_never_delivered():
    seen = []

    def note(args):
        seen.append(args.part["type"])
        return args.part

    out = await through(hook(note), [{"type": "response-metadata"}, delta("a"), FINISH])
    assert seen == ["response-metadata", "text-delta", "finish"]
    assert [chunk["type"] for chunk in out] == ["text-delta"]


async def test_the_finish_of_a_step_with_tools_is_not_offered():
    seen = []
    collector = ResponseCollector(keep_chunks=True)
    finish = {"type": "finish", "payload": {"stepResult": {"reason": "tool-calls"}}}
    await through(hook(lambda args: seen.append(args.part)), [finish], collector=collector)
    assert seen == []
    assert collector.finish_reason == "tool-calls"
    assert [chunk["type"] for chunk in collector.chunks] == ["finish"]


async def test_dropping_control_chunks_hides_them_and_changes_nothing_else():
    """A-12."""
    collector = ResponseCollector()
    usage = {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}
    finish = {"type": "finish", "payload": {"stepResult": {"reason": "length"}, "output": {"usage": usage}}}
    chunks = [
        {"type": "step-start", "payload": {}},
        {"type": "response-metadata", "payload": {"id": "x"}},
        finish,
    ]
    assert await through(hook(lambda _args: None), chunks, collector=collector) == []
    assert (collector.finish_reason, collector.usage, collector.metadata) == ("length", usage, {"id": "x"})


# --- data chunks and the writer --------------------------------------------------------------


def data(name="x", **more):
    return {"type": f"data-{name}", "data": name, **more}


async def test_data_chunks_are_only_for_those_who_asked():
    seen = []

    def note(args):
        seen.append(args.part["type"])
        return args.part

    chunk = data()
    assert await through(hook(note), [chunk]) == [chunk]
    assert seen == []
    assert await through(hook(note, process_data_parts=True), [chunk]) == [chunk]
    assert seen == ["data-x"]


async def test_a_data_chunk_can_be_changed_dropped_or_blocked():
    def judge(args):
        if args.part["data"] == "stop":
            args.abort("stopped")
        return None if args.part["data"] == "drop" else {**args.part, "data": "changed"}

    kinds = hook(judge, process_data_parts=True)
    assert await through(kinds, [data("x"), data("drop")]) == [data("x", data="changed")]
    with pytest.raises(TripWire, match="stopped"):
        await through(kinds, [data("stop")])


async def test_what_becomes_a_data_chunk_is_only_for_those_who_asked():
    def convert(args):
        return data() if args.part["type"] == "text-delta" else delta("text")

    seen = []
    out = await through(hook(convert, lambda args: seen.append(args.part)), [delta("a")])
    assert (out, seen) == ([data()], [])
    behind = processor("z", process_output_stream=upper)
    assert texts(await through([*hook(convert, process_data_parts=True), behind], [data()])) == ["TEXT"]


def writes(chunk):
    async def write(args):
        if args.part["type"] == "text-delta":
            await args.writer.custom(chunk)
        return args.part

    return write


async def test_a_written_chunk_comes_before_the_chunk_in_hand():
    out = await through(hook(writes(data())), [delta("a"), delta("b")])
    assert [chunk["type"] for chunk in out] == ["data-x", "text-delta", "data-x", "text-delta"]


async def test_a_written_chunk_is_for_those_behind_who_asked_and_never_for_the_writer():
    """D-19, R-WR-7."""
    seen = []

    def asks(name):
        def note(args):
            if args.part["type"].startswith("data-"):
                seen.append(name)
            return args.part

        return note

    async def both(args):
        if args.part["type"].startswith("data-"):
            seen.append("writer")
            return args.part
        return await writes(data())(args)

    kinds = [
        processor("first", process_output_stream=asks("first"), process_data_parts=True),
        processor("writer", process_output_stream=both, process_data_parts=True),
        processor("deaf", process_output_stream=asks("deaf")),
        processor("last", process_output_stream=asks("last"), process_data_parts=True),
    ]
    out = await through(kinds, [delta("a")])
    assert seen == ["last"]
    assert [chunk["type"] for chunk in out] == ["data-x", "text-delta"]


async def test_a_written_chunk_can_be_dropped_by_one_behind():
    behind = processor("z", process_output_stream=lambda args: None, process_data_parts=True)
    assert await through([*hook(writes(data())), behind], [delta("a")]) == []


async def test_what_is_written_beside_a_hook_does_not_change_the_chunk_that_the_next_one_has_in_hand():
    writes, at_work, go_on = list[Any](), asyncio.Event(), asyncio.Event()

    def beside(args):
        if args.part["type"] == "text-delta":
            writes.extend(asyncio.ensure_future(args.writer.custom(data(n))) for n in range(2))
        return args.part

    async def slow(args):
        if args.part["type"] == "text-delta":
            at_work.set()
            await go_on.wait()
        elif args.part["data"] == 0:
            await asyncio.sleep(0)
        return args.part

    kinds = [processor("a", process_output_stream=beside)]
    kinds.append(processor("b", process_output_stream=slow, process_data_parts=True))
    feeding = asyncio.ensure_future(through(kinds, [delta("a")]))
    await at_work.wait()
    await asyncio.gather(*writes)
    go_on.set()
    assert await feeding == [data(0), data(1), delta("a")]


async def test_the_writer_refuses_the_types_of_the_runtime():
    with pytest.raises(ProcessorError, match="belongs to the runtime"):
        await through(hook(writes({"type": "finish"})), [delta("a")], on_error="fail")


@pytest.mark.parametrize("value", [{1}, float("nan")])
async def test_a_custom_chunk_that_is_no_json_is_told_before_anybody_gets_it(value):
    chunk = {"type": "data-x", "data": value}
    for does, code in (
        (writes(chunk), "PROCESSOR_FAILED"),
        (lambda args: [chunk], "PROCESSOR_RETURNED_INVALID_VALUE"),
    ):
        out: list[Any] = []
        links = [link(each, on_error="fail") for each in hook(does)]
        with pytest.raises(ProcessorError, match=r"chunk\['data'\]") as raised:
            await StreamChain(links, context(), calls(), out.append).feed(delta("a"))
        error = raised.value
        assert (error.code, error.processor_id, error.hook) == (code, "a", "processOutputStream")
        assert out == []


async def test_a_writer_that_outlives_its_stream_writes_nowhere_and_keeps_nothing_alive():
    writers = []

    def keep_writer(args):
        writers.append(args.writer)
        return args.part

    out: list[Any] = []
    chain = StreamChain([link(each) for each in hook(keep_writer)], context(), calls(), out.append)
    await chain.feed(delta("a"))
    left = ref(chain)
    del chain
    assert left() is None
    await writers[0].custom(data())
    with pytest.raises(ValueError, match="belongs to the runtime"):
        await writers[0].custom({"type": "finish"})
    assert texts(out) == ["a"]


async def test_what_is_written_is_kept_with_the_answer_unless_transient():
    collector = ResponseCollector()
    await through(
        hook(writes(data("kept")), writes(data("gone", transient=True))), [delta("a")], collector=collector
    )
    assert [part["type"] for part in collector.parts] == ["data-kept", "text"]


async def test_an_abort_of_one_behind_is_told_once_and_is_his():
    stored = []

    async def sink(*violation):
        stored.append(violation)

    def block(args):
        args.abort("no data")

    tally = Calls(clock=lambda: 0, violation=sink)
    behind = processor("z", process_output_stream=block, process_data_parts=True)
    with pytest.raises(TripWire) as caught:
        await through([*hook(writes(data())), behind], [delta("a")], tally=tally)
    assert caught.value.processor_id == "z"
    assert [violation.processor_id for violation, *_ in stored] == ["z"]
    assert [(r.processor, r.aborts) for r in tally.reports.values()] == [("a", 0), ("z", 1)]


async def test_a_failure_of_one_behind_is_not_skipped_by_the_writer():
    def guard(args):
        if args.part["type"] == "data-x":
            raise ValueError("guardrail")
        return args.part

    behind = processor("z", process_output_stream=guard, process_data_parts=True, on_error="fail")
    with pytest.raises(ProcessorError) as caught:
        await through([*hook(writes(data())), behind], [delta("a")])
    assert caught.value.processor_id == "z"


# --- failures and aborts ---------------------------------------------------------------------


def fails(_args):
    raise ValueError("broken")


async def test_a_failing_hook_leaves_the_chunk_as_it_got_it():
    """D-2: what the processors before it did stays done."""
    tally = calls()
    assert texts(await through(hook(upper, fails, keep), [delta("a")], tally=tally)) == ["A"]
    assert tally.reports["b", Hook.OUTPUT_STREAM.value].errors == 1


async def test_a_guardrail_that_fails_ends_the_stream():
    out: list[Any] = []
    links = [link(hook(upper)[0]), link(processor("g", process_output_stream=fails, on_error="fail"))]
    with pytest.raises(ProcessorError, match="broken") as caught:
        await StreamChain(links, context(), calls(), out.append).feed(delta("a"))
    assert (caught.value.processor_id, caught.value.hook) == ("g", "processOutputStream")
    assert out == []


async def test_a_skipped_failure_at_every_chunk_is_logged_once():
    logged: list[str] = []
    tally = Calls(clock=lambda: 0, environment=environment(log=logged.append))
    chunks = [delta("a"), delta("b")]
    kinds = hook(raising(lambda: ValueError("secret")))
    assert await through(kinds, chunks, tally=tally, on_error="skip") == chunks
    [told] = logged
    assert told.startswith("a: processOutputStream of run r raised ValueError at ")


async def test_a_hook_that_takes_too_long_is_skipped_or_fails():
    async def hangs(_args):
        await asyncio.Event().wait()

    assert texts(await through(hook(hangs), [delta("a")], timeout=0.01)) == ["a"]
    with pytest.raises(ProcessorError) as caught:
        await through(hook(hangs), [delta("a")], timeout=0.01, on_error="fail")
    assert caught.value.code == "PROCESSOR_TIMEOUT"


async def test_a_hook_that_catches_the_end_of_its_time_keeps_nobody(monkeypatch):
    monkeypatch.setattr("procession.awaiting._LEFT_SECONDS", 0.05)
    may_end = asyncio.Event()

    async def deaf(_args):
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    async with asyncio.timeout(20):
        assert texts(await through(hook(deaf), [delta("a"), delta("b")], timeout=0.01)) == ["a", "b"]
    may_end.set()


async def test_the_chunk_of_an_abort_is_not_delivered_and_nobody_behind_sees_it():
    def block(args):
        if args.part["payload"]["text"] == "bad":
            args.abort("blocked", metadata={"n": 1})
        return args.part

    kit = ProcessorKit(processor(process_output_stream=block), then=on("process_output_stream", upper))
    out = await kit.stream([delta("ok"), delta("bad"), delta("more")])
    assert out.deltas == ["OK"]
    assert (out.blocked.reason, out.blocked.metadata, out.blocked.processor_id) == ("blocked", {"n": 1}, "p")
    assert [violation.message for violation in kit.violations] == ["blocked"]


@pytest.mark.parametrize("raised", RAISED)
async def test_whatever_a_hook_raises_is_its_failure(raised):
    assert texts(await through(hook(raising(raised)), [delta("a")])) == ["a"]
    with pytest.raises(ProcessorError) as caught:
        await through(hook(raising(raised)), [delta("a")], on_error="fail")
    assert caught.value.name == type(raised()).__name__


async def test_cancelling_is_not_an_error():
    async def cancel(_args):
        task.cancel()
        await asyncio.sleep(0)

    task = asyncio.create_task(through(hook(cancel), [delta("a")]))
    with pytest.raises(asyncio.CancelledError):
        await task


# --- chunks that are held back -----------------------------------------------------------------


class _Holder:
    """Holds text back until it is flushed; `due` are the seconds after which it wants to be."""

    def __init__(self, due=None):
        self.held: list[Any] = []
        self.due = due

    def take(self, args):
        if args.part["type"] != "text-delta":
            held, self.held = self.held, []
            return [*held, args.part]
        self.held.append(args.part)
        args.wake_after(self.due)
        return None

    def flush(self, _args):
        held, self.held = self.held, []
        return held


def holding(holder, *behind):
    def flush(_self, args):
        return holder.flush(args)

    first = processor("a", process_output_stream=holder.take, flush_stream=flush)
    return [first, *(processor("z", process_output_stream=hook) for hook in behind)]


async def test_what_is_held_back_comes_out_at_the_end_and_passes_those_behind():
    out: list[Any] = []
    links = [link(kind, place) for place, kind in enumerate(holding(_Holder(), upper))]
    chain = StreamChain(links, context(), calls(), out.append)
    await chain.feed(delta("a"))
    await chain.feed(delta("b"))
    assert out == []
    await chain.end()
    await chain.end()
    assert texts(out) == ["A", "B"]


async def test_a_processor_is_woken_when_its_time_is_up_and_not_before():
    now = [0]
    out: list[Any] = []
    chain = StreamChain(
        [link(holding(_Holder(due=2.0))[0])], context(), Calls(clock=lambda: now[0]), out.append
    )
    assert chain.wakes_at is None
    await chain.feed(delta("a"))
    assert chain.wakes_at == 2_000_000_000
    now[0] = 1_999_999_999
    await chain.wake()
    assert out == []
    now[0] = 2_000_000_000
    await chain.wake()
    assert texts(out) == ["a"]
    assert chain.wakes_at is None


async def test_a_later_wish_counts_and_can_be_taken_back():
    def ask(args):
        args.wake_after({"a": 5.0, "b": 1.0, "c": None}[args.part["payload"]["text"]])
        return args.part

    chain = StreamChain([link(hook(ask)[0])], context(), calls(), lambda _chunk: None)
    wishes = []
    for text in "abc":
        await chain.feed(delta(text))
        wishes.append(chain.wakes_at)
    assert wishes == [5_000_000_000, 1_000_000_000, None]


async def test_an_abort_in_a_task_group_blocks_and_is_not_skipped():
    async def look(args):
        args.abort("blocked")

    async def judge(args):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(look(args))
        return args.part

    with pytest.raises(TripWire, match="blocked") as caught:
        await through(hook(judge), [delta("a")], on_error="skip")
    assert caught.value.processor_id == "a"


async def test_an_abort_while_flushing_is_the_processors():
    def flush(_self, args):
        args.abort("held something bad")

    kind = processor("a", process_output_stream=lambda _args: None, flush_stream=flush)
    chain = StreamChain([link(kind)], context(), calls(), lambda _chunk: None)
    await chain.feed(delta("a"))
    with pytest.raises(TripWire) as caught:
        await chain.end()
    assert caught.value.processor_id == "a"


async def test_a_failure_while_flushing_follows_the_policy():
    def flush(_self, _args):
        raise ValueError("broken")

    kind = processor("a", process_output_stream=lambda _args: None, flush_stream=flush)
    tally = calls()
    chain = StreamChain([link(kind, on_error="skip")], context(), tally, lambda _chunk: None)
    await chain.end()
    assert [report.errors for report in tally.reports.values()] == [1]
    strict = StreamChain([link(kind)], context(), calls(), lambda _chunk: None)
    with pytest.raises(ProcessorError):
        await strict.end()


async def test_what_comes_by_chance_is_told_before_it_is_on_its_way():
    """A failure need not happen again, and a task of its own writes when it comes to it."""
    told: list[Any] = []

    async def fail_or_write(args):
        said = args.part["payload"]["text"]
        if said == "fails":
            raise ValueError("no")
        if said == "writes":
            await args.writer.custom(data())
        if said == "writes beside":
            await asyncio.create_task(args.writer.custom(data()))
        return args.part

    async def on_chance():
        told.append("chance")

    links = [link(each, on_error="skip") for each in hook(fail_or_write)]
    async with StreamChain(links, context(), calls(), lambda chunk: told.append(chunk["type"])) as chain:
        chain.on_chance = on_chance
        for text in ("passes", "writes", "fails", "writes beside"):
            await chain.feed(delta(text))
    written = ["data-x", "text-delta"]
    assert told == ["text-delta", *written, "chance", "text-delta", "chance", *written]


async def test_what_is_written_behind_the_end_of_a_stream_is_refused_and_what_was_begun_is_waited_for():
    out: list[Any] = []
    writers, begun, go_on = [], asyncio.Event(), asyncio.Event()

    async def slow(args):
        if args.part["type"].startswith("data-"):
            begun.set()
            await go_on.wait()
        return args.part

    def keep_writer(args):
        writers.append(args.writer)
        return args.part

    kinds = [*hook(keep_writer), processor("z", process_output_stream=slow, process_data_parts=True)]
    links = [link(kind, place) for place, kind in enumerate(kinds)]
    async with StreamChain(links, context(), calls(), out.append) as chain:
        await chain.feed(delta("a"))
        writing = asyncio.create_task(writers[0].custom(data("in time")))
        await begun.wait()
        asyncio.get_running_loop().call_soon(go_on.set)
    assert [chunk["type"] for chunk in out] == ["text-delta", "data-in time"]
    await writing
    with pytest.raises(ValueError, match="its writer is closed"):
        await writers[0].custom(data("late"))


async def test_a_chain_that_has_ended_goes_on_behind_its_stream_to_others():
    first, then = list[Any](), list[Any]()
    writers = list[Any]()

    def keep_writer(args):
        writers.append(args.writer)
        return args.part

    chain = StreamChain([link(*hook(keep_writer))], context(), calls(), first.append)
    async with chain:
        await chain.feed(delta("a"))
    collector = ResponseCollector()
    async with chain.again(then.append, collector):
        await chain.feed(delta("b"))
        await writers[0].custom(data("x"))
    with pytest.raises(ValueError, match="its writer is closed"):
        await writers[0].custom(data("late"))
    assert [texts(first), texts(then[:1]), then[1]["type"]] == [["a"], ["b"], "data-x"]
    assert collector.text == "b"
