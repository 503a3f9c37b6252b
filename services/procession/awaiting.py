"""Awaits an author's code, which may catch its cancellation: whoever awaits it goes on a moment later all the same."""

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
    """Awaits what an author's code has returned, in the task at hand.

    When others cancel the task, the code may catch that, to tidy up. A second later the task is cancelled once more. If
    the code goes on even then, it is left to go on in a task of its own.

    A timeout of the code's own, as `asyncio.timeout`, cancels the task as well, and takes that back at its end: what
    comes behind it has all the time that it needs. Where the code cancels the task otherwise, this is its own failure:
    for whoever awaits it, the task is not cancelled.

    Raises:
        CancelledError: The task was cancelled, and the code goes on.
        BaseException: Whatever the code has raised.
    """
    code = value if isinstance(value, Coroutine) else _of(value)
    cancels = _Cancellations()
    error: BaseException | None = None
    try:
        while True:
            try:
                waits_for = code.send(None) if error is None else code.throw(error)
            except StopIteration as ended:
                if cancels.own > 0:
                    yield  # a cancellation that is still to come comes here
                return cast("_T", ended.value)
            if cancels.cancelled_again:
                _leave(code, waits_for)
            cancels.waits()
            try:
                yield waits_for
            except BaseException as thrown:  # noqa: BLE001 - it is for that code
                error = thrown
            else:
                error = None  # also where a task that the code waits for has caught the cancellation
            cancels.waited()
    except asyncio.CancelledError as cancelled:
        if cancels.own > 0:
            cancelled.args = cancelled.args or ("cancelled its own task",)
        raise
    finally:
        cancels.end()
        error = None  # no circle with its traceback (docs/adr/0023)


class _Cancellations:
    """Who has cancelled the task in which an author's code runs, which asyncio only counts (`Task.cancelling`).

    While the code runs, nothing else does: what is added to the count then is the code's own. What is added while it
    waits comes from others; a timeout that the code has set is one of them, until the code takes that back.

    Where others have cancelled the task and the code still waits for something a second later, the task is
    `cancelled_again`. Code that waits for something even then ignores it.
    """

    __slots__ = ("_at_start", "_by_others", "_task", "_timer", "_when_it_waited", "cancelled_again")

    def __init__(self) -> None:
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._at_start = self._by_others = self._when_it_waited = self._task.cancelling()
        self._timer: asyncio.TimerHandle | None = None
        self.cancelled_again = False

    @property
    def own(self) -> int:
        """How often the code has cancelled the task itself, and not taken that back."""
        return self._task.cancelling() - self._by_others

    def waits(self) -> None:
        """The code begins to wait; while it ran, it may have taken back what its own timeout had done."""
        self._when_it_waited = self._task.cancelling()
        self._by_others = min(self._by_others, self._when_it_waited)
        if self._timer is None and self._by_others > self._at_start:
            self._timer = asyncio.get_running_loop().call_later(_LEFT_SECONDS, self._cancel_again)

    def waited(self) -> None:
        """The code goes on: others may have cancelled the task meanwhile, or we."""
        if self.cancelled_again:
            self._task.uncancel()
        self._by_others += self._task.cancelling() - self._when_it_waited

    def _cancel_again(self) -> None:
        self._timer = None
        self.cancelled_again = self._by_others > self._at_start
        if self.cancelled_again:
            self._task.cancel()

    def end(self) -> None:
        """The code has ended, or was left: what it did itself is taken back."""
        if self._timer is not None:
            self._timer.cancel()
        while self._task.cancelling() > self._by_others:
            self._task.uncancel()


async def _of(value: Awaitable[_T]) -> _T:
    return await value


def _leave(code: Coroutine[Any, Any, Any], waits_for: Any) -> NoReturn:
    """Has the code go on in a task of its own; raises CancelledError here."""
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
    """Goes on with code that was begun elsewhere, and waits for something."""
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
