"""Provider events -> chunks (core.md 11.4, R-CH-5, R-CH-6, R-US-1..3, 7.9)."""

import json
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession_schemas.chunks import Chunk
from procession_services.llm_gateway.core.adapter import ChunkAdapter
from tests.support.cost import growth
from tests.unit.procession_services.llm_gateway.loopback import event

Chunks = list[Chunk]


def adapted(*events: dict[str, Any], **options: Any) -> Chunks:
    adapter = ChunkAdapter("openai", **options)
    return [chunk for each in events for chunk in adapter.feed(each)] + adapter.finish()


def content(chunks: Chunks) -> Chunks:
    """Leave out what frames every answer."""
    return [chunk for chunk in chunks if chunk["type"] not in ("response-metadata", "finish")]


def types(chunks: Chunks) -> list[str]:
    return [chunk["type"] for chunk in content(chunks)]


def payloads(chunks: Chunks, kind: str) -> list[Any]:
    return [chunk["payload"] for chunk in chunks if chunk["type"] == kind]


def call(index: int = 0, *, name: str | None = None, id: str | None = None, args: str = "") -> dict[str, Any]:  # noqa: A002
    function = {"arguments": args, **({"name": name} if name else {})}
    entry = {"index": index, "type": "function", "function": function, **({"id": id} if id else {})}
    return event(tool_calls=[entry])


def finish(chunks: Chunks) -> Any:
    assert [chunk["type"] for chunk in chunks].count("finish") == 1
    assert chunks[-1]["type"] == "finish"
    return chunks[-1]["payload"]


# --- text and reasoning ----------------------------------------------------------------------


def test_text_is_one_block() -> None:
    chunks = adapted(
        event(role="assistant", content=""), event(content="He"), event(content="llo"), event(finish="stop")
    )
    assert chunks == [
        {
            "type": "response-metadata",
            "payload": {"id": "resp-1", "modelId": "demo-1", "timestamp": "2026-01-01T00:00:00.000Z"},
        },
        {"type": "text-start", "payload": {"id": "txt-0"}},
        {"type": "text-delta", "payload": {"id": "txt-0", "text": "He"}},
        {"type": "text-delta", "payload": {"id": "txt-0", "text": "llo"}},
        {"type": "text-end", "payload": {"id": "txt-0"}},
        {
            "type": "finish",
            "payload": {
                "stepResult": {"reason": "stop"},
                "output": {"usage": {"inputTokens": None, "outputTokens": None, "totalTokens": None}},
                "metadata": {},
            },
        },
    ]


def test_chunks_come_as_soon_as_their_event() -> None:
    adapter = ChunkAdapter("openai")
    assert [chunk["type"] for chunk in adapter.feed(event(content="He"))] == [
        "response-metadata",
        "text-start",
        "text-delta",
    ]
    assert [chunk["type"] for chunk in adapter.feed(event(content="llo"))] == ["text-delta"]


def test_blocks_follow_one_another() -> None:
    chunks = adapted(
        event(reasoning_content="hm"),
        event(reasoning_content=" so"),
        event(content="a"),
        event(reasoning_content="wait"),
        event(content="b"),
    )
    assert [(chunk["type"], chunk["payload"]["id"]) for chunk in content(chunks)] == [
        ("reasoning-start", "rsn-0"),
        ("reasoning-delta", "rsn-0"),
        ("reasoning-delta", "rsn-0"),
        ("reasoning-end", "rsn-0"),
        ("text-start", "txt-0"),
        ("text-delta", "txt-0"),
        ("text-end", "txt-0"),
        ("reasoning-start", "rsn-1"),
        ("reasoning-delta", "rsn-1"),
        ("reasoning-end", "rsn-1"),
        ("text-start", "txt-1"),
        ("text-delta", "txt-1"),
        ("text-end", "txt-1"),
    ]


def test_of_several_choices_the_one_with_index_0_counts() -> None:
    def of(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text}, "finish_reason": finish}

    chunks = adapted(
        {"id": "r", "choices": [of(1, "X", "length")]},
        {"id": "r", "choices": [of(1, "Y"), of(0, "A")]},
        {"id": "r", "choices": [of(0, "B", "stop"), of(1, "Z")]},
    )
    assert [payload["text"] for payload in payloads(chunks, "text-delta")] == ["A", "B"]
    assert finish(chunks)["stepResult"] == {"reason": "stop"}


def test_an_empty_answer_has_no_block() -> None:
    assert types(adapted(event(role="assistant", content=""), event(content=""), event(finish="stop"))) == []


