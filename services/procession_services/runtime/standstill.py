"""Tells when the event loop stood still: meanwhile no other run of the process went on, and others took it for dead."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from procession_services.runtime.tasks import meanwhile

__all__ = ["noticed"]

log = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 1.0
_LATE_SECONDS: Final = 1.0


@asynccontextmanager
async def noticed() -> AsyncIterator[None]:
    """Warns, for the length of the block, each time that nothing ran for longer than a second."""
    async with meanwhile(_watch()):
        yield


async def _watch() -> None:
    while True:
        due, used = time.monotonic() + _LOOK_SECONDS, time.thread_time()
        await asyncio.sleep(_LOOK_SECONDS)
        late, worked = time.monotonic() - due, time.thread_time() - used
        if late > _LATE_SECONDS:
            log.warning(
                "nothing else ran here for at least %.1f s: %s", late, _why(computed=worked > late / 2)
            )


def _why(*, computed: bool) -> str:
    if computed:
        return "a processor or a tool computed; let it do so in asyncio.to_thread, or in another process"
    return "a processor or a tool waited without `await` (time.sleep, a blocking client), or the process was stopped"
