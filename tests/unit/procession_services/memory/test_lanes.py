"""Jobs of one tenant hold up those of no other."""

import asyncio
from collections import defaultdict, deque
from contextlib import asynccontextmanager

import pytest

from procession_services.memory import lanes
from procession_services.memory.lanes import Lanes
from procession_services.runtime.tasks import ended
from tests.support.waiting import until


class Queue:
    """Jobs in memory; `fails` are raised first."""

    def __init__(self, *jobs):
        self.rung = asyncio.Event()
        self.jobs = defaultdict(deque)
        self.finished, self.fails = [], []
        for job in jobs:
            self.put(*job)

    def put(self, tenant, number):
        self.jobs[tenant].append(number)
        self.rung.set()

    async def tenants(self):
        if self.fails:
            raise self.fails.pop()
        while True:
            for tenant in [tenant for tenant, jobs in self.jobs.items() if jobs]:
                yield tenant
            await self.rung.wait()
            self.rung.clear()

    async def take(self, tenant):
        jobs = self.jobs[tenant]
        return (str(number := jobs.popleft()), {"tenant": tenant, "number": number}) if jobs else None

    async def done(self, tenant, number):
        self.finished.append((tenant, int(number)))


@pytest.fixture
async def begin():
    """Begins to work on a queue; it ends with the test."""
    tasks = []

    def begin(queue, work, **options):
        tasks.append(asyncio.create_task(Lanes(queue, work, **options).run()))

    yield begin
    await ended(*tasks)


async def done(_job):
    return True


async def test_a_job_that_does_not_end_holds_up_those_of_its_tenant_only(begin):
    free = asyncio.Event()

    async def work(job):
        if job["tenant"] == "slow":
            await free.wait()
        return True

    queue = Queue(("slow", 1), ("slow", 2), ("quick", 3), ("quick", 4))
    begin(queue, work)
    await until(lambda: queue.finished == [("quick", 3), ("quick", 4)])
    queue.put("new", 5)
    await until(lambda: queue.finished[2:] == [("new", 5)])
    free.set()
    await until(lambda: queue.finished[3:] == [("slow", 1), ("slow", 2)])


async def test_who_does_not_hold_the_jobs_of_a_tenant_leaves_them_alone(begin):
    held = {"mine"}

    @asynccontextmanager
    async def hold(tenant):
        yield tenant in held

    queue = Queue(("others", 1), ("mine", 2))
    begin(queue, done, hold=hold)
    await until(lambda: queue.finished == [("mine", 2)])
    held.add("others")
    queue.rung.set()
    await until(lambda: queue.finished == [("mine", 2), ("others", 1)])


async def test_so_many_jobs_of_a_tenant_are_worked_on_at_once(begin):
    free, at_work = asyncio.Event(), []

    async def work(job):
        at_work.append(job["number"])
        await free.wait()
        return True

    queue = Queue(*(("t", number) for number in range(5)))
    begin(queue, work, at_once=3)
    await until(lambda: len(at_work) == 3)
    queue.put("t", 5)
    free.set()
    await until(lambda: len(queue.finished) == 6)
    assert at_work == [0, 1, 2, 3, 4, 5]


async def test_a_job_that_comes_again_while_it_is_worked_on_is_not_begun_again(begin):
    """As one does that takes longer than a lost replica is waited for."""
    free, begun = asyncio.Event(), []

    async def work(job):
        begun.append(job["number"])
        if job["number"] == 1:
            await free.wait()
        return True

    queue = Queue(("t", 1), ("t", 1), ("t", 2))
    begin(queue, work, at_once=2)
    await until(lambda: queue.finished == [("t", 2)])
    free.set()
    await until(lambda: queue.finished == [("t", 2), ("t", 1)])
    assert begun == [1, 2]


async def test_a_job_that_is_not_done_stays_in_the_queue(begin):
    async def work(job):
        return job["number"] > 1

    queue = Queue(("t", 1), ("t", 2))
    begin(queue, work)
    await until(lambda: queue.finished == [("t", 2)])


async def test_a_queue_that_cannot_be_read_is_read_again(begin, monkeypatch, caplog):
    monkeypatch.setattr(lanes, "_PAUSE_SECONDS", 0.01)
    queue = Queue(("t", 1))
    queue.fails = [ConnectionError("Redis is away")] * 2
    begin(queue, done)
    await until(lambda: queue.finished == [("t", 1)])
    assert "looking for queued memory jobs failed" in caplog.text


async def test_work_that_fails_ends_nothing(begin, caplog):
    async def work(job):
        if job["number"] == 1:
            raise ValueError("no")
        return True

    queue = Queue(("t", 1))
    begin(queue, work)
    await until(lambda: "working on the memory jobs of tenant t failed" in caplog.text)
    queue.put("t", 2)
    await until(lambda: queue.finished == [("t", 2)])
