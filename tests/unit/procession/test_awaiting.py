"""Code of an author is awaited and left where it does not end."""

import asyncio
import contextlib
import gc

import anyio
import pytest

from procession import awaiting
from procession.authors import is_ours
from procession.awaiting import awaited, left

SECONDS = 20


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(awaiting, "_LEFT_SECONDS", 0.05)


class Deaf:
    """Catches its cancellations until it may end."""

    def __init__(self):
        self.begun, self.may_end, self.told = asyncio.Event(), asyncio.Event(), 0

    async def stay(self):
        self.begun.set()
        while not self.may_end.is_set():
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                self.told += 1
        return 7


async def test_what_is_awaited_is_what_comes_of_it():
    async def later():
        await asyncio.sleep(0)
        return 7

    made = asyncio.get_running_loop().create_future()
    made.set_result(8)
    assert (await awaited(later()), await awaited(made)) == (7, 8)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_what_is_raised_there_is_raised(error):
    """Out of a task, some of these would end the process."""

    async def fails():
        await asyncio.sleep(0)
        raise error

    with pytest.raises(error) as caught:
        await awaited(fails())
    assert not is_ours(caught.value)


async def cancels_itself():
    task = asyncio.current_task()
    assert task
    task.cancel()


async def waits():
    await cancels_itself()
    await asyncio.sleep(0)


async def waits_for_another():
    await cancels_itself()
    await asyncio.create_task(asyncio.sleep(0))


@pytest.mark.parametrize("code", [cancels_itself, waits, waits_for_another])
async def test_what_cancels_its_own_task_has_failed_and_its_task_is_not_cancelled(code):
    with pytest.raises(asyncio.CancelledError, match="cancelled its own task") as caught:
        await awaited(code())
    assert not is_ours(caught.value)
    await asyncio.sleep(0)


async def test_what_catches_that_goes_on_for_as_long_as_it_needs(caplog):
    async def catches():
        with contextlib.suppress(asyncio.CancelledError):
            await waits()
        await asyncio.sleep(awaiting._LEFT_SECONDS * 3)
        return 7

    assert await awaited(catches()) == 7
    task = asyncio.current_task()
    assert task
    assert not task.cancelling()
    assert not caplog.messages


@pytest.mark.parametrize("code", [cancels_itself, waits])
async def test_who_is_cancelled_is_so_though_what_he_waits_for_cancels_itself_too(code):
    begun = asyncio.Event()

    async def cleans():
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await code()

    waiting = asyncio.create_task(awaited(cleans()))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert waiting.cancelling() == 1


async def test_what_was_raised_there_is_gone_with_its_error():
    class Held:
        pass

    async def fails():
        held = Held()
        raise ValueError(held)

    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            await awaited(fails())
        await asyncio.sleep(0)
        assert not any(isinstance(each, Held) for each in gc.get_objects())
    finally:
        gc.enable()


async def test_who_is_cancelled_goes_on_though_what_he_waits_for_catches_that(caplog):
    deaf = Deaf()
    waiting = asyncio.create_task(awaited(deaf.stay()))
    await deaf.begun.wait()
    waiting.cancel()
    async with asyncio.timeout(SECONDS):
        await asyncio.wait({waiting})
    assert (waiting.cancelled(), deaf.told) == (True, 2)
    (said,) = caplog.messages
    assert said.startswith(
        "code ignores its cancellation, and may keep running until its process ends: test_awaiting.py:"
    )
    deaf.may_end.set()


async def test_who_is_cancelled_goes_on_though_a_task_that_the_code_waits_for_has_caught_that(caplog):
    deaf = Deaf()

    async def tidies():
        with contextlib.suppress(asyncio.CancelledError):
            deaf.begun.set()
            await asyncio.Event().wait()

    async def waits():
        await asyncio.create_task(tidies())
        await deaf.stay()

    waiting = asyncio.create_task(awaited(waits()))
    await deaf.begun.wait()
    waiting.cancel()
    async with asyncio.timeout(SECONDS):
        await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert "code ignores its cancellation" in caplog.text
    deaf.may_end.set()


