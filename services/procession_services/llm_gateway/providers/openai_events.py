"""Reads the events of a stream as plain dicts, all that came in one read together.

The OpenAI SDK would build a model object of every event, for many times the cost of reading it, only to have it taken
apart.
"""

import asyncio
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from typing import Any, Final, Protocol

import orjson

from procession_services.llm_gateway.core.halves import Halves
from procession_services.llm_gateway.core.text import InvalidJsonError, parse_json, valid_value
from procession_services.llm_gateway.providers.event_errors import (
    UNEXPECTED,
    CutError,
    EventError,
    NoEventError,
    choice_error,
    raise_told,
    unreadable,
)

END: Final[dict[str, Any]] = {}
"""Stands behind the last event of a stream that says where it ends."""
_LF, _CR = b"\n\r"
"""As numbers, which are found in bytes many times faster."""
_QUOTED: Final = 200
_WHOLE: Final = 16 * 1024 * 1024
"""Bytes of an answer without events, as far as anybody looks at them."""
_NAMED_ERROR: Final = (b"event: error", b"event:error")
_ERROR_LINE: Final = b"error:"
"""Where llama.cpp had its errors until September 2025: a field that server-sent events do not have."""
_BARE_ERRORS: Final = (_ERROR_LINE, b'{"error"')
"""The other is a proxy's, which writes it as if there were no stream."""
_AHEAD: Final = 4
"""The first events of a stream, which somebody waits for most: providers begin with up to three before the text."""
_SHORT: Final = 12
"""A stream of so few events that came in one read goes on at once: its end counts as much as its beginning."""


class ErrorData(bytes):
    """The data of an event whose name says that it is an error."""


