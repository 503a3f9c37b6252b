"""Whether servers answer, asked over a bare socket: a port that Docker publishes is open before the server is."""

import asyncio
import json
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Final

__all__ = ["chroma_answers", "free_port", "nats_answers", "redis_answers", "until"]

_SECONDS: Final = 60.0
_PROBE_SECONDS: Final = 1.0
_PORTS: Final = range(20_000, 32_000)
"""Below those that systems hand to outgoing connections, so that a server finds its port again after a restart."""


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    while True:
        with socket.socket() as candidate:
            try:
                candidate.bind(("127.0.0.1", port := secrets.choice(_PORTS)))
            except OSError:
                continue
            return port


async def until(answers: Callable[[], Awaitable[bool]], name: str) -> None:
    """Returns when a server answers; raises TimeoutError with its name."""
    try:
        async with asyncio.timeout(_SECONDS):
            while not await answers():  # noqa: ASYNC110 - another process changes it
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise TimeoutError(f"{name} did not answer within {_SECONDS:g} seconds") from None


async def nats_answers(port: int) -> bool:
    """Whether NATS greets, with JetStream."""
    verb, _, body = (await _first_line(port, b"")).partition(b" ")
    return verb == b"INFO" and json.loads(body).get("jetstream") is True


async def redis_answers(port: int) -> bool:
    """Whether Redis answers; while it reads its file it says -LOADING."""
    return await _first_line(port, b"PING\r\n") == b"+PONG\r\n"


async def chroma_answers(port: int) -> bool:
    """Whether Chroma's heart beats."""
    return b" 200 " in await _first_line(port, b"GET /api/v2/heartbeat HTTP/1.0\r\n\r\n")


async def _first_line(port: int, asked: bytes) -> bytes:
    """What a server says first, empty when it does not."""
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(asked)
                return await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""
