import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from procession_services.demo_model import Server
from procession_services.demo_model.synthetic import Load, SyntheticText, load_of

Ask = Callable[..., Awaitable[list[Any]]]
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {}}}


def texts(events: list[Any]) -> list[str]:
    choices = [event["choices"][0] for event in events if event != "[DONE]" and event.get("choices")]
    return [choice["delta"]["content"] for choice in choices if choice["delta"].get("content")]


def calls_of(events: list[Any]) -> list[Any]:
    choices = [event["choices"][0] for event in events if event != "[DONE]" and event.get("choices")]
    return [call for choice in choices for call in choice["delta"].get("tool_calls", ())]


async def test_the_default_is_a_hundred_chunks_of_twenty_bytes(server: Server, ask: Ask) -> None:
    chunks = texts(await ask("mock:"))
    assert [len(chunk) for chunk in chunks] == [20] * 100
    assert len(set(chunks)) > 1
    assert server.stats.chunks == 100
    assert texts(await ask("mock")) == chunks


def test_keys_come_from_message_model_and_header_and_the_later_win() -> None:
    messages = [
        {"role": "user", "content": 'say [[mock chunks=1 bytes=2 delay=3 tool_args={"a": 1}]] please'}
    ]
    load = load_of("bytes=20,delay=30,", "delay=300; ttft=4", messages)
    assert load == Load(chunks=1, bytes=20, delay=300, ttft=4, tool_args='{"a": 1}')
    assert load_of(None, None, [{"role": "user", "content": "hi"}]) is None
    assert load_of(None, None, messages) == Load(chunks=1, bytes=2, delay=3, tool_args='{"a": 1}')


def test_json_values_may_contain_the_separator() -> None:
    load = load_of('tool_args={"x":1,"y":[2,3]},chunks=4', None, [])
    assert load == Load(tool_args='{"x":1,"y":[2,3]}', chunks=4)


@pytest.mark.parametrize("content", ["[[mock chunks=2]]", [{"type": "text", "text": "[[mock chunks=2]]"}]])
async def test_a_message_or_a_header_configures_any_model(ask: Ask, content: Any) -> None:
    assert len(texts(await ask("gpt-9", content))) == 2
    assert len(texts(await ask("gpt-9", content, headers={"x-mock": "chunks=3"}))) == 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("chunk=3", "mock key chunk: unknown key; did you mean 'chunks'?"),
        ("chunks=many", "mock key chunks: Input should be a valid integer"),
        ("err=200", "mock key err"),
        ("mid_kind=boom", "mock key mid_kind"),
        ("garbled", "mock key garbled"),
    ],
)
async def test_a_wrong_key_is_a_bad_request_that_names_it(
    http: httpx.AsyncClient, keys: str, message: str
) -> None:
    body = {"model": f"mock:{keys}", "messages": []}
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


async def test_stamps_tell_the_time_of_sending(ask: Ask) -> None:
    before = time.monotonic_ns()
    chunks = texts(await ask("mock:chunks=3,delay=50,ts=1,bytes=40"))
    after = time.monotonic_ns()
    assert [len(chunk) for chunk in chunks] == [40] * 3
    stamps = [int(re.match(r"@(\d+)@x+$", chunk)[1]) for chunk in chunks]  # type: ignore[index]
    assert before < stamps[0] < stamps[1] < stamps[2] < after
    assert stamps[2] - before >= 98_000_000  # the first one may be late, and the others make up for it


async def test_the_first_chunk_waits_and_the_others_are_paced(http: httpx.AsyncClient) -> None:
    for stream in (True, False):
        body: dict[str, Any] = {"model": "mock:chunks=4,ttft=20,delay=10", "messages": [], "stream": stream}
        response = await http.post("/v1/chat/completions", json=body)
        assert response.elapsed.total_seconds() >= 0.048