def test_signatures_belong_to_their_reasoning() -> None:
    chunks = adapted(
        event(reasoning_content="hm", thinking_blocks=[{"type": "thinking", "thinking": "hm"}]),
        event(thinking_blocks=[{"type": "thinking", "thinking": "", "signature": "SIG"}]),
        event(thinking_blocks=[{"type": "redacted_thinking", "data": "RED"}]),
        event(content="so"),
    )
    assert types(chunks)[:5] == [
        "reasoning-start",
        "reasoning-delta",
        "reasoning-signature",
        "reasoning-end",
        "redacted-reasoning",
    ]
    assert payloads(chunks, "reasoning-signature") == [{"id": "rsn-0", "signature": "SIG"}]
    assert payloads(chunks, "redacted-reasoning") == [{"id": "rsn-1", "data": "RED"}]


def thought(text: str = "", signature: str = "") -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, **({"signature": signature} if signature else {})}


@pytest.mark.parametrize(
    "events",
    [
        [
            event(reasoning_content="A", thinking_blocks=[thought("A")]),
            event(reasoning_content="", thinking_blocks=[thought(signature="SA")]),
            event(reasoning_content="B", thinking_blocks=[thought("B")]),
            event(reasoning_content="", thinking_blocks=[thought(signature="SB")]),
        ],
        [event(reasoning_content="AB", thinking_blocks=[thought("A", "SA"), thought("B", "SB")])],
    ],
    ids=["piece by piece", "at once"],
)
def test_each_thought_keeps_its_signature(events: list[dict[str, Any]]) -> None:
    assert content(adapted(*events)) == [
        {"type": "reasoning-start", "payload": {"id": "rsn-0"}},
        {"type": "reasoning-delta", "payload": {"id": "rsn-0", "text": "A"}},
        {"type": "reasoning-signature", "payload": {"id": "rsn-0", "signature": "SA"}},
        {"type": "reasoning-end", "payload": {"id": "rsn-0"}},
        {"type": "reasoning-start", "payload": {"id": "rsn-1"}},
        {"type": "reasoning-delta", "payload": {"id": "rsn-1", "text": "B"}},
        {"type": "reasoning-signature", "payload": {"id": "rsn-1", "signature": "SB"}},
        {"type": "reasoning-end", "payload": {"id": "rsn-1"}},
    ]


def test_thoughts_of_which_only_the_signatures_are_told_are_several() -> None:
    chunks = adapted(
        event(thinking_blocks=[thought(signature="SA")]), event(thinking_blocks=[thought(signature="SB")])
    )
    assert payloads(chunks, "reasoning-signature") == [
        {"id": "rsn-0", "signature": "SA"},
        {"id": "rsn-1", "signature": "SB"},
    ]


def test_a_signature_that_litellm_has_made_up_is_none() -> None:
    pieces = [
        event(reasoning_content=text, thinking_blocks=[thought(text, "mistral")]) for text in ("h", "m")
    ]
    assert types(adapted(*pieces)) == [
        "reasoning-start",
        "reasoning-delta",
        "reasoning-delta",
        "reasoning-end",
    ]


def test_a_refusal_is_text() -> None:
    assert payloads(adapted(event(refusal="I cannot")), "text-delta") == [{"id": "txt-0", "text": "I cannot"}]


@given(st.lists(st.text()))
def test_the_text_is_the_sum_of_its_deltas(pieces: list[str]) -> None:
    chunks = adapted(*(event(content=piece) for piece in pieces))
    assert "".join(payload["text"] for payload in payloads(chunks, "text-delta")) == "".join(pieces)
    assert all(payload["text"] for payload in payloads(chunks, "text-delta"))
    assert len(payloads(chunks, "text-start")) == len(payloads(chunks, "text-end")) == bool("".join(pieces))


# --- tool calls ------------------------------------------------------------------------------


def test_a_whole_call_is_one_chunk() -> None:
    chunks = adapted(call(name="f", id="c1", args='{"x": 1}'), event(finish="tool_calls"))
    assert content(chunks) == [
        {"type": "tool-call", "payload": {"toolCallId": "c1", "toolName": "f", "args": {"x": 1}}}
    ]
    assert finish(chunks)["stepResult"] == {"reason": "tool-calls"}


def test_a_call_is_held_until_it_is_known_to_be_whole() -> None:
    adapter = ChunkAdapter("openai")
    assert [chunk["type"] for chunk in adapter.feed(call(name="f", id="c1", args="{}"))] == [
        "response-metadata"
    ]
    assert types(adapter.feed(call(1, name="g", id="c2", args="{}"))) == ["tool-call"]


