import asyncio

import pytest

from procession_services.bus import Hold, LostError


def now():
    return asyncio.get_running_loop().time()


async def test_what_has_no_end_is_ours():
    hold = Hold()
    assert hold.lasts()
    await hold.keep()


async def test_what_lasts_asks_nobody():
    asked = []
    hold = Hold(now() + 60, lambda: asked.append(1))
    await hold.keep()
    assert asked == []


@pytest.mark.parametrize("waiting", [1, 3])
async def test_who_needs_to_know_waits_until_it_is_ours_again(waiting):
    asked = asyncio.Event()
    hold = Hold(now(), asked.set)
    keeping = [asyncio.create_task(hold.keep()) for _ in range(waiting)]
    async with asyncio.timeout(10):
        await asked.wait()
        assert not any(each.done() for each in keeping)
        hold.extend(now() + 60)
        await asyncio.gather(*keeping)
    assert hold.lasts()


async def test_who_needs_to_know_is_told_that_it_is_lost():
    asked = asyncio.Event()
    hold = Hold(now(), asked.set)
    keeping = asyncio.create_task(hold.keep())
    async with asyncio.timeout(10):
        await asked.wait()
        hold.lose()
        with pytest.raises(LostError):
            await keeping
        with pytest.raises(LostError):
            await hold.keep()


async def test_what_is_lost_does_not_last_whatever_its_time_is():
    hold = Hold(now() + 60)
    hold.lose()
    assert not hold.lasts()


async def test_a_time_that_is_over_again_is_asked_for_again():
    asked: asyncio.Queue[None] = asyncio.Queue()
    hold = Hold(now(), lambda: asked.put_nowait(None))
    keeping = asyncio.create_task(hold.keep())
    async with asyncio.timeout(10):
        await asked.get()
        hold.extend(now())
        await asked.get()
        hold.extend(now() + 60)
        await keeping
