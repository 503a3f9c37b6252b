import asyncio
import random

import pytest

from procession_services.orchestrator.turns import Turns


class Crowd:
    """Everybody who wants a turn; who has one keeps it until the test says so."""

    def __init__(self, places: int) -> None:
        self.turns = Turns(places)
        self.came: list[str] = []
        self._inside: list[asyncio.Event] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def wants(self, *names: str) -> None:
        for name in names:
            self.tasks.append(asyncio.create_task(self._turn(name)))
        await self.settled()

    async def _turn(self, name: str) -> None:
        with await self.turns.turn(name[0]):
            self.came.append(name)
            done = asyncio.Event()
            self._inside.append(done)
            await done.wait()

    async def leaves(self) -> None:
        self._inside.pop(0).set()
        await self.settled()

    async def settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def all_leave(self) -> list[str]:
        while self._inside:
            await self.leaves()
        return self.came


async def test_who_comes_first_has_the_first_turns():
    crowd = Crowd(2)
    await crowd.wants("a1", "a2", "a3")
    assert crowd.came == ["a1", "a2"]
    assert crowd.turns.waiting("a") == 1
    assert await crowd.all_leave() == ["a1", "a2", "a3"]


async def test_one_that_comes_behind_a_flood_has_the_next_turn_but_one():
    crowd = Crowd(1)
    await crowd.wants(*(f"a{n}" for n in range(9)), "b0", "c0", "b1")
    assert (await crowd.all_leave())[:7] == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]


async def test_a_turn_that_nobody_wants_any_more_goes_to_the_next():
    crowd = Crowd(1)
    await crowd.wants("a0", "b0", "c0")
    crowd.tasks[1].cancel()
    await crowd.settled()
    assert await crowd.all_leave() == ["a0", "c0"]


async def test_a_turn_that_came_together_with_a_cancellation_is_passed_on():
    crowd = Crowd(1)
    await crowd.wants("a0", "b0", "c0")
    crowd._inside.pop(0).set()
    await asyncio.sleep(0)  # a0 has left, b0 has got the turn and does not know yet
    crowd.tasks[1].cancel()
    await crowd.settled()
    assert (await crowd.all_leave())[-1] == "c0"
    await crowd.wants("d0")
    assert crowd.came[-1] == "d0", "the place is lost"


@pytest.mark.parametrize("seed", range(20))
async def test_no_place_is_lost_whoever_goes_away(seed):
    chance, crowd = random.Random(seed), Crowd(3)
    for number in range(60):
        await crowd.wants(f"{chance.choice('abc')}{number}")
        if chance.random() < 0.3:
            chance.choice(crowd.tasks).cancel()
        if chance.random() < 0.4 and crowd._inside:
            crowd._inside.pop(0).set()
    for task in crowd.tasks:
        task.cancel()
    await asyncio.gather(*crowd.tasks, return_exceptions=True)
    after = Crowd(0)
    after.turns = crowd.turns
    await after.wants("x1", "x2", "x3", "x4")
    assert after.came == ["x1", "x2", "x3"]
