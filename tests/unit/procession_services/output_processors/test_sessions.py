"""What a slow processor keeps from running."""

import asyncio
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from procession_services.output_processors import sessions


async def test_a_heartbeat_that_is_due_goes_out_before_the_next_chunk_of_a_blocking_processor() -> None:
    """The timer that is due wakes the task that beats, which wakes the one that writes."""
    happened: list[Any] = []
    beat, write = asyncio.Event(), asyncio.Event()

    async def beating() -> None:
        await beat.wait()
        write.set()

    async def writing() -> None:
        await write.wait()
        happened.append("written")

    async def feed(chunk: Any) -> None:
        happened.append(chunk)
        time.sleep(2 * sessions._SLOW_SECONDS)  # noqa: ASYNC251 - what blocks is the subject

    tasks = [asyncio.create_task(beating()), asyncio.create_task(writing())]
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(sessions._SLOW_SECONDS, beat.set)
    results, chain = SimpleNamespace(sent=lambda _chunk: None), SimpleNamespace(feed=feed)
    session: Any = SimpleNamespace(outbox=Outbox(), results=results, chain=chain, processed=0)
    await sessions._feed(session, [{"type": "start"}, {"type": "finish"}])
    assert happened == [{"type": "start"}, "written", {"type": "finish"}]
    await asyncio.gather(*tasks)


class Outbox:
    waiting = False

    @asynccontextmanager
    async def flushing(self) -> Any:
        yield

    async def flush(self) -> None:
        """Has nothing to send."""
