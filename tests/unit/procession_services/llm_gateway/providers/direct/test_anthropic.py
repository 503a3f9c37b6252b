"""What LiteLLM's parser of Anthropic's events leaves out, and where a message ends."""

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest

from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider
from tests.unit.procession_services.llm_gateway.loopback import Answer, ModelServer, sse
from tests.unit.procession_services.llm_gateway.providers.replay import ANTHROPIC, Outcome, asked, outcome

BEGIN = {
    "type": "message_start",
    "message": {"id": "m", "model": "c", "usage": {"input_tokens": 9, "output_tokens": 1}},
}
LAST = {"type": "message_stop"}


def block(index: int, begin: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": begin},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


TEXT = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hi"})


def message(*events: dict[str, Any], **delta: Any) -> list[bytes]:
    end = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 3}}
    return sse(BEGIN, *events, end, LAST)


def said(answer: Outcome) -> list[Any]:
    return [chunk["payload"]["args"] for chunk in answer.chunks if chunk["type"] == "tool-call"]


@pytest.mark.parametrize(
    ("pieces", "args"),
    [((), {"a": 1}), (("",), {"a": 1}), (("", '{"a"', ": 2}"), {"a": 2})],
    ids=["alone", "with a piece of nothing", "and in pieces"],
)
async def test_arguments_may_come_with_the_name_of_the_tool(
    direct: LiteLLMProvider, pieces: tuple[str, ...], args: dict[str, Any]
) -> None:
    begin = {"type": "tool_use", "id": "tu_1", "name": "f", "input": {"a": 1}}
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    other = block(1, {**begin, "id": "tu_2", "input": {}}, {"type": "input_json_delta", "partial_json": ""})
    events = [*block(0, begin, *deltas), *other]
    answer = await outcome(direct, ANTHROPIC, Answer(message(*events, stop_reason="tool_use")))
    assert said(answer) == [args, {}]


@pytest.mark.parametrize(
    ("delta", "told"),
    [
        ({"stop_reason": "pause_turn"}, {"reason": "other", "rawReason": "pause_turn"}),
        ({"stop_reason": None}, {"reason": "other"}),
        ({}, {"reason": "other"}),
        ({"stop_reason": "refusal"}, {"reason": "content-filter"}),
    ],
)
async def test_the_reason_is_what_anthropic_says(
    direct: LiteLLMProvider, delta: dict[str, Any], told: dict[str, Any]
) -> None:
    answer = await outcome(direct, ANTHROPIC, Answer(message(*TEXT, **delta)))
    assert answer.chunks[-1]["payload"]["stepResult"] == told


@pytest.mark.parametrize("cut", [None, 7], ids=["in one read", "in two"])
async def test_nothing_is_awaited_behind_the_last_event(direct: LiteLLMProvider, cut: int | None) -> None:
    body = b"".join(message(*TEXT, stop_reason="end_turn"))
    pieces = [body] if cut is None else [body[:-cut], body[-cut:]]
    async with asyncio.timeout(20), ModelServer(Answer(pieces, end="hang")) as server:
        async with aclosing(direct.stream(asked(server, ANTHROPIC))) as answer:
            chunks = [chunk async for batch in answer for chunk in batch]
        await server.left.wait()
    assert chunks[-1]["payload"]["stepResult"]["reason"] == "stop"


async def test_an_event_at_which_litellm_fails_is_quoted(direct: LiteLLMProvider) -> None:
    broken = {"type": "content_block_delta", "index": 0, "delta": None}
    answer = await outcome(direct, ANTHROPIC, Answer(sse(BEGIN, broken)))
    said = f"the provider sent an event that cannot be read: {json.dumps(broken)}"
    assert (answer.failure["kind"], answer.failure["message"]) == ("stream", said)


async def test_a_text_may_speak_of_the_last_event(direct: LiteLLMProvider) -> None:
    speaking = {"type": "text_delta", "text": '{"type":"message_stop"}'}
    events = block(0, {"type": "text", "text": ""}, speaking, {"type": "text_delta", "text": "."})
    pieces = message(*events, stop_reason="end_turn")
    answer = await outcome(direct, ANTHROPIC, Answer(pieces))
    assert answer.brief()[1:-1] == [("text-delta", '{"type":"message_stop"}'), ("text-delta", ".")]
    assert answer.end()[0] == "stop"
