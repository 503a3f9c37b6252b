"""Writers: how hooks and tools send chunks of their own (R-WR)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self, cast

from procession.args import Writer
from procession.json_values import given
from procession_schemas.chunks import CORE_TYPES, Chunk

__all__ = ["NullWriter", "TurnWriter", "check_custom"]


def check_custom(chunk: Mapping[str, Any]) -> Chunk:
    """Returns a copy of a chunk that a writer may send.

    Raises:
        ValueError: Its type is missing or belongs to the runtime (R-WR-2).
        TypeError: It is no dict.
    """
    if not isinstance(chunk, Mapping):
        allowed = 'a chunk, such as `{"type": "data-progress", "data": ...}`'
        raise TypeError(
            f"a writer's `custom` was given a value of type {type(chunk).__name__}; give {allowed}"
        )
    kind = chunk.get("type")
    if not isinstance(kind, str) or not kind:
        raise ValueError("a custom chunk needs a `type` such as `data-progress`")
    if kind in CORE_TYPES:
        raise ValueError(f"chunk type {kind!r} belongs to the runtime; custom types start with `data-`")
    return cast("Chunk", dict(chunk))


class TurnWriter(Writer):
    """A writer whose chunks go by `send`, one after another, as they were given; as a context, until that ends.

    `beside` is called before one goes that another task writes than the context's.
    """

    __slots__ = ("_beside", "_closed", "_send", "_task", "_turn")

    def __init__(
        self,
        send: Callable[[Chunk], Awaitable[None]],
        *,
        beside: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._send, self._beside = send, beside
        self._turn: asyncio.Lock | None = None
        self._task: asyncio.Task[Any] | None = None
        self._closed = False

    def begin(self) -> None:
        """Takes chunks from here on."""
        self._task, self._closed = asyncio.current_task(), False

    def end(self) -> asyncio.Lock | None:
        """Takes no more chunks; gives the turn of one that is being sent, for which `__aexit__` waits."""
        self._closed = True
        return self._turn if self._turn is not None and self._turn.locked() else None

    async def __aenter__(self) -> Self:
        self.begin()
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (turn := self.end()) and not isinstance(error, asyncio.CancelledError):
            # What is being sent has its place before all that follows, as an objection.
            async with turn:
                pass

    async def custom(self, chunk: Mapping[str, Any]) -> None:
        """Sends a `data-*` chunk at once; ValueError for any other chunk, or after the hook; NotJsonError."""
        checked = check_custom(chunk)
        given(checked, "chunk")
        turn = self._turn = self._turn or asyncio.Lock()
        async with turn:
            if self._closed:
                raise ValueError("the hook, or its stream, has ended; its writer is closed")
            if self._beside is not None and asyncio.current_task() is not self._task:
                await self._beside()
            await self._send(checked)


class NullWriter(Writer):
    """A writer that goes nowhere, for hooks run without a client."""

    async def custom(self, chunk: Mapping[str, Any]) -> None:
        """Checks the chunk and forgets it."""
        given(check_custom(chunk), "chunk")