def test_a_call_in_pieces_is_streamed() -> None:
    chunks = adapted(
        call(name="f", id="c1"), call(args='{"x"'), call(args=": 1}"), event(finish="tool_calls")
    )
    common = {"toolCallId": "c1", "toolName": "f"}
    assert content(chunks) == [
        {"type": "tool-call-input-streaming-start", "payload": common},
        {"type": "tool-call-delta", "payload": {**common, "argsTextDelta": '{"x"'}},
        {"type": "tool-call-delta", "payload": {**common, "argsTextDelta": ": 1}"}},
        {"type": "tool-call-input-streaming-end", "payload": {"toolCallId": "c1"}},
        {"type": "tool-call", "payload": {**common, "args": {"x": 1}}},
    ]


def test_an_empty_delta_after_a_whole_call_does_not_make_it_a_streamed_one() -> None:
    assert types(adapted(call(name="f", id="c1", args="{}"), call(args=""))) == ["tool-call"]


@pytest.mark.parametrize("args", ["", " ", "null"])
def test_a_call_without_arguments_has_empty_ones(args: str) -> None:
    chunks = adapted(call(name="f", id="c1", args=args), event(finish="tool_calls"))
    [payload] = payloads(chunks, "tool-call")
    assert payload == {"toolCallId": "c1", "toolName": "f", "args": {}}


@pytest.mark.parametrize(
    ("reason", "over", "told"),
    [
        (None, False, {"argsText": ""}),
        ("length", True, {"argsText": ""}),
        ("content_filter", True, {"argsText": ""}),
        (None, True, {"args": {}}),
        ("a reason of its own", False, {"args": {}}),
    ],
)
def test_a_call_whose_arguments_were_still_to_come_has_none(
    reason: str | None, over: bool, told: dict[str, Any]
) -> None:
    adapter = ChunkAdapter()
    events = [call(name="f", id="c1"), event(finish=reason)]
    chunks = [chunk for each in events for chunk in adapter.feed(each)] + adapter.finish(over=over)
    assert payloads(chunks, "tool-call") == [{"toolCallId": "c1", "toolName": "f", **told}]


def test_a_call_without_arguments_holds_no_result_of_the_providers_own_up() -> None:
    found = {"tool_use_id": "srvtoolu_1", "content": [{"url": "https://t.org", "title": "T"}]}
    chunks = adapted(
        call(0, name="f", id="c1"),
        call(1, name="web_search", id="srvtoolu_1", args='{"query": "x"}'),
        event(provider_specific_fields={"web_search_results": [found]}),
        event(finish="tool_calls"),
    )
    assert types(chunks) == ["tool-call", "tool-call", "tool-result", "source"]
    assert [each["args"] for each in payloads(chunks, "tool-call")] == [{}, {"query": "x"}]


def test_calls_of_the_providers_own_are_told_once_and_are_none_of_the_others() -> None:
    def own(*numbers: int) -> dict[str, Any]:
        function = {"name": "web_search", "arguments": '{"query": "x"}'}
        calls = [{"index": i, "id": f"srvtoolu_{n}", "function": function} for i, n in enumerate(numbers)]
        return event(provider_specific_fields={"server_tool_calls": calls})

    found = event(
        provider_specific_fields={"web_search_results": [{"tool_use_id": "srvtoolu_1", "content": []}]}
    )
    chunks = adapted(
        event(content="a"),
        own(1),
        own(1),
        found,
        call(0, name="f", id="c1"),
        own(1, 2),
        call(0, args='{"a": 1}'),
        event(finish="tool_calls"),
    )
    assert types(chunks)[:5] == ["text-start", "text-delta", "text-end", "tool-call", "tool-result"]
    told = [(each["toolCallId"], each["args"]) for each in payloads(chunks, "tool-call")]
    assert told == [("srvtoolu_1", {"query": "x"}), ("c1", {"a": 1}), ("srvtoolu_2", {"query": "x"})]


def test_many_pieces_with_the_name_of_the_tool_in_each_take_time_for_each() -> None:
    def read(pieces: int) -> None:
        begin, end = call(name="f", args='{"text": "'), call(name="f", args='"}')
        chunks = adapted(begin, *[call(name="f", args="word ")] * pieces, end, event(finish="tool_calls"))
        assert payloads(chunks, "tool-call")[0]["args"] == {"text": "word " * pieces}

    assert growth(read, 16_000) < 7  # more than 10 if each piece had all of them parsed


def test_space_behind_whole_arguments_says_nothing() -> None:
    chunks = adapted(call(name="f", args="{}"), call(args=" \n"), call(name="g", args="{}"))
    assert [each["toolName"] for each in payloads(chunks, "tool-call")] == ["f", "g"]


