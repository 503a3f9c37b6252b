import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from procession_services.demo_model import Server, serve
from procession_services.demo_model.scripts import ScriptBook

Ask = Callable[..., Awaitable[list[Any]]]


def deltas(events: list[Any]) -> list[Any]:
    return [event["choices"][0]["delta"] for event in events if event != "[DONE]" and event.get("choices")]


async def chat(http: httpx.AsyncClient, script: str, **body: Any) -> httpx.Response:
    messages = [{"role": "user", "content": "hi"}]
    return await http.post(
        "/v1/chat/completions", json={"model": f"script:{script}", "messages": messages} | body
    )


async def test_a_stream_has_reasoning_text_tools_finish_usage_in_this_order(server: Server, ask: Ask) -> None:
    call = {
        "reasoning": ["hm"],
        "chunks": ["He", "l\u00e9\U0001f600"],
        "tool_calls": [{"id": "c1", "name": "echo", "arguments": {"x": 1}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    server.scripts.add("s", [call])
    events = await ask("openai/script:s")
    assert deltas(events) == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"content": "He"},
        {"content": "l\u00e9\U0001f600"},
        {
            "tool_calls": [
                {
                    "index": 0,
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "echo", "arguments": '{"x":1}'},
                }
            ]
        },
        {},
    ]
    assert events[-3]["choices"][0]["finish_reason"] == "tool_calls"
    assert events[-2]["choices"] == []
    assert events[-2]["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert events[-1] == "[DONE]"
    assert {event["object"] for event in events[:-1]} == {"chat.completion.chunk"}
    assert {event["model"] for event in events[:-1]} == {"openai/script:s"}


async def test_streamed_tool_input_comes_in_pieces(server: Server, ask: Ask) -> None:
    arguments = {"text": "longer than one piece of it"}
    calls = [
        {"id": "c1", "name": "a", "arguments": arguments},
        {"id": "c2", "name": "b", "arguments": "{raw"},
    ]
    server.scripts.add("s", [{"tool_calls": calls, "stream_tool_input": True}])
    parts = [delta["tool_calls"][0] for delta in deltas(await ask("script:s")) if "tool_calls" in delta]
    heads = [part for part in parts if "id" in part]
    assert [(part["index"], part["id"], part["function"]) for part in heads] == [
        (0, "c1", {"name": "a", "arguments": ""}),
        (1, "c2", {"name": "b", "arguments": ""}),
    ]
    pieces = [part["function"]["arguments"] for part in parts if "id" not in part and part["index"] == 0]
    assert len(pieces) > 1
    assert "".join(pieces) == '{"text":"longer than one piece of it"}'
    assert [part["function"]["arguments"] for part in parts if part["index"] == 1] == ["", "{raw"]


@pytest.mark.parametrize(
    ("spelled", "sent"),
    [
        (None, "stop"),
        ("content-filter", "content_filter"),
        ("tool_calls", "tool_calls"),
        ("length", "length"),
    ],
)
async def test_the_finish_reason_is_sent_in_openais_spelling(
    server: Server, ask: Ask, spelled: str | None, sent: str
) -> None:
    server.scripts.add("s", [{"chunks": ["x"]} | ({"finish_reason": spelled} if spelled else {})])
    assert (await ask("script:s"))[-3]["choices"][0]["finish_reason"] == sent


async def test_calls_come_in_order_and_the_last_repeats(server: Server, http: httpx.AsyncClient) -> None:
    server.scripts.add("s", [{"chunks": ["a"]}, {"chunks": ["b", "c"]}])
    answers = [(await chat(http, "s")).json() for _ in range(3)]
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["a", "bc", "bc"]
    assert answers[0]["usage"] == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


async def test_a_whole_answer_has_everything(server: Server, http: httpx.AsyncClient) -> None:
    tool = {"id": "c", "name": "echo", "arguments": {"x": 1}}
    server.scripts.add("s", [{"reasoning": ["h", "m"], "tool_calls": [tool]}])
    answer = (await chat(http, "s")).json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "echo", "arguments": '{"x":1}'}}
                ],
            },
            "finish_reason": "tool_calls",
            "logprobs": None,
        }
    ]


async def test_usage_comes_only_when_it_is_asked_for(server: Server, http: httpx.AsyncClient) -> None:
    server.scripts.add("s", [{"chunks": ["a"]}])
    assert '"usage"' not in (await chat(http, "s", stream=True)).text


@pytest.mark.parametrize(
    ("error", "status", "kind", "retry"),
    [
        ({"status": 400, "message": "m"}, 400, "invalid_request_error", None),
        ({"status": 422, "message": "m"}, 422, "invalid_request_error", None),
        ({"status": 429, "message": "m", "retryable": False}, 429, "rate_limit_error", "false"),
        ({"message": "m", "retryable": True}, 500, "server_error", "true"),
    ],
)
async def test_an_error_is_an_http_error(
    server: Server, http: httpx.AsyncClient, *, error: Any, status: int, kind: str, retry: str | None
) -> None:
    server.scripts.add("s", [{"error": {**error, "headers": {"x-extra": "1"}}}])
    response = await chat(http, "s", stream=True)
    assert response.status_code == status
    assert response.json() == {"error": {"message": "m", "type": kind, "param": None, "code": None}}
    assert response.headers.get("x-should-retry") == retry
    assert response.headers["x-extra"] == "1"
    assert server.stats.http_errors == 1


