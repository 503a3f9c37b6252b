"""Who ends the runs that an emptied Redis has lost: who was there before, or knows of one who was."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from procession_services.orchestrator import lapses
from procession_services.orchestrator.lapses import Lapses
from tests.support.waiting import until

LOOKED_AFTER = "procession:admission:looked-after"


class Redis:
    """Has what it was told."""

    def __init__(self) -> None:
        self.has: dict[str, bytes] = {}

    async def mget(self, *keys: str) -> list[bytes | None]:
        return [self.has.get(key) for key in keys]

    async def set(self, key: str, value: Any, *, nx: bool = False) -> None:
        if not (nx and key in self.has):
            self.has[key] = value if isinstance(value, bytes) else str(value).encode()


class World:
    """A Redis, and orchestrators at it; `served` says whether NATS knows of some when another one begins."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.redis, self.stores = Redis(), list[Any]()
        self.ended: list[str] = []
        self.runs: list[tuple[str, str]] = []
        self.served = False
        self._caplog = caplog

    @asynccontextmanager
    async def at_work(self, name: str) -> AsyncIterator[Lapses]:
        """An orchestrator; what NATS may give out again it has given out at once."""

        async def at_work() -> list[tuple[str, str]]:
            return self.runs

        async def served(*_: str) -> bool:
            return self.served

        async def newest(_stream: str) -> int:
            return 7

        async def end(_life: int, *, until: int) -> int:
            assert until == 7
            self.ended.append(name)
            return 1

        store: Any = SimpleNamespace(redis=self.redis, life=1, at_work=at_work)
        bus: Any = SimpleNamespace(stored=SimpleNamespace(is_served=served, newest=newest))
        self.stores.append(store)
        lost: Any = SimpleNamespace(end=end)
        one = Lapses(store, bus, SimpleNamespace(), lost, SimpleNamespace(), redelivered=-10)  # type: ignore[arg-type]
        await one.look()
        task = asyncio.create_task(one.run())
        try:
            yield one
        finally:
            task.cancel()

    async def settled(self) -> None:
        """Waits until somebody has looked after Redis."""
        await until(lambda: LOOKED_AFTER in self.redis.has)

    async def decided(self, orchestrators: int) -> None:
        """Waits until so many have left it to others."""
        self._caplog.set_level(logging.WARNING)
        await until(lambda: self._caplog.text.count("waiting for the orchestrators") == orchestrators)
        assert LOOKED_AFTER not in self.redis.has
        assert self.ended == []


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> World:
    monkeypatch.setattr(lapses, "_EVERY_SECONDS", 0.0)
    return World(caplog)


async def test_the_first_one_looks_after_it(world: World) -> None:
    async with world.at_work("first"):
        await world.settled()
    assert world.ended == ["first"]


async def test_one_who_comes_later_does_so_where_one_who_was_there_has_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lapses, "_WRITTEN_SECONDS", 1_000)
    async with world.at_work("before"):
        world.served = True
    monkeypatch.setattr(lapses, "_WRITTEN_SECONDS", 3)
    async with world.at_work("later"):
        await world.settled()
    assert world.ended == ["later"]


async def test_those_who_come_later_do_not_vouch_for_each_other(world: World) -> None:
    world.served = True
    async with world.at_work("one"), world.at_work("two"):
        await world.decided(2)
        for store in world.stores:
            store.life += 1
        await world.decided(4)


@pytest.mark.parametrize(
    ("before", "told"),
    [({}, "Redis is new, or was emptied: "), ({LOOKED_AFTER: b"2"}, "Redis was restarted: ")],
)
async def test_what_became_of_redis_is_told_as_it_was(
    world: World, caplog: pytest.LogCaptureFixture, before: dict[str, bytes], told: str
) -> None:
    world.redis.has |= before
    world.runs.append(("default", "run"))
    async with world.at_work("one"):
        assert f"{told}checking on 1 active run" in caplog.text


async def test_they_leave_it_to_one_who_was_there(world: World) -> None:
    world.served = True
    async with world.at_work("one") as one:
        await world.decided(1)
        world.redis.has[LOOKED_AFTER] = b"1"
        await until(lambda: not one._unsettled)
        assert world.ended == []
        world.redis.has.clear()
        await world.settled()
    assert world.ended == ["one"], "it was there when Redis was emptied once more"


async def test_one_who_was_there_notices_although_another_one_looks_already(world: World) -> None:
    async with world.at_work("before"):
        await world.settled()
        world.ended.clear()
        world.redis.has.clear()
        world.served = True
        async with world.at_work("later"):
            await world.settled()
    assert "before" in world.ended