@pytest.mark.parametrize("later", [['{"a": 1}'], ['{"a"', ": 1}"]])
def test_arguments_may_have_a_placeholder_before_them(later: list[str]) -> None:
    """As Gemini and Bedrock send them behind some proxies."""
    pieces = [call(args=piece) for piece in later]
    chunks = adapted(call(name="f", id="c1", args="{}"), *pieces, event(finish="tool_calls"))
    assert [each["args"] for each in payloads(chunks, "tool-call")] == [{"a": 1}]


def test_a_call_may_be_an_object_where_others_have_a_list() -> None:
    """As the older ones of Hugging Face's TGI tell them, without an id."""
    told = [{"name": "f", "arguments": '{"a": '}, {"name": None, "arguments": "1}"}]
    events = [event(tool_calls={"index": 0, "id": "", "function": function}) for function in told]
    [payload] = payloads(adapted(*events, event(finish="tool_calls")), "tool-call")
    assert payload == {"toolCallId": "resp-1-0", "toolName": "f", "args": {"a": 1}}


def test_ids_may_be_numbers() -> None:
    entries = [{"index": n, "id": n, "function": {"name": "f", "arguments": "{}"}} for n in range(2)]
    chunks = adapted(*(event(tool_calls=[entry]) for entry in entries), event(finish="tool_calls"))
    assert [each["toolCallId"] for each in payloads(chunks, "tool-call")] == ["0", "1"]


@pytest.mark.parametrize("delta", [{}, {"delta": None}, {"delta": {}}])
def test_an_answer_may_come_whole_in_a_stream(delta: dict[str, Any]) -> None:
    function = {"name": "f", "arguments": "{}"}
    message = {"content": "Hi", "tool_calls": [{"id": "c1", "function": function}]}
    choice = {"index": 0, **delta, "message": message, "finish_reason": "tool_calls"}
    chunks = adapted({"choices": [choice]})
    assert types(chunks) == ["text-start", "text-delta", "text-end", "tool-call"]
    growing = {"choices": [{**choice, "finish_reason": None}]}  # as Perplexity repeats what there is
    again = adapted(growing, event(content="Hi"), call(name="f", id="c1", args="{}"), {"choices": [choice]})
    assert types(again) == types(chunks)


def test_a_whole_call_comes_before_the_hidden_thought_after_it() -> None:
    """LiteLLM's reader of Bedrock tells the arguments of a call that has none again at the end of each later block."""
    hidden = {"type": "redacted_thinking", "data": "R"}
    chunks = adapted(
        call(name="f", id="c1"),
        call(args="{}"),
        event(thinking_blocks=[hidden]),
        call(args="{}"),
        event(finish="tool_calls"),
    )
    assert types(chunks)[-2:] == ["tool-call", "redacted-reasoning"]
    assert payloads(chunks, "tool-call")[0]["args"] == {}


def test_text_ends_before_a_call_begins() -> None:
    chunks = adapted(event(content="look"), call(name="f", id="c1", args="{}"), event(finish="tool_calls"))
    assert types(chunks) == ["text-start", "text-delta", "text-end", "tool-call"]


def test_a_whole_call_comes_before_the_text_after_it() -> None:
    chunks = adapted(call(name="f", id="c1", args="{}"), event(content="done"))
    assert types(chunks) == ["tool-call", "text-start", "text-delta", "text-end"]


def test_calls_that_share_an_index_are_told_apart_by_their_ids() -> None:
    chunks = adapted(call(name="f", id="c1", args='{"a":1}'), call(name="f", id="c2", args='{"a":2}'))
    assert [(each["toolCallId"], each["args"]) for each in payloads(chunks, "tool-call")] == [
        ("c1", {"a": 1}),
        ("c2", {"a": 2}),
    ]


@pytest.mark.parametrize("pieces", [["{}"], ["", '{"x"', ":2}"]])
def test_of_two_calls_with_one_id_the_first_counts(pieces: list[str]) -> None:
    """R-CH-6; the arguments of both together are no JSON."""
    first, *rest = pieces
    again = [call(1, name="f", id="c1", args=first), *(call(1, args=piece) for piece in rest)]
    chunks = adapted(call(0, name="f", id="c1", args='{"x":1}'), *again, event(finish="tool_calls"))
    assert types(chunks) == ["tool-call"]
    assert payloads(chunks, "tool-call")[0]["args"] == {"x": 1}


def test_calls_may_interleave() -> None:
    chunks = adapted(
        call(0, name="f", id="c1", args='{"a"'),
        call(1, name="g", id="c2", args='{"b"'),
        call(0, args=":1}"),
        call(1, args=":2}"),
        event(finish="tool_calls"),
    )
    assert [(each["toolCallId"], each["args"]) for each in payloads(chunks, "tool-call")] == [
        ("c1", {"a": 1}),
        ("c2", {"b": 2}),
    ]


