"""A request and its answer over one HTTP/1.1 connection, from the socket to who reads (docs/adr/0026)."""

import asyncio
import select
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, Final

import httptools

from procession_services.llm_gateway.providers.direct.decoding import decoded

__all__ = ["Connection"]

_HIGH: Final = 128 * 1024
"""Bytes of an answer that may wait for who reads it; then the provider has to wait."""
_PIECE: Final = 256 * 1024
"""A longer request is sent in pieces, so that others have their turn."""
_DECODED: Final = frozenset({"gzip", "x-gzip", "deflate"})
_COMPRESSED: Final = ("gzip", "deflate", "br", "zstd", "compress")
"""What is in the names of compressions; whatever else servers name, such as `none`, changes nothing."""
_LENIENT: Final = {
    "lenient_headers": True,
    "lenient_optional_cr_before_lf": True,
    "lenient_spaces_after_chunk_size": True,
}
"""What small servers do wrong, and aiohttp lets pass as well."""


class Connection(asyncio.Protocol):
    """A connection that has one exchange at a time; `begin` makes it ready for the next one.

    Attributes:
        status: The status of the answer; 0 until its head is here.
        headers: The headers of the answer, names in lower case.
    """

    def __init__(self) -> None:
        self._lost = self._paused = False
        self._transport: Any = None
        self._reading: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self.begin()

    def begin(self) -> None:
        """Forgets the exchange before."""
        self.status, self.headers = 0, list[tuple[str, str]]()
        self._kept = False
        self._parser: Any = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(**_LENIENT)
        self._parts: list[bytes] = []
        self._waiting = 0
        self._sent = self._ended = False
        self._why = ""
        self._read_on()

    @property
    def closed(self) -> bool:
        """Whether there is no connection any more, or soon will be none."""
        return self._lost or bool(self._transport.is_closing())

    @property
    def reusable(self) -> bool:
        """Whether request and answer are through, and both sides keep the connection.

        One that is paused is not: nobody would see it close.
        """
        sent = self._sent and not self._transport.get_write_buffer_size()
        return sent and self._ended and self._kept and not self._paused and not self.closed

    @property
    def unread(self) -> bool:
        """Whether something has come that the loop has not read yet, be it the end of the connection.

        While nobody has asked, either says that the next request would be lost.
        """
        waiting = select.poll()
        waiting.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(waiting.poll(0))

    async def send(self, head: bytes, body: bytes) -> None:
        """Sends a request; ends early where the answer is here before."""
        if len(body) <= _PIECE:
            self._transport.write(head + body)
            self._sent = True
            return
        self._transport.write(head)
        for start in range(0, len(body), _PIECE):
            if self.closed or self.status:
                return
            self._transport.write(body[start : start + _PIECE])
            if self._writing is None:
                await asyncio.sleep(0)
            else:
                await self._writing
        self._sent = True

    async def answered(self) -> None:
        """Waits for the head of the answer.

        Raises:
            ConnectionError: The connection broke, or what came is not HTTP.
        """
        while not self.status:
            await self._more()

    def body(self) -> AsyncIterator[bytes]:
        """The body of the answer, all that came in one read together.

        Raises:
            ConnectionError: Nobody asked for the answer's compression; or, from the iterator, the connection broke, or
                what came cannot be decompressed.
        """
        coding = dict(self.headers).get("content-encoding", "").strip().lower()
        if coding in _DECODED:
            return decoded(self)
        if any(name in coding for name in _COMPRESSED):
            raise ConnectionError(f"the answer has the content encoding {coding}, which was not requested")
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._parts:
            if self._ended:
                raise StopAsyncIteration
            await self._more()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._waiting = [], 0
        self._read_on()
        return data

    def close(self) -> None:
        """Closes the connection at once, whatever the provider does; what was not sent yet is dropped."""
        self._transport.abort()  # `close` would wait until it reads, or says goodbye by TLS

    async def _more(self) -> None:
        """Waits until something has come; raises ConnectionError where nothing will."""
        if self._why:
            raise ConnectionError(self._why)
        self._reading = asyncio.get_running_loop().create_future()
        await self._reading

    def _read_on(self) -> None:
        if self._paused:
            self._paused = False
            if not self.closed:
                self._transport.resume_reading()

    def _wake(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the transport that the loop has made."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Takes what one read of the socket gave."""
        if self._ended:  # nobody has asked for anything
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._why = f"the provider does not speak HTTP: {error}"
            self.close()
        except httptools.HttpParserUpgrade:
            self._why = "the provider switched to another protocol, which was not requested"
            self.close()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notes that nothing more will come."""
        self._lost, self._parser = True, None
        if self.status and exc is None and not self._is_framed():
            self._ended = True
        elif not self._ended and not self._why:
            self._why = f"the connection was closed{f': {exc}' if exc else ''}"
        self.resume_writing()
        self._wake()

    def pause_writing(self) -> None:
        """Has `send` wait: the provider takes no more."""
        self._writing = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """Has `send` go on."""
        writing, self._writing = self._writing, None
        if writing is not None and not writing.done():
            writing.set_result(None)

    def on_message_begin(self) -> None:
        """Is called by the parser, as all below; refuses an answer without a request."""
        if self._ended:
            raise ValueError("an answer without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header; trailers behind the body are ignored."""
        if not self.status:
            self.headers.append((name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape")))

    def on_headers_complete(self) -> None:
        """Takes the status: from here on the answer may be read."""
        status = self._parser.get_status_code()
        if status >= HTTPStatus.OK:  # else it is an interim answer
            self.status = status
            self.resume_writing()  # what is not sent yet may never be read

    def on_body(self, data: bytes) -> None:
        """Takes a piece of the body; while too many wait, the socket is not read."""
        self._parts.append(data)
        self._waiting += len(data)
        if self._waiting > _HIGH and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """Notes the end of the answer."""
        if self.status:
            self._ended, self._kept = True, self._parser.should_keep_alive()
        else:
            self.headers.clear()

    def _is_framed(self) -> bool:
        """Whether the answer says where it ends; else the end of the connection is its end."""
        headers = dict(self.headers)
        coding = headers.get("transfer-encoding")
        return "content-length" in headers if coding is None else coding.strip().lower().endswith("chunked")