async def test_a_network_error_closes_without_an_answer(server: Server, http: httpx.AsyncClient) -> None:
    server.scripts.add("s", [{"error": {"network": True}}, {"chunks": ["back"]}])
    with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
        await chat(http, "s")
    assert (await chat(http, "s")).json()["choices"][0]["message"]["content"] == "back"


async def test_an_error_event_ends_the_stream(server: Server, ask: Ask) -> None:
    server.scripts.add("s", [{"chunks": ["a", "b"], "mid_error": {"kind": "event", "message": "died"}}])
    events = await ask("script:s")
    assert [delta["content"] for delta in deltas(events)] == ["", "a", "b"]
    assert events[-1] == {"error": {"message": "died", "type": "server_error"}}
    assert server.stats.mid_errors == 1


async def test_a_drop_cuts_the_stream_after_the_text(server: Server, http: httpx.AsyncClient) -> None:
    server.scripts.add("s", [{"chunks": ["first", "second"], "mid_error": {"kind": "drop"}}])
    body = {"model": "script:s", "stream": True, "messages": []}
    received = ""

    async def read() -> None:
        nonlocal received
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            async for text in response.aiter_text():
                received += text

    with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
        await read()
    assert "first" in received
    assert "second" in received
    assert 'finish_reason":"' not in received


async def test_garbage_is_not_json_but_the_stream_ends_well(server: Server, http: httpx.AsyncClient) -> None:
    server.scripts.add("s", [{"chunks": ["a"], "mid_error": {"kind": "garbage"}}])
    lines = (await chat(http, "s", stream=True)).text.split("\n\n")
    with pytest.raises(ValueError, match="Unterminated"):
        json.loads(lines[-3].removeprefix("data: "))
    assert lines[-2] == "data: [DONE]"


async def test_a_broken_answer_that_is_not_streamed_is_an_error(
    server: Server, http: httpx.AsyncClient
) -> None:
    server.scripts.add("s", [{"mid_error": {"message": "died"}}, {"mid_error": {"kind": "drop"}}])
    response = await chat(http, "s")
    assert (response.status_code, response.json()["error"]["message"]) == (500, "died")
    with pytest.raises(httpx.RemoteProtocolError):
        await chat(http, "s")


async def test_delays_are_kept(server: Server, http: httpx.AsyncClient) -> None:
    server.scripts.add("s", [{"chunks": ["a", "b", "c"], "delay_ms": 20, "chunk_delay_ms": 10}])
    response = await chat(http, "s", stream=True)
    assert response.elapsed.total_seconds() >= 0.04


async def test_scripts_are_set_and_their_requests_read_over_http(http: httpx.AsyncClient) -> None:
    await http.post("/mock/script", json={"id": "a b", "calls": [{"chunks": ["x"]}]})
    await chat(http, "a b", temperature=0)
    await chat(http, "a b", temperature=1)
    requests = (await http.get("/mock/script/a%20b")).json()["requests"]
    assert [request["temperature"] for request in requests] == [0, 1]
    assert requests[0]["messages"] == [{"role": "user", "content": "hi"}]
    models = (await http.get("/v1/models")).json()["data"]
    assert [model["id"] for model in models] == ["demo", "mock", "script:a b"]
    await http.post("/mock/reset")
    assert (await http.get("/mock/script/a%20b")).status_code == 404
    assert (await chat(http, "a b")).status_code == 404


async def test_on_request_is_told_of_every_chat_request_before_it_is_answered() -> None:
    seen: list[Any] = []

    def note(body: dict[str, Any], script: str | None) -> None:
        seen.append((body["model"], script))

    async with await serve(pace_ms=0, on_request=note) as server:
        server.scripts.add("s", [{"error": {"status": 400}}])
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as http:
            for model in ("script:s", "openai/script:none", "demo", "mock:chunks=1"):
                body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
                await http.post("/v1/chat/completions", json=body)
    assert seen == [
        ("script:s", "s"),
        ("openai/script:none", "none"),
        ("demo", None),
        ("mock:chunks=1", None),
    ]


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([], "at least 1 item"),
        ("x", "calls: "),
        ([{"chunks": ["a"]}, {"chunk": ["a"]}], "^calls.1.chunk: unknown key; did you mean 'chunks'\\?$"),
        ([{"mid_error": {"kind": "boom"}}], "calls.0.mid_error.kind: Input should be 'event'"),
        ([{"error": {"status": 200}}], "calls.0.error.status"),
        ([{"error": {}, "chunks": ["a"]}], "`error` comes before any output"),
        ([{"mid_error": {}, "tool_calls": [{"id": "c", "name": "t"}]}], "`mid_error` comes before the tool"),
    ],
)
def test_a_wrong_script_is_refused_with_the_place(calls: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScriptBook().add("s", calls)


async def test_a_wrong_script_is_a_bad_request(http: httpx.AsyncClient) -> None:
    response = await http.post("/mock/script", json={"id": "s", "calls": []})
    assert response.status_code == 400
    assert "at least 1 item" in response.json()["error"]["message"]
