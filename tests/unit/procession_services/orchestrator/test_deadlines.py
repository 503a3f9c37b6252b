"""No run keeps another one from its end, and no deadline is missed."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from procession_services.orchestrator.deadlines import Deadlines
from procession_services.runs.stored import UnreadableError
from procession_services.runtime import store as stores
from procession_services.runtime.embedded import Endpoints
from procession_services.runtime.redis_client import connect
from procession_services.runtime.store import RunStore

pytestmark = pytest.mark.integration
FAR = 10**15


async def test_a_run_that_cannot_be_ended_is_put_off(servers: Endpoints, monkeypatch: Any) -> None:
    monkeypatch.setattr(stores, "DEADLINES", "deadlines-of-this-test")
    ended, failing = (
        [],
        {"one": RuntimeError("too long"), "two": UnreadableError("x"), "three": UnreadableError("x")},
    )

    async def on_deadline(_tenant: str, run: str) -> None:
        ended.append(run)
        if run in failing:
            raise failing[run]

    async def end_unread(tenant: str, run: str) -> None:
        if run == "three":
            raise TimeoutError
        await store.discard(tenant, run)

    async with connect(servers.redis_url) as redis:
        await redis.zadd("deadlines-of-this-test", {"t one": 1, "t two": 2, "t three": 3, "t four": 4})
        store: Any = RunStore(redis, ttl=60, finished_ttl=30, told_ttl=90)
        orchestrator: Any = SimpleNamespace(on_deadline=on_deadline)
        driver, lost = SimpleNamespace(), SimpleNamespace(end_unread=end_unread)
        deadlines = Deadlines(store, orchestrator, cast("Any", lost), cast("Any", driver))
        await deadlines._look()
        assert ended == ["one", "two", "three", "four"]
        left = await redis.zrange("deadlines-of-this-test", 0, -1)
        assert set(left) == {b"t one", b"t three", b"t four"}
        await deadlines._look()  # a moment later, whatever is told until then
        assert len(ended) == 4


class Store:
    """Has one deadline after the other."""

    def __init__(self, *found: list[tuple[int, str, str]]) -> None:
        self.found = list(found)
        self.on_read: Callable[[], None] = lambda: None

    async def next_deadlines(self, _most: int) -> list[tuple[int, str, str]]:
        self.on_read()
        return self.found.pop(0)

    async def put_off(self, *_: Any) -> None:
        """Needs no later look here."""


def watching(store: Store, on_deadline: Any) -> tuple[Deadlines, Any]:
    driver: Any = SimpleNamespace()
    given: Any = store, SimpleNamespace(on_deadline=on_deadline), None, driver
    return Deadlines(*given), driver


async def test_a_run_whose_end_takes_its_time_keeps_no_other_from_its_end() -> None:
    both, ended = asyncio.Barrier(2), []

    async def on_deadline(_tenant: str, run: str) -> None:
        async with asyncio.timeout(20):
            await both.wait()
        ended.append(run)

    deadlines, _ = watching(Store([(1, "t", "one"), (2, "t", "two")], []), on_deadline)
    await deadlines._look()
    assert sorted(ended) == ["one", "two"]


async def test_a_deadline_that_is_added_while_others_are_read_is_waited_for() -> None:
    ended: list[str] = []

    async def on_deadline(_tenant: str, run: str) -> None:
        ended.append(run)

    store = Store([(1, "t", "one")], [])
    deadlines, driver = watching(store, on_deadline)
    store.on_read = lambda: driver.on_deadline_added(FAR) if ended else None
    await deadlines._look()
    assert deadlines._next == FAR
    assert deadlines._sooner.is_set()
