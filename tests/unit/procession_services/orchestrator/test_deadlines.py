"""One run that cannot be ended keeps no other from its end."""

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
