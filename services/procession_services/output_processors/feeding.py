"""Takes what has come of a stream through its chain, so that what comes out goes soon, and together."""

import asyncio
from functools import partial
from typing import Any

from procession_schemas.chunks import Chunk
from procession_services.output_processors.opening import Session
from procession_services.processor_host.outbox import TOGETHER_SECONDS

_FIRST_SECONDS = 0.0002
"""How long the first chunks of a stream, which somebody waits for most, wait for those behind them."""
_NOTHING: dict[str, Any] = {"n": 0, "c": []}
"""A frame without chunks, after which what is ready is sent."""
_SLOW_SECONDS = 0.1
"""A chunk that kept the event loop for so long may have kept a heartbeat, too."""
_TURNS = 4
"""Turns of the loop until a heartbeat that is due is written: the timer, who beats, and who writes come in turn."""


async def taken(session: Session) -> dict[str, Any]:
    """The next frame; one without chunks where something is to be sent that was written meanwhile."""
    if session.outbox.waiting and session.frames.empty():  # written while the last batch went out
        return _NOTHING
    session.outbox.unattended = partial(session.frames.put_nowait, _NOTHING)
    try:
        return await session.frames.get()
    finally:
        session.outbox.unattended = None


async def feed(session: Session, chunks: list[Chunk]) -> None:
    """Takes chunks through the chain; what comes out may go with that of the next ones, but soon."""
    clock, outbox = asyncio.get_running_loop().time, session.outbox
    if not outbox.waiting:
        session.flush_at = clock() + (TOGETHER_SECONDS if session.processed else _FIRST_SECONDS)
    async with outbox.flushing():
        for chunk in chunks:
            session.results.sent(chunk)
            await session.chain.feed(chunk)
            session.processed += 1
            late = clock() - session.flush_at
            if late > 0:
                await outbox.flush()
                for _ in range(1 if late < _SLOW_SECONDS else _TURNS):
                    await asyncio.sleep(0)  # nats-py writes when others may run
                session.flush_at = clock() + TOGETHER_SECONDS
