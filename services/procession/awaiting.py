"""Awaits an author's code, which may catch its cancellation: who awaits it goes on a moment later all the same."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Generator
from pathlib import Path
from types import coroutine
from typing import Any, Final, TypeVar, cast

__all__ = ["awaited", "left", "stands_at"]

log = logging.getLogger(__name__)
_T = TypeVar("_T")
_LEFT_SECONDS: Final = 1.0
"""How long what is cancelled may take to end."""
_ASYNCIO: Final = str(Path(asyncio.__file__).parent)


@coroutine
def awaited(value: Awaitable[_T]) -> Generator[Any, Any, _T]:
    """Awaits it in the task at hand, and goes on in another one with what waits again after it was cancelled.

    Raises:
        CancelledError: The task was cancelled, and what it awaited has not ended a second later.
        BaseException: Whatever that raised.
    """
    code = value if isinstance(value, Coroutine) else _of(value)
    error: BaseException | None = None
    try:
        while True:
            try:
                waits_for = code.send(None) if error is None else code.throw(error)
            except StopIteration as ended:
                return cast("_T", ended.value)
            if isinstance(error, asyncio.CancelledError):
                return cast("_T", (yield from _ended(code, waits_for).__await__()))
            try:
                yield waits_for
            except BaseException as thrown:  # noqa: BLE001 - it is for that code
                error = thrown
            else:
                error = None
    finally:
        error = None  # no circle with its traceback (docs/adr/0023)


async def _of(value: Awaitable[_T]) -> _T:
    return await value


async def _ended(code: Coroutine[Any, Any, Any], waits_for: Any) -> Any:
    """What comes of code that goes on after its cancellation; raises CancelledError where that takes too long."""
    rest = asyncio.create_task(_outcome(code, waits_for))
    _, going = await asyncio.wait({rest}, timeout=_LEFT_SECONDS)
    if going:
        log.error("catches its cancellation, and goes on until its process ends: %s", stands_at(code))
        raise asyncio.CancelledError
    told, error = rest.result()
    try:
        if error is not None:
            raise error
    finally:
        del error, rest
    return told


async def _outcome(code: Coroutine[Any, Any, Any], waits_for: Any) -> tuple[Any, BaseException | None]:
    try:
        return await _resumed(code, waits_for), None
    except BaseException as error:  # noqa: BLE001 - out of a task, `sys.exit` would end the process
        return None, error


@coroutine
def _resumed(code: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    yield waits_for
    return (yield from code)


async def left(*tasks: "asyncio.Task[Any]") -> bool:
    """Cancels tasks; gives whether one of them goes on nevertheless."""
    for task in tasks:
        task.cancel()
    if not tasks:
        return False
    _, going = await asyncio.wait(tasks, timeout=_LEFT_SECONDS)
    for task in going:
        log.error("does not end, so its process does: %s", stands_at(task.get_coro()))
    return bool(going)


def stands_at(code: Any) -> str:
    """The file and line at which a coroutine waits, the last one that is not asyncio's."""
    found = ""
    while code is not None and (frame := getattr(code, "cr_frame", None) or getattr(code, "gi_frame", None)):
        file = frame.f_code.co_filename
        if not (found and file.startswith(_ASYNCIO)):
            found = f"{Path(file).name}:{frame.f_lineno}"
        code = getattr(code, "cr_await", None) or getattr(code, "gi_yieldfrom", None)
    return found
