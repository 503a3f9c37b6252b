"""Requests go over kept connections, which a provider may have closed in the meantime."""

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import orjson
import pytest

from procession_services.llm_gateway.providers import litellm_provider
from procession_services.llm_gateway.providers.direct.http import Connections, Request, direct_events

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\ndata: {}\n\n\n"


@asynccontextmanager
async def provider(*answers):
    """A provider that gives the n-th request of every connection the n-th answer, or hangs up without one.

    Yields a request to it, and the numbers of the connections over which requests have come.
    """
    numbers, connections = [], []

    async def serve(reader, writer):
        connections.append(writer)
        number = len(connections)
        try:
            for answer in answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
                await reader.readexactly(int(length))
                numbers.append(number)
                writer.write(answer)
                if not answer:
                    return
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        yield Request(f"http://127.0.0.1:{port}/", {}, b"{}", orjson.loads), numbers


@asynccontextmanager
async def connections():
    litellm_provider._litellm()  # else it is imported with its own settings, which ask the network
    kept = Connections()
    try:
        yield kept
    finally:
        await kept.aclose()


async def asked(request, kept):
    return [event async for batch in direct_events(request, kept) for event in batch]


async def test_a_request_over_a_kept_connection_that_the_provider_closes_goes_over_a_new_one():
    async with provider(ANSWER, b"") as (request, numbers), connections() as kept:
        answers = [await asked(request, kept) for _ in range(3)]

    assert answers == [[{}], [{}], [{}]]
    assert numbers == [1, 1, 2, 2, 3]


async def test_a_provider_that_closes_a_new_connection_without_an_answer_is_asked_once():
    async with provider(b"") as (request, numbers), connections() as kept:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await asked(request, kept)

    assert numbers == [1]


async def test_an_answer_that_breaks_off_is_not_asked_for_again():
    half = ANSWER.replace(b": 11", b": 12")
    async with provider(ANSWER, half) as (request, numbers), connections() as kept:
        await asked(request, kept)
        with pytest.raises(aiohttp.ClientPayloadError):
            await asked(request, kept)

    assert numbers == [1, 1]
