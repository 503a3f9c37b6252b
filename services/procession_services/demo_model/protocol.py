"""HTTP/1.1 on an asyncio transport: keep-alive, pipelining, chunked bodies, backpressure, cancellation.

Bytes become requests in `RequestParser`, which knows nothing of sockets. `HttpProtocol` hands the requests of
a connection to the handler one at a time, so answers keep the order of the questions; when the client goes
away the handler is cancelled. `Exchange` is the answer's side.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import responses
from typing import Final, cast

logger: Final = logging.getLogger(__name__)

MAX_HEAD: Final = 64 * 1024
MAX_BODY: Final = 64 * 1024 * 1024
_LINE_END: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_CHUNK_SIZE: Final = re.compile(rb"\s*([0-9a-fA-F]{1,8})\s*(?:;.*)?", re.DOTALL)
_LAST_CHUNK: Final = b"0\r\n\r\n"
_STREAM_HEADERS: Final = (
    "content-type: text/event-stream; charset=utf-8\r\n"
    "cache-control: no-cache\r\n"
    "transfer-encoding: chunked\r\n"
)


class ProtocolError(Exception):
    """The client broke HTTP's rules: the connection gets `status` with the message and is closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """One whole request: `path` has no query, header names are lower-case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def keep_alive(self) -> bool:
        """Whether the client wants to go on using the connection."""
        return "close" not in self.headers.get("connection", "").lower()


class RequestParser:
    """Bytes in, requests out; what is incomplete waits for the next `feed`."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: Request | None = None
        self._chunks = bytearray()

    @property
    def wants_continue(self) -> bool:
        """Whether the client holds its body back until it is told to go on."""
        return self._head is not None and self._head.headers.get("expect", "").lower() == "100-continue"

    def feed(self, data: bytes) -> Iterator[Request]:
        """Yield the requests that `data` completes.

        Raises:
            ProtocolError: when the bytes are no HTTP/1.1 request or one that is too large.
        """
        self._buffer += data
        while True:
            if self._head is None:
                self._head = self._take_head()
            if self._head is None:
                return
            body = self._take_body(self._head)
            if body is None:
                return
            head, self._head = self._head, None
            yield Request(head.method, head.path, head.headers, body)

    def _take_head(self) -> Request | None:
        end = self._buffer.find(_HEAD_END, 0, MAX_HEAD)
        if end < 0:
            if len(self._buffer) >= MAX_HEAD:
                raise ProtocolError(431, f"the request head is longer than {MAX_HEAD} bytes")
            return None
        first, *rest = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + len(_HEAD_END)]
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/"):  # noqa: PLR2004 - method, target, version
            raise ProtocolError(400, f"not a request line: {first[:100]!r}")
        if words[2] != "HTTP/1.1":
            raise ProtocolError(505, f"{words[2]} is not supported; use HTTP/1.1")
        headers: dict[str, str] = {}
        for line in rest:
            name, colon, value = line.partition(":")
            if not colon:
                raise ProtocolError(400, f"not a header: {line[:100]!r}")
            headers[name.lower()] = value.strip()
        return Request(words[0], words[1].partition("?")[0], headers)

    def _take_body(self, head: Request) -> bytes | None:
        length = head.headers.get("content-length")
        if "transfer-encoding" not in head.headers:
            return self._take_sized(length or "0")
        if length is not None or head.headers["transfer-encoding"].lower() != "chunked":
            raise ProtocolError(400, "send either content-length or transfer-encoding: chunked")
        return self._take_chunked()

    def _take_sized(self, length: str) -> bytes | None:
        if not (length.isascii() and length.isdigit()):
            raise ProtocolError(400, f"content-length is not a number: {length[:20]!r}")
        size = int(length[:20])
        if size > MAX_BODY:
            raise ProtocolError(413, f"the body is longer than {MAX_BODY} bytes")
        if len(self._buffer) < size:
            return None
        body = bytes(self._buffer[:size])
        del self._buffer[:size]
        return body

    def _take_chunked(self) -> bytes | None:
        buffer = self._buffer
        while (line_end := buffer.find(_LINE_END, 0, MAX_HEAD)) >= 0:
            match = _CHUNK_SIZE.fullmatch(buffer, 0, line_end)
            if match is None:
                raise ProtocolError(400, "a chunk of the body has no size")
            size = int(match[1], 16)
            if size == 0:
                return self._take_trailers(line_end)
            if len(self._chunks) + size > MAX_BODY:
                raise ProtocolError(413, f"the body is longer than {MAX_BODY} bytes")
            start = line_end + len(_LINE_END)
            if len(buffer) < start + size + len(_LINE_END):
                return None
            self._chunks += buffer[start : start + size]
            del buffer[: start + size + len(_LINE_END)]
        if len(buffer) >= MAX_HEAD:
            raise ProtocolError(400, "a chunk of the body has no size")
        return None

    def _take_trailers(self, line_end: int) -> bytes | None:
        # The line end of the last chunk's size counts: without trailers the next one follows it at once.
        end = self._buffer.find(_HEAD_END, line_end, line_end + MAX_HEAD)
        if end < 0:
            if len(self._buffer) > line_end + MAX_HEAD:
                raise ProtocolError(431, f"the trailers are longer than {MAX_HEAD} bytes")
            return None
        del self._buffer[: end + len(_HEAD_END)]
        body = bytes(self._chunks)
        self._chunks.clear()
        return body


class Exchange:
    """The answer to one request: either one `reply`, or `open_stream`, `send`s and `end_stream`.

    `written` counts the bytes handed to the socket, heads and framing included.
    """

    __slots__ = ("_protocol", "_transport", "keep_alive", "started", "written")

    def __init__(self, protocol: "HttpProtocol", transport: asyncio.Transport, *, keep_alive: bool) -> None:
        self._protocol = protocol
        self._transport = transport
        self.keep_alive = keep_alive
        self.started = False
        self.written = 0

    def reply(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Answer with a whole JSON document."""
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        extra = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self._write(self._head(status, head + extra) + body)

    def open_stream(self) -> None:
        """Begin a stream of server-sent events."""
        self._write(self._head(200, _STREAM_HEADERS))

    def send(self, data: bytes) -> None:
        """Send a part of the stream, in one write; `drain` when `paused` says that the client is slow."""
        framed = b"%x\r\n%b\r\n" % (len(data), data)
        self.written += len(framed)
        self._transport.write(framed)

    def end_stream(self) -> None:
        """End the stream, so that the client knows that it has everything."""
        self._write(_LAST_CHUNK)

    @property
    def paused(self) -> bool:
        """Whether the client reads more slowly than we write."""
        return self._protocol.resumed is not None

    async def drain(self) -> None:
        """Wait until the client has read enough of what was sent."""
        if (resumed := self._protocol.resumed) is not None:
            await resumed

    def cut(self) -> None:
        """Close the connection where the answer stands; what was sent before still arrives."""
        self.keep_alive = False
        self._transport.close()

    def _head(self, status: int, headers: str) -> bytes:
        reason = responses.get(status, "Status")
        connection = "keep-alive" if self.keep_alive else "close"
        return f"HTTP/1.1 {status} {reason}\r\nconnection: {connection}\r\n{headers}\r\n".encode("latin-1")

    def _write(self, data: bytes) -> None:
        self.started = True
        self.written += len(data)
        self._transport.write(data)


