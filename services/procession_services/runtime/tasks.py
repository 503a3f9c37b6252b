"""Tasks that work until they are told to stop."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

__all__ = ["ended", "left", "meanwhile", "place", "repeated", "spawned"]

log = logging.getLogger(__name__)
_AGAIN_SECONDS: Final = 0.2
_ASYNCIO: Final = str(Path(asyncio.__file__).parent)
_LEFT_SECONDS: Final = 1.0
"""How long what is cancelled may take to end."""


async def ended(*tasks: "asyncio.Task[Any]") -> None:
    """Cancels tasks and returns when all of them are over.

    It says so again until they are: `asyncio.wait_for` of Python 3.11, in which redis-py sends, loses a cancellation
    that comes just when a command has been sent.
    """
    going = set(tasks)
    while going:
        for task in going:
            task.cancel()
        _, going = await asyncio.wait(going, timeout=_AGAIN_SECONDS)


async def left(*tasks: "asyncio.Task[Any]") -> bool:
    """Cancels tasks that are not over; gives whether one goes on nevertheless, of which the log tells where it is.

    An author's code may catch its cancellation, and nothing can end it but the process.
    """
    going = {task for task in tasks if not task.done()}
    for task in going:
        task.cancel()
    if going:
        _, going = await asyncio.wait(going, timeout=_LEFT_SECONDS)
    for task in going:
        task.add_done_callback(_over)
        log.error("catches its cancellation, and goes on until its process ends: %s", place(task))
    return bool(going)


def _over(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("what had been left failed", exc_info=error)


def place(task: "asyncio.Task[Any]") -> str:
    """The file and line at which a task waits: the last one that is not asyncio's."""
    at: Any = task.get_coro()
    found = at
    while hasattr(inner := at.cr_await, "cr_await"):
        at = inner
        if not at.cr_code.co_filename.startswith(_ASYNCIO):
            found = at
    return f"{Path(found.cr_code.co_filename).name}:{found.cr_frame.f_lineno}"


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Works for the length of the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await ended(task)


def spawned(tasks: "set[asyncio.Task[Any]]", what: str, work: Coroutine[Any, Any, Any]) -> None:
    """Begins work that nobody waits for: it is among `tasks` until it is over, and the log tells of its failure."""

    def over(task: "asyncio.Task[Any]") -> None:
        tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("%s failed", what, exc_info=error)

    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(over)


async def repeated(
    what: str, seconds: float, work: Callable[[], Awaitable[None]], *, at_once: bool = False
) -> None:
    """Works every so many seconds, the first time `at_once` or after that time, until it is cancelled.

    A failure ends nothing, since Redis or NATS may be away; the log tells of it once, until it is another one.
    """
    told, pause = "", 0.0 if at_once else seconds
    while True:
        await asyncio.sleep(pause)
        pause = seconds
        try:
            await work()
        except Exception as error:  # whatever it is: else nobody would do it any more
            if told != repr(error):
                log.exception("%s failed, and is tried again", what)
            told = repr(error)
        else:
            told = ""
