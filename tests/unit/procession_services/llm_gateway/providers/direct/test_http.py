"""Requests go over kept connections, as long as the provider is likely to keep them too."""

import asyncio
import os
import subprocess
import sys
from contextlib import aclosing, asynccontextmanager

import orjson
import pytest

from procession_services.llm_gateway.providers import litellm_provider
from procession_services.llm_gateway.providers.direct.http import Connections, Request, direct_events

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\ndata: {}\n\n"

LITELLMS = """
from procession_services.llm_gateway.providers.litellm_provider import _litellm
_litellm()
from litellm.llms.custom_httpx.http_handler import AIOHTTP_KEEPALIVE_TIMEOUT
print(AIOHTTP_KEEPALIVE_TIMEOUT)
"""


@asynccontextmanager
async def provider():
    """Yields a request to a provider, and for each request the number of the connection over which it came."""
    numbers, connections = [], []

    async def serve(reader, writer):
        connections.append(writer)
        number = len(connections)
        async with aclosing(requests(reader)) as heads:
            async for _ in heads:
                numbers.append(number)
                writer.write(ANSWER)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        yield Request(f"http://127.0.0.1:{port}/", {}, b"{}", orjson.loads), numbers


async def requests(reader):
    while not reader.at_eof():
        try:
            yield await reader.readuntil(b"{}")
        except asyncio.IncompleteReadError:
            return


@pytest.mark.parametrize(("seconds", "over"), [(4, [1, 1, 1]), (0, [1, 2, 3])], ids=["kept", "too old"])
async def test_an_idle_connection_is_used_again_while_it_is_young(seconds, over, monkeypatch):
    litellm_provider._litellm()  # else it is imported with its own settings, which ask the network
    monkeypatch.setattr("litellm.constants.AIOHTTP_KEEPALIVE_TIMEOUT", seconds)
    connections = Connections()
    async with provider() as (request, numbers):
        for _ in range(3):
            assert [batch async for batch in direct_events(request, connections)] == [[{}]]
        await connections.aclose()

    assert numbers == over


@pytest.mark.parametrize(("said", "kept"), [({}, 4), ({"AIOHTTP_KEEPALIVE_TIMEOUT": "60"}, 60)])
def test_idle_connections_are_young_unless_the_environment_says_otherwise(said, kept):
    """LiteLLM's own two minutes would lose what is asked of servers that close theirs after five seconds."""
    told = subprocess.run(
        [sys.executable, "-c", LITELLMS], env={**os.environ, **said}, capture_output=True, check=True
    )
    assert int(told.stdout) == kept