def test_calls_without_an_index_are_known_by_their_place() -> None:
    chunks = adapted(
        event(tool_calls=[{"id": name, "function": {"name": name, "arguments": ""}} for name in "fg"]),
        event(tool_calls=[{"function": {"arguments": args}} for args in ('{"a":1}', '{"b":2}')]),
        event(finish="tool_calls"),
    )
    assert [each["args"] for each in payloads(chunks, "tool-call")] == [{"a": 1}, {"b": 2}]


def test_an_afterthought_to_a_call_that_has_ended_is_dropped() -> None:
    chunks = adapted(
        call(0, name="f", id="c1", args="{}"),
        call(1, name="g", id="c2", args="{}"),
        call(0, args=" "),
        call(0, id="c1"),
    )
    assert [each["toolCallId"] for each in payloads(chunks, "tool-call")] == ["c1", "c2"]


def test_nameless_calls_get_ids_of_their_response() -> None:
    whole = {"function": {"name": "f", "arguments": "{}"}}
    chunks = adapted(event(tool_calls=[{"index": 0, **whole}, {"index": 1, **whole}]))
    assert [each["toolCallId"] for each in payloads(chunks, "tool-call")] == ["resp-1-0", "resp-1-1"]


@pytest.mark.parametrize("told", [{}, {"index": 0}, {"index": 0, "id": ""}])
def test_calls_without_ids_are_told_apart_by_their_whole_arguments(told: dict[str, Any]) -> None:
    def named(name: str, args: str) -> dict[str, Any]:
        return {**told, "function": {"name": name, "arguments": args}}

    chunks = adapted(
        event(tool_calls=[named("f", '{"x":1}'), named("g", '{"x"')]),
        event(tool_calls=[named("g", ":2}")]),
        event(finish="tool_calls"),
    )
    assert [
        (each["toolCallId"], each["toolName"], each["args"]) for each in payloads(chunks, "tool-call")
    ] == [
        ("resp-1-0", "f", {"x": 1}),
        ("resp-1-1", "g", {"x": 2}),
    ]


def test_a_call_may_be_a_function_call() -> None:
    chunks = adapted(
        event(function_call={"name": "f", "arguments": ""}),
        event(function_call={"arguments": '{"a"'}),
        event(function_call={"arguments": ":1}"}),
        event(finish="function_call"),
    )
    assert payloads(chunks, "tool-call") == [{"toolCallId": "resp-1-0", "toolName": "f", "args": {"a": 1}}]


def test_a_name_said_again_with_nothing_to_add_is_no_call() -> None:
    chunks = adapted(call(name="f", args="{}"), call(name="f"), event(finish="tool_calls"))
    assert types(chunks) == ["tool-call"]


def test_an_id_of_every_delta_its_own_does_not_begin_calls() -> None:
    chunks = adapted(
        call(name="f", id="c1"),
        call(id="c1x", args='{"a"'),
        call(id="c1y", args=":1}"),
        event(finish="tool_calls"),
    )
    assert payloads(chunks, "tool-call") == [{"toolCallId": "c1", "toolName": "f", "args": {"a": 1}}]


@pytest.mark.parametrize("text", ['{"x": ', '{"x": 123456789012345678901}'])
def test_arguments_that_are_no_json_or_do_not_travel_are_given_as_text(text: str) -> None:
    [payload] = payloads(adapted(call(name="f", id="c1", args=text), event(finish="tool_calls")), "tool-call")
    assert payload == {"toolCallId": "c1", "toolName": "f", "argsText": text}


def test_arguments_that_end_too_early_are_closed() -> None:
    [payload] = payloads(
        adapted(call(name="f", id="c1", args='{"x": [1'), event(finish="tool_calls")), "tool-call"
    )
    assert payload["args"] == {"x": [1]}


@pytest.mark.parametrize(
    "reason",
    [
        "length",
        "max_tokens",
        "MAX_TOKENS",
        "model_length",
        "model_context_window_exceeded",
        "content_filter",
        "a reason of its own",
        None,
    ],
)
def test_arguments_of_an_answer_that_was_cut_off_are_not_repaired(reason: str | None) -> None:
    [payload] = payloads(
        adapted(call(name="f", id="c1", args='{"amount": 12'), event(finish=reason)), "tool-call"
    )
    assert "args" not in payload
    assert payload["argsText"] == '{"amount": 12'


def test_a_calls_own_metadata_goes_along() -> None:
    entry = {
        "index": 0,
        "id": "c1",
        "function": {"name": "f", "arguments": "{}"},
        "provider_specific_fields": {"thought_signature": "S"},
    }
    [payload] = payloads(adapted(event(tool_calls=[entry])), "tool-call")
    assert payload["providerMetadata"] == {"openai": {"thought_signature": "S"}}


