"""A model server on the loopback for tests: sends scripted bytes, and notices who goes away."""

import asyncio
import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self


def sse(*payloads: Any) -> list[bytes]:
    """Render events of a stream; a string stays as it is."""
    return [
        f"data: {payload if isinstance(payload, str) else json.dumps(payload)}\n\n".encode()
        for payload in payloads
    ]


def event(*, finish: str | None = None, usage: dict[str, Any] | None = None, **delta: Any) -> dict[str, Any]:
    """Build a `chat.completion.chunk`; one with usage has no choices."""
    choices = [] if usage else [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "resp-1", "object": "chat.completion.chunk", "created": 1_767_225_600, "model": "demo-1"}
    return {**head, "choices": choices, **({"usage": usage} if usage else {})}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server does with one request.

    `end`: `done` ends the response, `drop` cuts the connection, `hang` sends nothing more until the client
    leaves.
    """

    pieces: Sequence[bytes] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    end: Literal["done", "drop", "hang"] = "done"


def stream(*payloads: Any, end: Literal["done", "drop", "hang"] = "done") -> Answer:
    """Answer with a stream of events; one that is done says so."""
    return Answer(sse(*payloads, *(["[DONE]"] if end == "done" else [])), end=end)


def failure(
    status: int, message: str = "", headers: dict[str, str] | None = None, body: Any = None
) -> Answer:
    """Answer with an HTTP error in OpenAI's form, or with this body."""
    document = {"error": {"message": message, "type": "test_error", "code": None}} if body is None else body
    return Answer([json.dumps(document).encode()], status, headers or {}, "application/json")


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class ModelServer:
    """Gives its answers in order, one per request; the last one repeats."""

    def __init__(self, *answers: Answer, tls: ssl.SSLContext | None = None) -> None:
        self._answers = list(answers)
        self._tls = tls
        self.requests: list[Received] = []
        self.arrived = asyncio.Event()
        self.left = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._connections: set[asyncio.StreamWriter] = set()
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, limit=16 * 1024 * 1024, ssl=self._tls
        )
        self.base = (
            f"{'https' if self._tls else 'http'}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in self._connections:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        lines = [line.partition(":") for line in head[1:] if line]
        headers = {name.lower(): value.strip() for name, _, value in lines}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.requests.append(Received(head[0].split(" ")[1], headers, json.loads(body or b"{}")))
        self.arrived.set()
        answer = self._answers[min(len(self.requests), len(self._answers)) - 1]
        sent = {"content-type": answer.content_type, "transfer-encoding": "chunked", **answer.headers}
        writer.write(f"HTTP/1.1 {answer.status} X\r\n".encode())
        writer.write("".join(f"{name}: {value}\r\n" for name, value in sent.items()).encode() + b"\r\n")
        for piece in answer.pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        if answer.end == "hang":
            await reader.read(1)
            self.left.set()
            return False
        if answer.end == "drop":
            writer.transport.abort()
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True
