import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from procession_services.demo_model import Server, serve

Ask = Callable[..., Awaitable[list[Any]]]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with await serve(pace_ms=0) as server:
        yield server


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
        yield client


@pytest.fixture
def ask(http: httpx.AsyncClient) -> Ask:
    """Streams one chat completion and returns its events; "[DONE]" is the text."""

    async def stream(model: str, content: Any = "hi", *, headers: Any = None, **body: Any) -> list[Any]:
        body = {"messages": [{"role": "user", "content": content}]} | body
        body |= {"model": model, "stream": True, "stream_options": {"include_usage": True}}
        response = await http.post("/v1/chat/completions", json=body, headers=headers)
        response.raise_for_status()
        lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    return stream