ARGUMENTS = st.dictionaries(
    st.text(max_size=5),
    st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8) | st.lists(st.booleans(), max_size=3),
    max_size=4,
)


@given(ARGUMENTS, st.data())
def test_any_split_of_the_arguments_gives_the_same_call(
    arguments: dict[str, Any], data: st.DataObject
) -> None:
    text = json.dumps(arguments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    edges = [0, *cuts, len(text)]
    first, *rest = [text[start:end] for start, end in pairwise(edges)]
    chunks = adapted(
        call(name="f", id="c1", args=first), *(call(args=piece) for piece in rest), event(finish="tool_calls")
    )
    assert payloads(chunks, "tool-call") == [{"toolCallId": "c1", "toolName": "f", "args": arguments}]
    deltas = payloads(chunks, "tool-call-delta")
    streamed = types(chunks) != ["tool-call"]
    assert streamed == any(rest)
    assert "".join(delta["argsTextDelta"] for delta in deltas) == (text if streamed else "")


STEPS = st.lists(
    st.sampled_from(["text", "reasoning", "whole", "begin", "more"]),
    max_size=12,
)


@given(STEPS)
def test_any_order_of_events_keeps_the_order_guarantees(steps: list[str]) -> None:
    events, begun = [], 0
    for step in steps:
        if step == "text":
            events.append(event(content="t"))
        elif step == "reasoning":
            events.append(event(reasoning_content="r"))
        elif step == "more":
            events.append(call(max(begun - 1, 0), args=" "))
        else:
            events.append(call(begun, name="f", id=f"c{begun}", args="{}" if step == "whole" else ""))
            begun += 1
    chunks = adapted(*events, event(finish="tool_calls"))
    assert [each["toolCallId"] for each in payloads(chunks, "tool-call")] == [
        f"c{number}" for number in range(begun)
    ]
    opened: list[str] = []
    for chunk in content(chunks):
        kind, _, phase = chunk["type"].rpartition("-")
        if kind in ("text", "reasoning"):
            if phase == "start":
                assert not opened
                opened.append(chunk["payload"]["id"])
            else:
                assert opened == [chunk["payload"]["id"]]
                opened = [] if phase == "end" else opened
        else:
            assert not opened
    assert not opened


# --- sources, files, raw ---------------------------------------------------------------------


def test_citations_become_sources() -> None:
    cited = {"type": "url_citation", "url_citation": {"url": "https://x.org", "title": "X", "start_index": 0}}
    other = {"type": "url_citation", "url_citation": {"url": "https://y.org"}}
    chunks = adapted(event(content="see"), event(annotations=[cited, other, {"type": "file_citation"}]))
    assert payloads(chunks, "source") == [
        {"id": "src-0", "sourceType": "url", "url": "https://x.org", "title": "X"},
        {"id": "src-1", "sourceType": "url", "url": "https://y.org", "title": ""},
    ]


def test_pages_that_come_with_the_usage_become_sources_once() -> None:
    found = [{"title": "X", "url": "https://x.org", "date": None}]
    named: list[dict[str, Any]] = [
        {"citations": ["https://x.org", "https://x.org"], "search_results": found},
        {"citations": ["https://x.org", "https://y.org", {"url": 1}]},
        {"citations": {"https://z.org": 1}},
    ]
    chunks = adapted(*({**event(content="a"), "usage": {"prompt_tokens": 1}, **pages} for pages in named))
    assert payloads(chunks, "source") == [
        {"id": "src-0", "sourceType": "url", "url": "https://x.org", "title": "X"},
        {"id": "src-1", "sourceType": "url", "url": "https://y.org", "title": ""},
    ]
    told = ["text-start", "text-delta", "source", "text-delta", "source", "text-delta", "text-end"]
    assert types(chunks) == told


def test_content_may_be_a_list_of_parts() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "thinking", "thinking": []},
        "b",
        {"type": "text", "text": "c"},
    ]
    assert payloads(adapted(event(content=parts)), "text-delta") == [{"id": "txt-0", "text": "ac"}]


def test_a_part_of_content_may_be_a_thought() -> None:
    def thinking(text: str) -> dict[str, Any]:
        return {"type": "thinking", "thinking": [{"type": "text", "text": text}], "closed": True}

    told = [event(content=[thinking("h")]), event(content=[thinking("m"), {"type": "text", "text": "a"}])]
    chunks = adapted(*told, event(content="b"))
    assert [payload["text"] for payload in payloads(chunks, "reasoning-delta")] == ["h", "m"]
    assert [payload["text"] for payload in payloads(chunks, "text-delta")] == ["a", "b"]


