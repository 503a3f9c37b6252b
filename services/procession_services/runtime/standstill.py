"""Tells when the event loop stood still: meanwhile no other run of the process went on, and others took it for dead.

Where it stands still for ever, as in a hook that waits without `await` for what never comes, the process ends.
"""

import asyncio
import faulthandler
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from procession_services.runtime.tasks import meanwhile

__all__ = ["noticed", "patience"]

log = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 1.0
_LATE_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 60.0


def patience(lease: float) -> float:
    """Seconds for which nothing may run: what was in hand went to others after one lease."""
    return max(_PATIENCE_SECONDS, 2 * lease)


@asynccontextmanager
async def noticed(patience: float) -> AsyncIterator[None]:
    """Warns, for the length of the block, each time that nothing ran for longer than a second.

    Where nothing runs for so many seconds, the process ends with code 1, and says on stderr where it stood. That is up
    to a thread which needs no lock of Python's, since a regular expression keeps that, too.
    """
    try:
        async with meanwhile(_watch(patience)):
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()


async def _watch(patience: float) -> None:
    while True:
        faulthandler.dump_traceback_later(patience, exit=True)
        due, used = time.monotonic() + _LOOK_SECONDS, time.thread_time()
        await asyncio.sleep(_LOOK_SECONDS)
        late, worked = time.monotonic() - due, time.thread_time() - used
        if late > _LATE_SECONDS:
            log.warning(
                "the event loop was blocked for at least %.1f s: %s", late, _why(computed=worked > late / 2)
            )


def _why(*, computed: bool) -> str:
    if computed:
        return "a processor or a tool computed; let it do that in asyncio.to_thread, or in another process"
    return "a processor or a tool waited without `await` (time.sleep, a blocking client), or the process was paused"
