"""Reads the events of an OpenAI stream as plain dicts, all that came in one read together.

The SDK would build a model object of every event, for many times the cost of reading it, only to have it taken apart.
"""

from collections.abc import AsyncGenerator
from typing import Any, Final

import orjson

_MESSAGE: Final = "An error occurred during streaming"


class EventReader:
    """Cuts the bytes of a stream of server-sent events into the data of its events; `done` after `[DONE]`."""

    def __init__(self) -> None:
        self.done = False
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the data of the events that these bytes complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        events = []
        for line in lines:
            text = line.rstrip(b"\r")
            if text.startswith(b"data:"):
                self._data.append(text[5:].removeprefix(b" "))
            elif not text and self._data:
                body, self._data = b"\n".join(self._data), []
                if body.startswith(b"[DONE]"):
                    self.done = True
                    break
                events.append(body)
        return events


async def openai_events(stream: Any) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yields the events of an `openai.AsyncStream` that nobody has read from.

    Raises:
        openai.APIError: An event reports an error, as the SDK's own reader raises it.
        ValueError: An event is not JSON.
    """
    reader = EventReader()
    async for data in stream.response.aiter_bytes():
        events: list[dict[str, Any]] = []
        failure: Exception | None = None
        for body in reader.feed(data):
            try:
                event = orjson.loads(body)
            except ValueError as error:
                failure = error
                break
            if event.get("error"):
                failure = _api_error(event["error"], stream)
                break
            events.append(event)
        if events:
            yield events  # what came before a failure still counts
        if failure is not None:
            raise failure
        if reader.done:
            return


def _api_error(error: Any, stream: Any) -> Exception:
    from openai import APIError  # noqa: PLC0415 - takes long, and is loaded when there is a stream

    message = error.get("message") if isinstance(error, dict) else None
    return APIError(message or _MESSAGE, request=stream.response.request, body=error)