@pytest.mark.parametrize(
    "strange",
    [{"content": 5}, {"annotations": {"x": 1}}, {"images": ["x"]}, {"tool_calls": "c1"}],
    ids=str,
)
def test_what_has_another_shape_is_left_out(strange: dict[str, Any]) -> None:
    assert types(adapted(event(content="a"), event(**strange), event(content="b", finish="stop"))) == [
        "text-start",
        "text-delta",
        "text-delta",
        "text-end",
    ]


def test_a_reason_that_is_no_word_is_none() -> None:
    chunks = adapted(event(content="a", finish={"type": "stop"}))  # type: ignore[arg-type]
    assert finish(chunks)["stepResult"] == {"reason": "other"}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("MALFORMED_FUNCTION_CALL", {"reason": "error", "rawReason": "MALFORMED_FUNCTION_CALL"}),
        ("pause_turn", {"reason": "other", "rawReason": "pause_turn"}),
        ("end_turn", {"reason": "stop"}),
    ],
)
def test_what_the_provider_said_is_told_where_it_says_more(said: str, told: dict[str, str]) -> None:
    assert finish(adapted(event(content="a", finish=said)))["stepResult"] == told


def test_images_become_files() -> None:
    drawn = {"type": "image_url", "image_url": {"url": "data:image/webp;base64,QUJD"}}
    linked = {"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}
    assert payloads(adapted(event(images=[drawn, linked])), "file") == [
        {"data": "QUJD", "base64": "QUJD", "mimeType": "image/webp"},
        {"data": "https://x.org/a.png", "mimeType": "image/*"},
    ]


def test_raw_events_on_demand() -> None:
    first, last = event(content="a"), event(finish="stop")
    assert payloads(adapted(first, last, include_raw=True), "raw") == [first, last]
    assert payloads(adapted(first, last), "raw") == []


# --- the end ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_reason", "expected"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("tool_calls", "tool-calls"),
        ("function_call", "tool-calls"),
        ("content_filter", "content-filter"),
        ("error", "error"),
        ("malformed_model_output", "error"),
        ("end_turn", "stop"),
        ("tool_use", "tool-calls"),
        ("max_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("model_length", "length"),
        ("model_context_window_exceeded", "length"),
        ("eos", "stop"),
        ("sensitive", "content-filter"),
        ("insufficient_system_resource", "other"),
        (None, "other"),
    ],
)
def test_reasons(given_reason: str | None, expected: str) -> None:
    assert finish(adapted(event(content="a"), event(finish=given_reason)))["stepResult"]["reason"] == expected


