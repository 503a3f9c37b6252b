import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from procession_services.demo_model.protocol import (
    MAX_BODY,
    MAX_HEAD,
    Exchange,
    Handler,
    HttpProtocol,
    ProtocolError,
    Request,
    RequestParser,
)

POST = b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nTrailer: t\r\n\r\n"
)
GET = b"GET /g HTTP/1.1\r\n\r\n"


def parse(*parts: bytes) -> list[Request]:
    parser = RequestParser()
    return [request for part in parts for request in parser.feed(part)]


def test_a_request_is_read_whole() -> None:
    (request,) = parse(POST)
    assert request == Request("POST", "/a", {"host": "x", "content-length": "5"}, b"hello")


def test_pipelined_requests_come_in_order_however_the_bytes_are_cut() -> None:
    data = POST + CHUNKED + GET
    whole = parse(data)
    assert [(request.path, request.body) for request in whole] == [
        ("/a", b"hello"),
        ("/c", b"hello world"),
        ("/g", b""),
    ]
    assert parse(*(data[i : i + 1] for i in range(len(data)))) == whole


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY + 1), 413),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % (MAX_BODY + 1), 413),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n", 400),
        (b"a" * MAX_HEAD, 431),
    ],
)
def test_broken_http_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse(data)
    assert caught.value.status == status


@asynccontextmanager
async def connected(
    handler: Handler,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    connections: set[HttpProtocol] = set()
    listener = await asyncio.get_running_loop().create_server(
        lambda: HttpProtocol(handler, lambda status, message: message.encode(), connections), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        listener.close()
        await asyncio.gather(*(connection.shut() for connection in tuple(connections)))
        await listener.wait_closed()


async def echo(request: Request, exchange: Exchange) -> None:
    exchange.reply(200, request.path.encode() + b" " + request.body)


async def read_reply(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head, await reader.readexactly(length)


async def test_a_connection_is_kept_and_its_requests_are_answered_in_order() -> None:
    running = 0

    async def slow_first(request: Request, exchange: Exchange) -> None:
        nonlocal running
        running += 1
        assert running == 1
        for _ in range(10 if request.path == "/a" else 1):
            await asyncio.sleep(0)
        await echo(request, exchange)
        running -= 1

    async with connected(slow_first) as (reader, writer):
        writer.write(POST + CHUNKED + GET)
        bodies = [(await read_reply(reader))[1] for _ in range(3)]
        assert bodies == [b"/a hello", b"/c hello world", b"/g "]
        writer.write(GET)
        assert (await read_reply(reader))[1] == b"/g "


async def test_the_client_may_ask_to_close() -> None:
    async with connected(echo) as (reader, writer):
        writer.write(b"GET /g HTTP/1.1\r\nConnection: close\r\n\r\n" + GET)
        head, _ = await read_reply(reader)
        assert b"connection: close" in head
        assert await reader.read() == b""


async def test_broken_http_is_answered_after_the_requests_before_it_and_closes() -> None:
    async with connected(echo) as (reader, writer):
        writer.write(POST + b"nonsense\r\n\r\n")
        assert (await read_reply(reader))[1] == b"/a hello"
        head, body = await read_reply(reader)
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert body == b"not a request line: 'nonsense'"
        assert await reader.read() == b""


async def test_a_body_that_waits_for_permission_gets_it() -> None:
    async with connected(echo) as (reader, writer):
        writer.write(b"POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        assert (await read_reply(reader))[1] == b"/a hello"


async def test_the_handler_is_cancelled_when_the_client_leaves() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(_: Request, exchange: Exchange) -> None:
        exchange.open_stream()
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with connected(endless) as (_, writer):
        writer.write(GET)
        await started.wait()
        writer.close()
        await asyncio.wait_for(cancelled.wait(), 20)


async def test_a_slow_client_holds_the_handler_back() -> None:
    stalled, resumed = asyncio.Event(), asyncio.Event()

    async def flood(_: Request, exchange: Exchange) -> None:
        exchange.open_stream()
        while not exchange.paused:
            exchange.send(b"x" * 65_536)
            await asyncio.sleep(0)
        stalled.set()
        await exchange.drain()
        resumed.set()
        exchange.end_stream()

    async with connected(flood) as (reader, writer):
        writer.write(GET)
        await asyncio.wait_for(stalled.wait(), 20)
        assert not resumed.is_set()
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        received = b""
        while not received.endswith(b"\r\n0\r\n\r\n"):
            received = received[-16:] + await asyncio.wait_for(reader.read(1 << 20), 20)
        assert resumed.is_set()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_failing_handler_is_seen_by_the_client(
    caplog: pytest.LogCaptureFixture, *, streamed: bool
) -> None:
    async def fail(_: Request, exchange: Exchange) -> None:
        if streamed:
            exchange.open_stream()
            exchange.send(b"begun")
        raise KeyError("bug")

    async with connected(fail) as (reader, writer):
        writer.write(GET)
        if streamed:
            assert (await reader.read()).endswith(b"5\r\nbegun\r\n")
        else:
            head, body = await read_reply(reader)
            assert head.startswith(b"HTTP/1.1 500 ")
            assert body == b"the model server failed: KeyError('bug')"
    assert "GET /g failed" in caplog.text


async def test_shutting_a_connection_ends_its_handler() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def endless(_: Request, _exchange: Exchange) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with connected(endless) as (_, writer):
        writer.write(GET)
        await started.wait()
    assert ended.is_set()


async def test_a_cut_answer_arrives_up_to_the_cut() -> None:
    async def cut(_: Request, exchange: Exchange) -> None:
        exchange.open_stream()
        exchange.send(b"half")
        exchange.cut()

    async with connected(cut) as (reader, writer):
        writer.write(GET + GET)
        received = await reader.read()
    assert received.endswith(b"4\r\nhalf\r\n")
    assert received.count(b"HTTP/1.1") == 1