Handler = Callable[[Request, Exchange], Awaitable[None]]


class HttpProtocol(asyncio.Protocol):
    """One connection: parses requests and runs `handler` for them, one after the other.

    The handler is cancelled when the client disconnects. `refuse` renders the body of an error that the
    protocol itself answers: 4xx and 505 for broken HTTP, 500 for a handler that raised.
    """

    def __init__(
        self, handler: Handler, refuse: Callable[[int, str], bytes], connections: set["HttpProtocol"]
    ) -> None:
        self._handler = handler
        self._refuse = refuse
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._parser = RequestParser()
        self._waiting: deque[Request | ProtocolError] = deque()
        self._task: asyncio.Task[None] | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._broken = False
        self._transport: asyncio.Transport
        self.resumed: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Join the server's open connections."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods only
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it closed makes no difference
        """Cancel the handler: nobody is left to answer."""
        self._connections.discard(self)
        self._lost.set_result(None)
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """Let `Exchange.drain` wait."""
        self.resumed = self._loop.create_future()

    def resume_writing(self) -> None:
        """Let `Exchange.drain` go on."""
        resumed, self.resumed = self.resumed, None
        if resumed is not None and not resumed.done():
            resumed.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Queue the requests that are complete now."""
        if self._broken:
            return
        try:
            self._waiting.extend(self._parser.feed(data))
        except ProtocolError as error:
            self._broken = True
            self._waiting.append(error)
        if self._task is not None:
            return
        if self._waiting:
            self._task = self._loop.create_task(self._work())
        else:
            self._invite_body()

    async def shut(self) -> None:
        """Cut the connection and wait until its handler has ended."""
        self._transport.abort()
        await self._lost
        if self._task is not None:
            await asyncio.wait([self._task])

    def _invite_body(self) -> None:
        if self._parser.wants_continue:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _work(self) -> None:
        while self._waiting:
            item = self._waiting.popleft()
            keep_alive = isinstance(item, Request) and item.keep_alive
            exchange = Exchange(self, self._transport, keep_alive=keep_alive)
            await self._answer(item, exchange)
            if not exchange.keep_alive:
                self._broken = True
                self._waiting.clear()
                self._transport.close()
                return
        self._task = None
        self._invite_body()

    async def _answer(self, item: Request | ProtocolError, exchange: Exchange) -> None:
        if isinstance(item, ProtocolError):
            exchange.reply(item.status, self._refuse(item.status, str(item)))
            return
        try:
            await self._handler(item, exchange)
        except Exception as error:  # a bug of the handler must not look like a slow model
            logger.exception("%s %s failed", item.method, item.path)
            if exchange.started:
                exchange.cut()
            else:
                exchange.reply(500, self._refuse(500, f"the model server failed: {error!r}"))
