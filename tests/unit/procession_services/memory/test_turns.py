"""Turns: one run on a thread at a time, where a request wants that."""

import asyncio
from typing import Any

import pytest

from procession.args import AbortSignal
from procession.errors import ProcessorError
from procession_services.memory.stores.redis_turns import RedisTurns, _keys
from procession_services.memory.turns import Turns

pytestmark = pytest.mark.integration


class Runs:
    """Runs that are at work until they end."""

    def __init__(self, redis: Any, tenant: str) -> None:
        self._redis, self.store, self.tenant = redis, RedisTurns(redis), tenant
        self.ended: set[str] = set()
        self.cancelled: list[str] = []
        self.turns = Turns(self.store, self._running, self._cancel)

    async def _running(self, _tenant: str, run: str) -> bool:
        return run not in self.ended

    async def _cancel(self, _tenant: str, run: str) -> None:
        self.cancelled.append(run)
        self.ended.add(run)

    async def begin(self, run: str, policy: Any = "queue", *, thread: str = "t", signal: Any = None) -> None:
        async with asyncio.timeout(10):
            await self.turns.begin(
                self.tenant, "r", thread, run, policy=policy, abort_signal=signal or AbortSignal()
            )

    async def waiting(self, run: str, **more: Any) -> "asyncio.Task[None]":
        """Begins a run that has to wait; it is in the queue when this returns."""
        task = asyncio.create_task(self.begin(run, **more))
        _, queue = _keys(self.tenant, "r", "t")
        async with asyncio.timeout(10):
            while await self._redis.zscore(queue, run) is None:  # noqa: ASYNC110 - Redis has no event
                await asyncio.sleep(0.01)
        return task


@pytest.fixture
def runs(redis: Any, tenant: str) -> Runs:
    return Runs(redis, tenant)


async def test_runs_wait_in_the_order_in_which_they_came(runs: Runs) -> None:
    await runs.begin("one")
    two = await runs.waiting("two")
    three = await runs.waiting("three")
    assert not two.done()
    runs.ended.add("one")
    await two
    assert not three.done()
    runs.ended.add("two")
    await three


async def test_a_run_that_comes_again_has_its_turn(runs: Runs) -> None:
    await runs.begin("one")
    await runs.begin("one")


async def test_other_threads_are_free(runs: Runs) -> None:
    await runs.begin("one")
    await runs.begin("two", "reject", thread="t2")


async def test_reject(runs: Runs) -> None:
    await runs.begin("one")
    with pytest.raises(ProcessorError, match="run one is at work on thread 't'") as caught:
        await runs.begin("two", "reject")
    assert caught.value.code == "THREAD_BUSY"
    runs.ended.add("one")
    await runs.begin("three", "reject")


async def test_interrupt_cancels_and_takes_over(runs: Runs) -> None:
    await runs.begin("one")
    await runs.begin("two", "interrupt")
    assert runs.cancelled == ["one"]


async def test_who_dies_or_is_cancelled_while_it_waits_keeps_nobody(runs: Runs) -> None:
    await runs.begin("one")
    signal = AbortSignal()
    two = await runs.waiting("two", signal=signal)
    await runs.store.take(runs.tenant, "r", "t", "dead")
    signal.abort()
    await two
    runs.ended |= {"one", "dead"}
    await runs.begin("three")
