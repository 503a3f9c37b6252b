"""Reads the events of a stream as plain dicts, all that came in one read together.

The OpenAI SDK would build a model object of every event, for many times the cost of reading it, only to have it taken
apart.
"""

import asyncio
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from typing import Any, Final, Protocol

import orjson

_MESSAGE: Final = "An error occurred during streaming"
END: Final[dict[str, Any]] = {}
"""Stands behind the last event of a stream that says where it ends."""
_LF, _CR = b"\n\r"
"""As numbers, which are found in bytes many times faster."""
_QUOTED: Final = 200
_AHEAD: Final = 4
"""The first events of a stream, which somebody waits for most: providers begin with up to three before the text."""
_SHORT: Final = 12
"""A stream of so few events that came in one read goes on at once: its end counts as much as its beginning."""


class Reader(Protocol):
    """Cuts the bytes of a stream into its events; nothing follows once it is `done`.

    `beginning` is quoted where there was no event.
    """

    done: bool
    beginning: bytes

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the events that these bytes complete."""
        ...

    def end(self) -> list[bytes]:
        """Returns what is left when the stream has ended."""
        ...


class EventReader:
    """Cuts the bytes of a stream of server-sent events into the data of its events; `done` after `[DONE]`."""

    def __init__(self) -> None:
        self.done = False
        self.beginning = b""
        self._special = self._first = True
        self._rest: list[bytes] = []
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the data of the events that these bytes complete."""
        if self._rest:
            self._rest.append(data)
            if _LF not in data and _CR not in data:
                return []
            data = b"".join(self._rest)
            self._rest.clear()
        if self._special or _CR in data:
            data = self._usual(data)
        *lines, rest = data.split(b"\n")
        if rest:
            self._rest.append(rest)
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                body, self._data = b"\n".join(self._data), []
                if body.startswith(b"[DONE]"):
                    self.done = True
                    break
                events.append(body)
        return events

    def _usual(self, data: bytes) -> bytes:
        """Bytes as most providers write them: without a mark at the beginning, each line ended by a line feed.

        A carriage return at the end of a read counts at once, and a line feed behind it no more.
        """
        if self._first:
            self.beginning = data[:_QUOTED]
        if self._special:
            data = data.removeprefix(BOM_UTF8 if self._first else b"\n")
        self._first, self._special = False, data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def end(self) -> list[bytes]:
        """Returns the data of an event that only lacks its empty line."""
        return self.feed(b"\n\n")


async def event_batches(
    source: AsyncIterable[bytes], reader: Reader, parse: Callable[[bytes], dict[str, Any] | None]
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yields the events of a stream, parsed, all that came in one read together; only the first ones go ahead.

    What came before one that cannot be parsed still counts. A stream that is `done` has `END` behind it.

    Raises:
        Exception: Whatever `parse` raises.
    """
    left = _AHEAD
    async for data in source:
        bodies = reader.feed(data)
        if left and not (reader.done and len(bodies) <= _SHORT):
            ahead, bodies = bodies[:left], bodies[left:]
            left -= len(ahead)
            for events in _parsed(ahead, parse):
                yield events
            if bodies:
                await asyncio.sleep(0)  # what became of them is written when others may run
        for events in _parsed(bodies, parse, last=reader.done):
            yield events
        if reader.done:
            return
    for events in _parsed(reader.end(), parse):
        yield events


def _parsed(
    bodies: list[bytes], parse: Callable[[bytes], dict[str, Any] | None], *, last: bool = False
) -> Iterator[list[dict[str, Any]]]:
    """Yields all events at once, unless there are none; `END` stands behind the last ones."""
    events: list[dict[str, Any]] = []
    try:
        for body in bodies:
            if (event := parse(body)) is not None:
                events.append(event)  # noqa: PERF401 - what came before an error counts
    except Exception:
        if events:
            yield events
        raise
    if last:
        events.append(END)
    if events:
        yield events


def openai_events(stream: Any) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yields the events of an `openai.AsyncStream` that nobody has read from.

    Raises:
        openai.APIError: An event reports an error, as the SDK's own reader raises it.
        ValueError: An event is not JSON.
    """

    def parse(body: bytes) -> dict[str, Any]:
        event: dict[str, Any] = orjson.loads(body)
        if event.get("error"):
            raise _api_error(event["error"], stream)
        return event

    return event_batches(stream.response.aiter_bytes(), EventReader(), parse)


def _api_error(error: Any, stream: Any) -> Exception:
    from openai import APIError  # noqa: PLC0415 - takes long, and is loaded when there is a stream

    message = error.get("message") if isinstance(error, dict) else None
    return APIError(message or _MESSAGE, request=stream.response.request, body=error)
