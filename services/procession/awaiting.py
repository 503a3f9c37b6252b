"""Awaits an author's code, which may catch its cancellation: who awaits it goes on a moment later all the same."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Generator
from pathlib import Path
from types import coroutine
from typing import Any, Final, NoReturn, TypeVar, cast

from procession.authors import said

__all__ = ["awaited", "left", "stands_at"]

log = logging.getLogger(__name__)
_T = TypeVar("_T")
_LEFT_SECONDS: Final = 1.0
"""How long what is cancelled may take to end."""
_going: "set[asyncio.Task[None]]" = set()
_ASYNCIO: Final = str(Path(asyncio.__file__).parent)


@coroutine
def awaited(value: Awaitable[_T]) -> Generator[Any, Any, _T]:
    """Awaits it in the task at hand; what goes on a second after the task was cancelled goes on in another one.

    A limit of that code's own, as `asyncio.timeout`, cancels the task as well, and takes that back at its end: what
    comes behind it has all the time that it needs. Where that code cancels the task otherwise, this is its own failure:
    for whoever awaits it, the task is not cancelled.

    Raises:
        CancelledError: The task was cancelled, and what it awaited goes on.
        BaseException: Whatever that raised.
    """
    code = value if isinstance(value, Coroutine) else _of(value)
    patience, error = _Patience(), cast("BaseException | None", None)
    try:
        while True:
            try:
                waits_for = code.send(None) if error is None else code.throw(error)
            except StopIteration as ended:
                if patience.own > 0:
                    yield  # a cancellation that is still to come comes here
                return cast("_T", ended.value)
            if patience.is_over:
                _leave(code, waits_for)
            patience.wait()
            if error is not None:
                patience.begin()
            try:
                yield waits_for
            except BaseException as thrown:  # noqa: BLE001 - it is for that code
                patience.interrupted()
                error = thrown
            else:
                error = None
    except asyncio.CancelledError as cancelled:
        if patience.own > 0:
            cancelled.args = cancelled.args or ("cancelled its own task",)
        raise
    finally:
        patience.end()
        error = None  # no circle with its traceback (docs/adr/0023)


class _Patience:
    """With code that goes on in a task that is cancelled: when that has lasted too long, it is cancelled once more.

    Others cancel the task while it waits, and the code itself while that runs.
    """

    __slots__ = ("_before", "_others", "_task", "_timer", "_waiting", "is_over")

    def __init__(self) -> None:
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._before = self._others = self._waiting = self._task.cancelling()
        self._timer: asyncio.TimerHandle | None = None
        self.is_over = False

    @property
    def own(self) -> int:
        """How often the code has cancelled the task itself, and not taken that back."""
        return self._task.cancelling() - self._others

    def wait(self) -> None:
        """The code waits; a limit of its own that others had carried out it may have taken back."""
        self._waiting = self._task.cancelling()
        self._others = min(self._others, self._waiting)

    def begin(self) -> None:
        if self._timer is None and self._others > self._before:
            self._timer = asyncio.get_running_loop().call_later(_LEFT_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        self.is_over = self._others > self._before
        if self.is_over:
            self._task.cancel()

    def interrupted(self) -> None:
        """The code is to be thrown something; leaves of all that cancelled the task meanwhile what others did."""
        if self.is_over:
            self._task.uncancel()
        self._others += self._task.cancelling() - self._waiting

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while self._task.cancelling() > self._others:
            self._task.uncancel()


async def _of(value: Awaitable[_T]) -> _T:
    return await value


def _leave(code: Coroutine[Any, Any, Any], waits_for: Any) -> NoReturn:
    log.error(
        "code ignores its cancellation, and may keep running until its process ends: %s", stands_at(code)
    )
    task = asyncio.create_task(_outcome(code, waits_for))
    _going.add(task)
    task.add_done_callback(_going.discard)
    raise asyncio.CancelledError


async def _outcome(code: Coroutine[Any, Any, Any], waits_for: Any) -> None:
    try:
        await _resumed(code, waits_for)
    except BaseException as error:  # noqa: BLE001 - out of a task, `sys.exit` would end the process
        log.warning("code that kept running after its cancellation has ended with an error: %s", said(error))


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
        log.error(
            "code does not end when it is cancelled, so its process exits without it: %s",
            stands_at(task.get_coro()),
        )
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