def test_a_provider_that_says_stop_all_the_time_is_heard_at_the_end() -> None:
    chunks = adapted(
        event(content="a", finish="stop"), event(content="b", finish="stop"), event(finish="length")
    )
    assert finish(chunks)["stepResult"] == {"reason": "length"}
    assert types(chunks) == ["text-start", "text-delta", "text-delta", "text-end"]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (("tool_calls", "content_filter"), "content-filter"),
        (("tool_calls", "length"), "length"),
        (("tool_calls", "stop"), "tool-calls"),
        (("length", "stop"), "length"),
    ],
)
def test_the_last_reason_that_says_something_counts(told: tuple[str, str], expected: str) -> None:
    """Azure tells late that its filter stopped the answer, and LiteLLM makes up a reason for every call of Gemini."""
    chunks = adapted(event(content="a"), *(event(finish=reason) for reason in told))
    assert finish(chunks)["stepResult"] == {"reason": expected}


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([], {"inputTokens": None, "outputTokens": None, "totalTokens": None}),
        (
            [{"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 17}],
            {"inputTokens": 10, "outputTokens": 5, "totalTokens": 17},
        ),
        (
            [{"prompt_tokens": 10, "completion_tokens": 5}],
            {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15},
        ),
        ([{"prompt_tokens": 10}], {"inputTokens": 10, "outputTokens": None, "totalTokens": 10}),
        (
            [{"prompt_tokens": 10, "completion_tokens": 1}, {"prompt_tokens": 0, "completion_tokens": 5}],
            {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15},
        ),
        (
            [{"prompt_tokens": 0, "completion_tokens": 0}],
            {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0},
        ),
        (
            [
                {
                    "prompt_tokens": 10,
                    "completion_tokens": 5,
                    "prompt_tokens_details": {"cached_tokens": 8, "cache_creation_tokens": 2},
                    "completion_tokens_details": {"reasoning_tokens": 3},
                }
            ],
            {
                "inputTokens": 10,
                "outputTokens": 5,
                "totalTokens": 15,
                "reasoningTokens": 3,
                "cachedInputTokens": 8,
                "cacheCreationInputTokens": 2,
            },
        ),
        (
            [{"prompt_tokens": 10, "reasoning_tokens": 3, "prompt_cache_hit_tokens": 8}],
            {
                "inputTokens": 10,
                "outputTokens": None,
                "totalTokens": 10,
                "reasoningTokens": 3,
                "cachedInputTokens": 8,
            },
        ),
        (
            [{"prompt_tokens": 10, "reasoning_tokens": 0, "cache_read_input_tokens": 8}],
            {"inputTokens": 10, "outputTokens": None, "totalTokens": 10, "cachedInputTokens": 8},
        ),
        *(
            (
                [{"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 0, name: 2}}],
                {
                    "inputTokens": 10,
                    "outputTokens": None,
                    "totalTokens": 10,
                    "cachedInputTokens": 0,
                    "cacheCreationInputTokens": 2,
                },
            )
            for name in ("cache_write_tokens", "cache_creation_input_tokens")
        ),
        (
            [{"prompt_tokens": "10", "completion_tokens": 5.0, "total_tokens": [1]}],
            {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15},
        ),
        (
            [
                {"prompt_tokens": 10, "prompt_tokens_details": 8},
                {"prompt_tokens_details": {"cached_tokens": 8}},
            ],
            {"inputTokens": 10, "outputTokens": None, "totalTokens": 10, "cachedInputTokens": 8},
        ),
        ([[1]], {"inputTokens": None, "outputTokens": None, "totalTokens": None}),
    ],
)
def test_usage(reports: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    chunks = adapted(event(content="a"), *(event(usage=report) for report in reports))
    assert finish(chunks)["output"] == {"usage": expected}


def test_usage_may_be_told_in_the_choice() -> None:
    """As Moonshot does, and where it puts the cached tokens."""
    told = event(finish="stop")
    told["choices"][0]["usage"] = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "cached_tokens": 8,
    }
    usage = finish(adapted(event(content="a"), told))["output"]["usage"]
    assert usage == {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15, "cachedInputTokens": 8}


def test_metadata_of_the_provider_is_given_at_the_end() -> None:
    chunks = adapted(
        event(content="a"), {**event(finish="stop"), "provider_specific_fields": {"tier": "flex"}}
    )
    assert finish(chunks)["metadata"] == {"providerMetadata": {"openai": {"tier": "flex"}}}


def test_an_event_that_says_nothing_yet_is_not_the_response() -> None:
    adapter = ChunkAdapter("openai")
    assert adapter.feed({"choices": [{"delta": {"content": ""}}], "usage": {"prompt_tokens": 1}}) == []
    assert [chunk["type"] for chunk in adapter.feed(event(content=""))] == ["response-metadata"]


@pytest.mark.parametrize("created", [None, "soon", 10**15, -1])
def test_a_strange_time_is_left_out(created: Any) -> None:
    chunks = adapted({**event(content="a"), "created": created})
    assert chunks[0] == {"type": "response-metadata", "payload": {"id": "resp-1", "modelId": "demo-1"}}


def test_lone_surrogates_do_not_leave_the_adapter() -> None:
    chunks = adapted(event(content="a\ud83d"), call(name="f", id="c1", args='{"x": "\ud83d'), call(args='"}'))
    json.dumps(chunks, ensure_ascii=False).encode()


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("strange", [nested(300), 2**70, float("nan")], ids=["deep", "long", "nan"])
def test_what_a_provider_tells_of_its_own_can_travel_on(strange: Any) -> None:
    """It would fail whoever writes it again, and the model would be asked once more."""
    own = {"provider_specific_fields": {"own": strange, "known": 1}}
    called = event(tool_calls=[{"id": "c1", "function": {"name": "t", "arguments": "{}"}, **own}])
    chunks = adapted({**event(content="a"), **own, "x": strange}, called, include_raw=True)
    orjson.dumps(chunks)
    (call_payload,) = payloads(chunks, "tool-call")
    for told in (finish(chunks)["metadata"], call_payload):
        fields = told["providerMetadata"]["openai"]
        assert fields["known"] == 1
        assert isinstance(fields["own"], str)
    assert isinstance(payloads(chunks, "raw")[0]["x"], str)


@pytest.mark.parametrize("name", [["t"], {"t": 1}, 5])
def test_the_name_of_a_tool_is_a_text(name: Any) -> None:
    with pytest.raises(TypeError, match="the name of a tool is not a string"):
        adapted(event(tool_calls=[{"id": "c1", "function": {"name": name, "arguments": "{}"}}]))