class Reader(Protocol):
    """Cuts the bytes of a stream into its events; nothing follows once it is `done`."""

    done: bool

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the events that these bytes complete."""
        ...

    def end(self) -> list[bytes]:
        """Returns what is left when the stream has ended; raises CutError where that cannot be an event."""
        ...


class EventReader:
    """Cuts the bytes of a stream of server-sent events into the data of its events; `done` after `[DONE]`."""

    def __init__(self) -> None:
        self.done = False
        self._special = self._first = True
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self._is_error = False

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the data of the events that these bytes complete."""
        events: list[bytes] = []
        for line in self._lines(data):
            if line.startswith(b"data:"):
                told = line[5:].lstrip()
                if self._data and _apart(self._data[-1], told):
                    events.append(self._event())
                    self.done = told.startswith(b"[DONE]")
                    if self.done:
                        break
                self._data.append(told)
            elif not line and self._data:
                event = self._event()
                if event.startswith(b"[DONE]"):
                    self.done = True
                    break
                events.append(event)
            elif not line:
                self._is_error = False
            elif line in _NAMED_ERROR:
                self._is_error = True
            elif line.startswith(_BARE_ERRORS):
                self._is_error = True
                self._data.append(line.removeprefix(_ERROR_LINE).lstrip())
        return events

    def _event(self) -> bytes:
        body, self._data = b"\n".join(self._data), []
        is_error, self._is_error = self._is_error, False
        return ErrorData(body) if is_error else body

    def _lines(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete."""
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
        return lines

    def _usual(self, data: bytes) -> bytes:
        """Bytes as most providers write them: without a mark at the beginning, each line ended by a line feed.

        A carriage return at the end of a read counts at once, and a line feed behind it no more.
        """
        if self._special:
            if self._first and len(data) < len(BOM_UTF8) and BOM_UTF8.startswith(data):
                return data  # the rest of the mark may follow
            data = data.removeprefix(BOM_UTF8 if self._first else b"\n")
        self._first, self._special = False, data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def end(self) -> list[bytes]:
        """Returns the data of an event that only lacks its empty line."""
        return self.feed(b"\n\n")


def _apart(data: bytes, following: bytes) -> bool:
    """Whether lines of data are of two events: some write no empty lines, and in JSON no object follows another."""
    return data.rstrip().endswith(b"}") and following.startswith((b"{", b"[DONE]"))


async def event_batches(
    source: AsyncIterable[bytes],
    reader: Reader,
    parse: Callable[[bytes], dict[str, Any] | None],
    status: int,
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yields the events of a stream, parsed, all that came in one read together; only the first ones go ahead.

    What came before one that cannot be parsed still counts. A stream that is `done` has `END` behind it. A whole
    answer, from a server that knows no streams, is one event.

    Raises:
        NoEventError: No event came; `status` is told with what did.
        CutError: The last event is not whole.
        Exception: Whatever `parse` raises.
    """
    left, begun, said = _AHEAD, False, bytearray()
    async for data in source:
        if not begun and len(said) < _WHOLE:
            said += data
        bodies = reader.feed(data)
        if left and not (reader.done and len(bodies) <= _SHORT):
            ahead, bodies = bodies[:left], bodies[left:]
            left -= len(ahead)
            for events in _parsed(ahead, parse):
                begun = True
                yield events
            if bodies:
                await asyncio.sleep(0)  # what became of them is written when others may run
        for events in _parsed(bodies, parse, last=reader.done):
            begun = True
            yield events
        if reader.done:
            return
    for events in _left(reader, parse):
        begun = True
        yield events
    if not begun:
        yield [_unstreamed(bytes(said), parse, status), END]


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


def _left(reader: Reader, parse: Callable[[bytes], dict[str, Any] | None]) -> Iterator[list[dict[str, Any]]]:
    """Yields the events that the end of the stream completes; raises CutError where it has cut one off."""
    try:
        yield from _parsed(reader.end(), parse)
    except orjson.JSONDecodeError as error:
        raise CutError from error


def _unstreamed(said: bytes, parse: Callable[[bytes], dict[str, Any] | None], status: int) -> dict[str, Any]:
    """The event that a whole answer comes to; raises where there is none, or an error in its place."""
    whole = _as_event(said)
    event = None if whole is None else parse(orjson.dumps(whole))
    if event is None:
        quoted = said[:_QUOTED].decode(errors="replace")
        raise NoEventError(f"the provider answered {status} without a single event: {quoted!r}")
    return event


def _as_event(said: bytes) -> dict[str, Any] | None:
    """A whole completion, or an error, as a stream would tell it; None for anything else."""
    try:
        answer = orjson.loads(said)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(answer, dict):
        return None
    if answer.get("error") or answer.get("object") == "error":
        return answer
    choices = answer.get("choices")
    if not choices or not isinstance(choices, list) or not all(map(_is_whole, choices)):
        return None
    return {**answer, "choices": [{**choice, "delta": choice["message"]} for choice in choices]}


def _is_whole(choice: Any) -> bool:
    return isinstance(choice, dict) and isinstance(choice.get("message"), dict)


def json_parser(
    parse: Callable[[dict[str, Any]], dict[str, Any] | None] | None,
) -> Callable[[bytes], dict[str, Any] | None]:
    """Decodes events and has `parse` read them; without it they are what we want already.

    What it gives is for one stream, and raises EventError where an event reports an error, and ValueError for one that
    is not JSON. An event that holds nothing is a sign of life.
    """
    halves = Halves()

    def parsed(body: bytes) -> dict[str, Any] | None:
        if type(body) is ErrorData:
            raise _named_error(body)
        try:
            event = orjson.loads(body)
        except orjson.JSONDecodeError as broken:
            event = forgiven(body, broken, halves.joined) if body.strip() else None
        else:
            if halves.held:
                event = halves.joined(event)
        if not isinstance(event, dict):
            return _no_object(event)
        choices = event.get("choices")
        if (
            event.get("error")
            or choice_error(choices)
            or (not choices and (parse is None or event.get("object") == "error"))
        ):
            raise_told(event)
        if parse is None or not event:
            return event
        try:
            return parse(event)
        except UNEXPECTED as strange:
            raise unreadable(event) from strange

    return parsed


def _no_object(event: Any) -> dict[str, Any] | None:
    if event:
        raise EventError(f"the provider sent an event that is not an object: {str(event)[:_QUOTED]}")
    return None


def forgiven(body: bytes, error: orjson.JSONDecodeError, valid: Callable[[Any], Any] = valid_value) -> Any:
    """What other readers make of an event: some providers send half of a character, or NaN.

    `valid` makes Unicode of an event with halves.

    Raises:
        JSONDecodeError: This error, where nobody could make anything of it.
    """
    try:
        return parse_json(body.decode(errors="replace"), nan=True, valid=valid)
    except InvalidJsonError:
        raise error from None


def _named_error(data: ErrorData) -> EventError:
    try:
        told = orjson.loads(bytes(data))
    except orjson.JSONDecodeError:
        told = data.decode(errors="replace")
    return EventError(told.get("error") or told if isinstance(told, dict) else told)


def openai_events(stream: Any) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yields the events of an `openai.AsyncStream` that nobody has read from.

    Raises:
        EventError: An event reports an error.
        NoEventError: What came is neither a stream nor a whole answer.
        CutError: The last event is not whole.
        ValueError: An event is not JSON.
    """
    response = stream.response
    return event_batches(response.aiter_bytes(), EventReader(), json_parser(None), response.status_code)
