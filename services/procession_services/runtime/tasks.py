"""Tasks that work until they are told to stop."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

__all__ = ["ended", "meanwhile", "repeated", "spawned"]

log = logging.getLogger(__name__)
_AGAIN_SECONDS: Final = 0.2


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


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Does the work for the length of the block."""
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
    """Does the work every so many seconds, the first time `at_once` or after that time, until it is cancelled.

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
                log.exception("%s failed, trying again", what)
            told = repr(error)
        else:
            told = ""
