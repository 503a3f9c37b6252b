"""Tasks end when they are told to, and not before."""

import asyncio

from procession_services.runtime.tasks import ended, meanwhile, repeated, spawned


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


async def test_what_is_done_meanwhile_is_over_with_the_block():
    begun, over = asyncio.Event(), []

    async def work():
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            over.append(True)

    async with meanwhile(work()):
        await begun.wait()
        assert not over
    assert over


async def test_nothing_to_end_is_no_error():
    await ended()


async def test_work_is_repeated_whatever_fails_and_the_log_has_each_failure_once(caplog):
    failures = iter([OSError("away"), OSError("away"), KeyError("x"), None, OSError("away")])
    over = asyncio.Event()

    async def work():
        try:
            failure = next(failures)
        except StopIteration:
            over.set()
            return
        if failure is not None:
            raise failure

    task = asyncio.create_task(repeated("the work", 0, work))
    async with asyncio.timeout(20):
        await over.wait()
    await ended(task)
    assert task.cancelled()
    assert [record.exc_info[0] for record in caplog.records] == [OSError, KeyError, OSError]
    assert {record.getMessage() for record in caplog.records} == {"the work failed, trying again"}


async def test_what_is_worked_on_at_once_is_so_before_the_first_pause():
    worked = asyncio.Event()

    async def work():
        worked.set()

    task = asyncio.create_task(repeated("the work", 60, work, at_once=True))
    async with asyncio.timeout(20):
        await worked.wait()
    await ended(task)


async def test_of_what_nobody_waits_for_a_failure_is_told_and_nothing_is_kept(caplog):
    tasks: set[asyncio.Task[None]] = set()

    async def work(failure):
        await asyncio.sleep(0)
        if failure:
            raise failure

    for failure in (None, OSError("away"), asyncio.CancelledError()):
        spawned(tasks, "the work", work(failure))
    assert len(tasks) == 3
    await asyncio.wait(tasks)
    await asyncio.sleep(0)
    assert tasks == set()
    assert [record.getMessage() for record in caplog.records] == ["the work failed"]
