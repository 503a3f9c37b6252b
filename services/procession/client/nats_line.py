"""What comes on a connection to NATS, from the socket to a call for each message (docs/adr/0022)."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from nats import errors
from nats.aio.transport import TcpTransport

__all__ = ["NatsLine"]

_H: Final = ord("H")
_MESSAGES: Final = frozenset(b"MH")
_END: Final = b"\r\n"
_SPACE: Final = b" "
"""What servers put between the words of a line. Subjects may hold other white space, and must not become more words."""
_WORDS: Final = 3
"""Of `MSG <subject> <subscription> [reply] [length of the headers] <length>`, without a reply and the lengths."""


class NatsLine(asyncio.Protocol):
    """One connection, from its handshake on.

    Args:
        transport: Where nats-py has connected, and read what came first.
        hear: Takes each message: the number of its subscription, subject, reply, payload and header.
        has_room: Called when the socket's buffer has room again.

    Attributes:
        control: Lines that are not messages, for nats-py's parser, and at last why the connection has ended.
        full: The socket's buffer has no room.
        write: Writes bytes.
    """

    def __init__(
        self,
        transport: TcpTransport,
        hear: Callable[[int, bytes, bytes, bytes, bytes], None],
        has_room: Callable[[], None],
    ) -> None:
        self.control: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.full = False
        self._hear, self._has_room = hear, has_room
        self._parts: list[bytes] = []
        self._missing = 0
        reader, writer = transport._io_reader, transport._io_writer  # noqa: SLF001 - there is no other way to them
        assert reader is not None
        assert writer is not None
        self._socket = writer.transport
        self.write = self._socket.write
        self._stream: Any = self._socket.get_protocol()
        self._socket.set_protocol(self)
        read, ended = bytes(reader._buffer), reader._eof or self._socket.is_closing()  # type: ignore[attr-defined]  # noqa: SLF001
        if read:
            self.data_received(read)
        if ended:
            self.eof_received()

    def takes(self, *, anyway: bool) -> bool:
        """Whether bytes may be written: to a socket that ends, which the client may learn later, they would be lost."""
        return (anyway or not self.full) and not self._socket.is_closing()

    def data_received(self, data: bytes) -> None:
        """Hands on whole messages; keeps the rest."""
        if self._parts:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        try:
            at = self._take(data)
        except (IndexError, ValueError):
            self.control.put_nowait(errors.ProtocolError())
            self._socket.abort()  # what else may come would be read from the middle of something
            return
        if at < len(data):
            self._parts.append(data[at:])

    def _take(self, data: bytes) -> int:
        """Hands on what is whole, and tells where the rest begins.

        Raises:
            IndexError, ValueError: This is not NATS's protocol.
        """
        at, size, hear = 0, len(data), self._hear
        self._missing = 1
        while (end := data.find(_END, at)) >= 0:
            start, kind = end + len(_END), data[at]
            if kind not in _MESSAGES:
                self.control.put_nowait(data[at:start])
                at = start
                continue
            words = data[at:end].split(_SPACE)
            length = words.pop()
            body = start + int(words.pop()) if kind == _H else start
            if len(words) == _WORDS:
                words.append(b"")
            _, subject, sid, reply = words
            stop = start + int(length)
            following = stop + len(_END)
            if stop < body:
                raise ValueError("malformed NATS message: it is shorter than its own headers")
            if following > size:
                self._missing = following - size
                break
            hear(int(sid), subject, reply, data[body:stop], data[start:body])
            at = following
        return at

    def pause_writing(self) -> None:
        """The buffer is full."""
        self.full = True
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        """There is room again."""
        self.full = False
        self._stream.resume_writing()
        self._has_room()

    def eof_received(self) -> None:
        """The server has hung up."""
        self.control.put_nowait(errors.UnexpectedEOF())

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended; nats-py waits for it when it closes one."""
        self._stream.connection_lost(exc)
        self.control.put_nowait(exc or errors.UnexpectedEOF())
