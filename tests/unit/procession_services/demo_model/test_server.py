import asyncio
import json
import os
import sys
from typing import Any

import httpx
import openai
import pytest

from procession_services.demo_model import Server, serve


async def stats(http: httpx.AsyncClient) -> dict[str, Any]:
    return dict((await http.get("/mock/stats")).json())


async def test_stats_count_and_reset(http: httpx.AsyncClient) -> None:
    for model, stream in (("mock:chunks=3", True), ("mock:err=500", True), ("demo", False)):
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": stream}
        await http.post("/v1/chat/completions", json=body)
    counted = await stats(http)
    assert counted["requests"] == 3
    assert counted["chunks"] == 3
    assert counted["bytes"] > 500
    assert counted["http_errors"] == 1
    assert counted["mid_errors"] == counted["open"] == counted["cancelled"] == 0
    assert counted["max_open"] == 1
    assert counted["cpu_s"] > 0
    assert counted["rss_kb"] > 1000
    assert counted["pid"] == os.getpid()
    await http.post("/mock/reset")
    assert (await stats(http))["requests"] == 0


async def test_a_client_that_leaves_cancels_its_answer(server: Server, http: httpx.AsyncClient) -> None:
    body = {"model": "mock:chunks=100000,delay=1", "messages": [], "stream": True}
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        await anext(response.aiter_bytes())
        assert (await stats(http))["open"] == 1
    async with asyncio.timeout(20):
        while (now := await stats(http))["open"]:
            pass
    assert now["cancelled"] == 1
    assert 0 < now["chunks"] < 100_000


async def test_a_client_that_does_not_read_holds_its_answer_back(
    server: Server, http: httpx.AsyncClient
) -> None:
    chunks = 30_000
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
    body = b'{"model": "mock:chunks=%d,bytes=1000", "stream": true, "messages": []}' % chunks
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    unchanged, before = 0, 0
    async with asyncio.timeout(20):
        while unchanged < 20:  # each round trip gives the stream a turn
            now = (await stats(http))["chunks"]
            unchanged, before = (unchanged + 1 if now == before > 0 else 0), now
    assert before < chunks
    writer.close()


async def test_many_answers_run_at_once(server: Server, http: httpx.AsyncClient) -> None:
    body = {"model": "mock:chunks=5,delay=100", "messages": [], "stream": True}
    answers = await asyncio.gather(*(http.post("/v1/chat/completions", json=body) for _ in range(20)))
    assert all(answer.text.count('"content":"') == 6 for answer in answers)
    assert server.stats.max_open == 20


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "message"),
    [
        ("POST", "/v1/chat/completions", b"{", 400, "the body is not JSON"),
        ("POST", "/v1/chat/completions", b"[]", 400, "not a JSON object"),
        ("POST", "/v1/chat/completions", b"{}", 400, "messages: expected a list"),
        ("POST", "/v1/chat/completions", b'{"messages": ["a"]}', 400, "messages: expected a list"),
        ("POST", "/mock/script", b"{}", 400, "id: expected a string"),
        ("GET", "/v1/chat/completions", b"", 404, "no route GET /chat/completions"),
        ("POST", "/v1/messages", b"{}", 404, "this model speaks OpenAI's chat protocol: name it openai/..."),
        ("GET", "/mock/script/none", b"", 404, "no script 'none'"),
    ],
)
async def test_wrong_requests_are_told_so(
    http: httpx.AsyncClient, *, method: str, path: str, content: bytes, status: int, message: str
) -> None:
    response = await http.request(method, path, content=content)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]


async def test_equal_requests_get_equal_bytes() -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    answers = []
    for _ in range(2):
        async with await serve(pace_ms=0) as server, httpx.AsyncClient(trust_env=False) as http:
            url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
            answers.append((await http.post(url, json=body)).content)
    assert answers[0] == answers[1]


async def test_close_cuts_what_is_open_and_may_be_repeated() -> None:
    server = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = b'{"model": "mock:delay=1000", "stream": true, "messages": []}'
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await reader.readuntil(b"\r\n\r\n")
    await server.close()
    await server.close()
    assert b"[DONE]" not in await reader.read()
    writer.close()
    assert server.stats.open == 0
    with pytest.raises(RuntimeError, match="does not listen"):
        _ = server.port


async def test_openais_sdk_understands_the_answers(server: Server) -> None:
    tool = {"id": "c1", "name": "echo", "arguments": {"text": "some longer text for pieces"}}
    calls = [
        {"chunks": ["He", "llo"], "tool_calls": [tool], "stream_tool_input": True},
        {"chunks": ["a"], "mid_error": {"message": "died"}},
        {"error": {"status": 429, "message": "slow down", "retryable": False}},
    ]
    server.scripts.add("s", calls)
    url = f"http://127.0.0.1:{server.port}/v1"
    async with openai.AsyncOpenAI(
        base_url=url, api_key="x", http_client=httpx.AsyncClient(trust_env=False)
    ) as sdk:

        async def ask() -> Any:
            return await sdk.chat.completions.create(
                model="script:s",
                messages=[{"role": "user", "content": "hi"}],
                stream=True,
                stream_options={"include_usage": True},
            )

        chunks = [chunk async for chunk in await ask()]
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
        assert "".join(choice.delta.content or "" for choice in choices) == "Hello"
        parts = [part for choice in choices for part in choice.delta.tool_calls or ()]
        assert parts[0].id == "c1"
        assert json.loads("".join(part.function.arguments for part in parts)) == tool["arguments"]
        assert choices[-1].finish_reason == "tool_calls"
        assert chunks[-1].usage.total_tokens == 15
        with pytest.raises(openai.APIError, match="died"):
            _ = [chunk async for chunk in await ask()]
        with pytest.raises(openai.RateLimitError, match="slow down"):
            await ask()
        assert server.stats.requests == 3  # the SDK obeyed x-should-retry: false
        vectors = await sdk.embeddings.create(model="any", input=["a", "b"])
        assert [len(item.embedding) for item in vectors.data] == [256, 256]
        assert [model.id async for model in sdk.models.list()] == ["demo", "mock", "script:s"]


async def test_the_program_tells_its_port_and_ends_on_sigterm() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "procession_services.demo_model",
        *("--port", "0", "--pace-ms", "0"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    ready = json.loads(await asyncio.wait_for(process.stdout.readline(), 20))
    assert ready == {"ready": True, "port": ready["port"]}
    async with httpx.AsyncClient(trust_env=False) as http:
        counted = await http.get(f"http://127.0.0.1:{ready['port']}/mock/stats")
    assert counted.json()["pid"] == process.pid
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 20) == 0