async def test_coalesced_chunks_share_a_write(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = b'{"model": "mock:chunks=10,coalesce=4", "stream": true, "messages": []}'
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await reader.readuntil(b"\r\n\r\n")
    frames = []
    while size := int(await reader.readline(), 16):
        frames.append(await reader.readexactly(size + 2))
    writer.close()
    assert [frame.count(b"data: ") for frame in frames] == [1, 4, 4, 2, 2]


async def test_tool_steps_come_first_and_then_the_answer(ask: Ask) -> None:
    first = await ask("mock:tools=1,chunks=2,tool_calls=2,tool_text=3", tools=[TOOL])
    assert len(texts(first)) == 3
    heads = [call for call in calls_of(first) if "id" in call]
    assert [(call["index"], call["id"], call["function"]["name"]) for call in heads] == [
        (0, "call_0_0", "look_up"),
        (1, "call_0_1", "look_up"),
    ]
    arguments = [call["function"]["arguments"] for call in calls_of(first) if call["index"] == 0]
    assert "".join(arguments) == '{"x": 0}'
    assert first[-3]["choices"][0]["finish_reason"] == "tool_calls"
    turn = [{"role": "user", "content": "hi"}, {"role": "assistant"}, {"role": "tool", "content": "r"}]
    second = await ask("mock:tools=1,chunks=2", messages=turn, tools=[TOOL])
    assert len(texts(second)) == 2
    assert calls_of(second) == []
    again = await ask("mock:tools=1,chunks=2", messages=[*turn, {"role": "user", "content": "more"}])
    assert len(calls_of(again)) == 2


async def test_tool_steps_may_be_chosen_and_shaped(ask: Ask) -> None:
    keys = 'mock:tool_at=1|3,run=r,tool_name=t,tool_args={"a":1,"b":2},chunks=1'
    steps = [calls_of(await ask(keys)) for _ in range(4)]
    assert [bool(step) for step in steps] == [False, True, False, True]
    assert steps[1][0]["function"]["name"] == "t"
    assert steps[1][1]["function"]["arguments"] == '{"a":1,"b":2}'
    assert calls_of(await ask(keys.replace("run=r", "run=other"))) == []


async def test_calls_are_refused_as_configured(http: httpx.AsyncClient) -> None:
    body = {"model": "mock:err=429@0|2,run=r,chunks=1", "messages": []}
    answers = [await http.post("/v1/chat/completions", json=body) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [429, 200, 429, 200]
    assert answers[0].headers["retry-after"] == "0"
    await http.post("/mock/reset")
    assert (await http.post("/v1/chat/completions", json=body)).status_code == 429
    body["model"] = "mock:err=503"
    assert (await http.post("/v1/chat/completions", json=body)).status_code == 503


async def test_streams_break_as_configured(server: Server, ask: Ask) -> None:
    events = await ask("mock:chunks=9,mid=5@0")
    assert len(texts(events[:-1])) == 5
    assert events[-1]["error"]["message"] == "synthetic mid-stream error"
    turn = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x"}]
    assert len(texts(await ask("mock:chunks=9,mid=5@0", messages=turn))) == 9
    assert len(texts(await ask("mock:chunks=3,mid=5"))) == 3
    with pytest.raises(httpx.RemoteProtocolError):
        await ask("mock:chunks=9,mid=5,mid_kind=drop")
    assert server.stats.mid_errors == 2


async def test_reasoning_usage_and_finish_reason(http: httpx.AsyncClient, ask: Ask) -> None:
    events = await ask("mock:chunks=1,reasoning=2,pt=7,ct=8,finish=length")
    thoughts = [event["choices"][0]["delta"].get("reasoning_content") for event in events[1:3]]
    assert thoughts == ["think 0 ", "think 1 "]
    assert events[-3]["choices"][0]["finish_reason"] == "length"
    assert events[-2]["usage"] == {"prompt_tokens": 7, "completion_tokens": 8, "total_tokens": 15}
    assert "usage" not in (await ask("mock:chunks=1,usage=never"))[-2]
    body = {"model": "mock:chunks=1,usage=always", "messages": [], "stream": True}
    assert '"usage"' in (await http.post("/v1/chat/completions", json=body)).text


def test_text_is_a_sequence_of_its_chunks() -> None:
    text = SyntheticText(200, 30, stamped=False)
    assert len("".join(text)) == 6000
    assert list(text[3:5]) == [text[3], text[4]]
    assert text[-1] == text[199]
