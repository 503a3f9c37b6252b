"""Tasks end when they are told to."""

import asyncio

from procession_services.runtime.tasks import ended


async def test_a_task_that_has_lost_a_cancellation_is_told_again():
    lost = 0

    async def deaf():
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                lost += 1
                if lost > 1:
                    raise

    tasks = [asyncio.create_task(deaf()), asyncio.create_task(asyncio.sleep(60))]
    await asyncio.sleep(0)
    await ended(*tasks)
    assert (lost, [task.cancelled() for task in tasks]) == (2, [True, True])


async def test_nothing_to_end_is_no_error():
    await ended()
