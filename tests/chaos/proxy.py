"""A TCP proxy whose connections can be left half open: nothing passes, and nobody is told. Or some messages do not."""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from types import TracebackType
from typing import Self

__all__ = ["Proxy"]

_MESSAGES = frozenset({b"PUB", b"HPUB", b"MSG", b"HMSG", b"RMSG"})


class Proxy:
    """Forwards to one port until it is frozen; what it has not forwarded then waits in the sockets.

    Of the messages of NATS it loses a share, `loses`, as the servers of a cluster do of those that are on their way
    from one to another that dies: with nobody's connection broken.
    """

    def __init__(self, port: int) -> None:
        self.loses = 0.0
        self._target = port
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def freeze(self) -> None:
        """Nothing passes any more."""
        self._flows.clear()

    def thaw(self) -> None:
        """All that waited passes."""
        self._flows.set()

    def cut(self) -> None:
        """Closes every connection; new ones pass."""
        self.abort()
        self._flows.set()

    def abort(self) -> None:
        """Closes every connection; whether new ones pass stays as it is."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, here = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        ways = [
            asyncio.create_task(self._pass(reader, here)),
            asyncio.create_task(self._pass(there, writer)),
        ]
        self._tasks.update(ways)
        self._writers.update((writer, here))
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
            self._tasks.discard(way)
        for each in (writer, here):
            each.transport.abort()
            self._writers.discard(each)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = _Frames()
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                if writer.transport.is_closing():
                    return
                for is_message, frame in frames.take(data):
                    if not (is_message and random.random() < self.loses):
                        writer.write(frame)
                await writer.drain()


class _Frames:
    """What one side says to the other, line by line; a message is one with what it carries."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def take(self, data: bytes) -> Iterator[tuple[bool, bytes]]:
        """Gives what has come whole, and whether it is a message."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n")) >= 0:
            words = self._buffer[:end].split()
            is_message = bool(words) and bytes(words[0]).upper() in _MESSAGES
            size = end + 2 + (int(words[-1]) + 2 if is_message else 0)
            if len(self._buffer) < size:
                return
            frame = bytes(self._buffer[:size])
            del self._buffer[:size]
            yield is_message, frame
