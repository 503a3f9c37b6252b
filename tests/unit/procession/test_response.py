"""What an answer amounts to once the stream hooks have had it (R-OS-7)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.response import ResponseCollector
from procession.testing import ProcessorKit
from tests.unit.procession.making import delta, processor


def chunk(kind, **payload) -> Any:
    return {"type": kind, "payload": payload}


def collected(*chunks, **how):
    collector = ResponseCollector(**how)
    for each in chunks:
        collector.arrived(each)
        collector.passed(each)
    return collector


def call(call_id="c1", name="lookup", **more):
    return chunk("tool-call", toolCallId=call_id, toolName=name, args={"q": 1}, **more)


# --- text and reasoning ----------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from("ab"), st.text(max_size=3)), max_size=12))
def test_deltas_join_block_by_block(pieces):
    collector = collected(*(delta(text, block) for block, text in pieces))
    wanted = {b: "".join(t for block, t in pieces if block == b) for b, _ in pieces}
    assert [part["text"] for part in collector.parts] == [text for text in wanted.values() if text]
    assert collector.text == "".join(wanted.values())


def test_a_block_takes_its_place_when_it_ends():
    collector = collected(
        delta("one"), chunk("data-x"), delta("!"), chunk("text-end", id="b"), delta("two", "c")
    )
    assert [part.get("text", part["type"]) for part in collector.parts] == ["data-x", "one!", "two"]


def test_looking_does_not_end_a_block():
    collector = collected(delta("one "))
    assert collector.text == "one "
    collector.passed(delta("two"))
    assert [part["text"] for part in collector.parts] == ["one two"]


def test_the_end_of_a_block_without_text_makes_no_part():
    assert collected(chunk("text-start", id="b"), chunk("text-end", id="b")).parts == []


def test_a_text_that_processors_have_emptied_is_no_part():
    """Providers refuse an empty one; what a provider says with it is kept."""
    told = {"type": "text-delta", "payload": {"id": "b", "text": "", "providerMetadata": {"p": 1}}}
    parts = collected(delta("", "a"), told, delta("", "c"), delta("left", "c")).parts
    assert [(part["text"], part.get("providerMetadata")) for part in parts] == [
        ("", {"p": 1}),
        ("left", None),
    ]


def test_provider_metadata_of_a_text_is_kept():
    made = chunk("text-delta", id="b", text="x", providerMetadata={"p": 1})
    assert collected(made).parts == [{"type": "text", "text": "x", "providerMetadata": {"p": 1}}]


def test_reasoning_keeps_signature_and_redacted_blocks():
    collector = collected(
        chunk("reasoning-delta", id="r", text="think "),
        chunk("reasoning-delta", id="r", text="hard"),
        chunk("reasoning-signature", id="r", signature="sig"),
        chunk("redacted-reasoning", id="r", data="xxx"),
        chunk("reasoning-end", id="r"),
        delta("so"),
    )
    details = [
        {"type": "text", "text": "think hard", "signature": "sig"},
        {"type": "redacted", "data": "xxx"},
    ]
    assert collector.parts[0] == {"type": "reasoning", "reasoning": "think hard", "details": details}
    response = collector.to_dict()
    assert (response["text"], response["reasoningText"]) == ("so", "think hard")


def test_without_reasoning_there_is_no_reasoning_text():
    assert "reasoningText" not in collected(delta("so")).to_dict()


# --- tools, sources, files, data -------------------------------------------------------------


def test_a_tool_call_waits_for_its_result():
    collector = collected(call())
    assert collector.tool_calls == [{"toolCallId": "c1", "toolName": "lookup", "args": {"q": 1}}]
    invocation = {"state": "call", "toolCallId": "c1", "toolName": "lookup", "args": {"q": 1}}
    assert collector.parts == [{"type": "tool-invocation", "toolInvocation": invocation}]


def test_a_tool_call_counts_once():
    assert len(collected(call(), call()).tool_calls) == 1


def test_a_call_that_the_provider_runs_gets_the_providers_result():
    result = chunk("tool-result", toolCallId="c1", result=[1], providerExecuted=True)
    [part] = collected(call(providerExecuted=True), result).parts
    assert part["providerExecuted"]
    assert (part["toolInvocation"]["state"], part["toolInvocation"]["result"]) == ("result", [1])


def test_the_result_of_a_local_tool_is_not_the_answers():
    [part] = collected(call(), chunk("tool-result", toolCallId="c1", result=1)).parts
    assert part["toolInvocation"]["state"] == "call"


def test_sources_files_and_data_become_parts_in_order():
    collector = collected(
        chunk("source", id="s", url="u"),
        chunk("file", data="AA==", mimeType="image/png"),
        {"type": "data-x", "data": 1},
        {"type": "data-y", "data": 2, "transient": True},
    )
    assert collector.parts == [
        {"type": "source", "source": {"id": "s", "url": "u"}},
        {"type": "file", "data": "AA==", "mimeType": "image/png"},
        {"type": "data-x", "data": 1},
    ]


# --- run control -----------------------------------------------------------------------------


def test_finish_brings_reason_usage_and_metadata():
    usage = {"inputTokens": 1}
    finish = chunk(
        "finish",
        stepResult={"reason": "stop"},
        output={"usage": usage},
        metadata={"providerMetadata": {"p": 1}},
    )
    collector = collected(chunk("response-metadata", id="x"), finish)
    response = collector.to_dict()
    assert (response["finishReason"], response["usage"]) == ("stop", usage)
    assert response["metadata"] == {"id": "x", "providerMetadata": {"p": 1}}


def test_an_answer_that_breaks_off_has_no_reason_and_no_usage():
    collector = collected(delta("x"))
    assert (collector.finish_reason, collector.usage) == ("other", {})


@pytest.mark.parametrize(
    "finish", [{"type": "finish"}, chunk("finish"), chunk("finish", stepResult={"reason": None})]
)
def test_a_finish_that_says_nothing_counts_as_other(finish):
    """Core.md 7.9."""
    assert collected(finish).finish_reason == "other"


def test_the_object_of_an_answer_is_the_last_one_and_no_chunk_of_it():
    growing = {"type": "object", "object": {"a": 1}}
    done = {"type": "object-result", "object": {"a": 1, "b": 2}, "metadata": {"from": "structured-output"}}
    collector = collected(delta("x"), growing, done, keep_chunks=True)
    assert collector.to_dict()["object"] == done
    assert [each["type"] for each in collector.chunks] == ["text-delta"]
    assert "object" not in collected(delta("x"), growing).to_dict()


def test_chunks_are_kept_on_demand_stripped_and_without_data():
    chunks = [{**delta("x"), "runId": "r", "from": "AGENT"}, {"type": "data-x", "data": 1}]
    assert collected(*chunks, keep_chunks=True).to_dict()["chunks"] == [delta("x")]
    assert "chunks" not in collected(*chunks).to_dict()


# --- the table of R-OS-7 ---------------------------------------------------------------------


def acts_on(kind, value):
    def act(args):
        if args.part["type"] != kind:
            return args.part
        return value and {**args.part, "payload": {**args.part["payload"], **value}}

    return ProcessorKit(processor(process_output_stream=act))


@pytest.mark.parametrize(("value", "text"), [(None, ""), ({"text": "edited"}, "edited")])
async def test_a_text_as_the_hooks_left_it_counts_everywhere(value, text):
    out = await acts_on("text-delta", value).stream(["original"])
    assert (out.text, "".join(out.deltas), out.texts) == (text, text, [text] if text else [])


async def test_a_dropped_tool_call_does_not_run():
    """D-20."""
    kit = acts_on("tool-call", None)
    out = await kit.stream(["x"], tool_calls=[{"toolName": "lookup"}])
    assert out.tool_calls == []
    assert kit.message_list.pending_tool_calls() == []


async def test_an_edited_tool_call_runs_as_edited():
    kit = acts_on("tool-call", {"args": {"safe": True}})
    out = await kit.stream(["x"], tool_calls=[{"toolName": "lookup", "args": {"evil": True}}])
    assert out.tool_calls[0]["args"] == {"safe": True}
    assert kit.message_list.pending_tool_calls()[0]["args"] == {"safe": True}


@pytest.mark.parametrize("kind", ["step-start", "finish", "text-start", "text-end"])
async def test_a_dropped_control_chunk_is_only_hidden(kind):
    kit = acts_on(kind, None)
    out = await kit.stream(["hello"], finish_reason="length")
    assert kind not in [c["type"] for c in out.chunks]
    assert kit.context.response is not None
    assert (out.text, kit.context.response["finishReason"]) == ("hello", "length")


def test_what_a_processor_tells_a_provider_in_another_shape_is_no_part_of_the_message():
    """The next hook would be told that it left what nobody can read."""
    chunk: Any = {"type": "text-delta", "payload": {"id": "b", "text": "a", "providerMetadata": "odd"}}
    collector = ResponseCollector()
    collector.passed(chunk)
    assert collector.parts == [{"type": "text", "text": "a"}]


def test_usage_has_the_counts_and_not_what_the_provider_said_in_its_own_form():
    """R-US-1: sums and results hold numbers."""
    collector = ResponseCollector()
    usage = {"inputTokens": 1, "raw": {"prompt_tokens": 1}}
    collector.arrived({"type": "finish", "payload": {"output": {"usage": usage}}})
    assert collector.usage == {"inputTokens": 1}