async def test_what_was_left_goes_on_to_its_end():
    deaf, ended = Deaf(), asyncio.Event()

    async def stays():
        await deaf.stay()
        ended.set()

    waiting = asyncio.create_task(awaited(stays()))
    await deaf.begun.wait()
    waiting.cancel()
    async with asyncio.timeout(SECONDS):
        await asyncio.wait({waiting})
        assert not ended.is_set()
        deaf.may_end.set()
        await ended.wait()


async def test_what_is_cancelled_there_may_end_in_its_way():
    begun, cleaned = asyncio.Event(), []

    async def cleans():
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    waiting = asyncio.create_task(awaited(cleans()))
    await begun.wait()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert (waiting.cancelled(), cleaned) == (True, [True])


async def test_nobody_is_left_who_ends_or_has_ended(caplog):
    task = asyncio.create_task(asyncio.sleep(60))
    assert not await left(task)
    assert not await left(task)
    assert not await left()
    assert not caplog.messages


@pytest.mark.parametrize("end", [7, ValueError, SystemExit])
async def test_what_ends_after_all_says_what_came_of_it(end):
    begun = asyncio.Event()

    async def tidies():
        with contextlib.suppress(asyncio.CancelledError):
            begun.set()
            await asyncio.Event().wait()
        for _ in range(3):
            await asyncio.sleep(0)
        if end == 7:
            return end
        raise end

    async def waits():
        try:
            return await awaited(tidies())
        except BaseException as error:  # noqa: BLE001 - that is what is looked at
            return type(error)

    waiting = asyncio.create_task(waits())
    await begun.wait()
    waiting.cancel()
    async with asyncio.timeout(SECONDS):
        assert await waiting == end


async def test_what_waits_for_nothing_lets_nobody_else_run():
    async def at_once():
        return 7

    beside = asyncio.get_running_loop().create_task(at_once())
    assert await awaited(at_once()) == 7
    assert not beside.done()
    await beside


@pytest.mark.parametrize("limit", ["asyncio", "anyio"])
async def test_a_limit_of_its_own_takes_nothing_from_what_comes_behind_it(limit, caplog):
    """Which takes longer than what is cancelled by others may; so does what ends within that limit."""
    longer = awaiting._LEFT_SECONDS * 3

    async def tries_again():
        begun = asyncio.current_task()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01) if limit == "asyncio" else _failing_after(0.01):
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.shield(asyncio.sleep(0))
        await asyncio.sleep(longer)
        assert asyncio.current_task() is begun
        return 7

    assert await awaited(tries_again()) == 7
    assert not caplog.messages


@contextlib.asynccontextmanager
async def _failing_after(seconds):
    with anyio.fail_after(seconds):
        yield


@pytest.mark.parametrize("by", ["a limit", "somebody"])
async def test_who_is_cancelled_behind_a_limit_of_its_own_is_left_as_well(by, caplog):
    deaf, scope = Deaf(), asyncio.timeout(None)

    async def tries_again():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        return await deaf.stay()

    async def waits():
        async with scope:
            await awaited(tries_again())

    task = asyncio.create_task(waits())
    async with asyncio.timeout(SECONDS):
        await deaf.begun.wait()
        if by == "a limit":
            scope.reschedule(asyncio.get_running_loop().time())
        else:
            task.cancel()
        await asyncio.wait({task})
    assert task.cancelled() is (by == "somebody")
    assert by == "somebody" or isinstance(task.exception(), TimeoutError)
    assert caplog.messages[0].startswith("code ignores its cancellation")
    deaf.may_end.set()


async def test_a_limit_within_holds_where_it_was_set():
    async def limited():
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await awaited(limited())
