"""Jobs in a real Redis: each is done, whoever dies."""

import asyncio
import secrets
from functools import partial

import pytest
from redis.asyncio import Redis

from procession_services.memory.lanes import Lanes
from procession_services.memory.stores.redis_jobs import RedisJobs
from procession_services.memory.stores.redis_locks import RedisLocks
from procession_services.runtime.tasks import ended
from tests.support.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture
def name():
    return f"test:{secrets.token_hex(6)}"


async def taken(jobs, tenant="t"):
    """The next job of a tenant; there is one."""
    found = await jobs.take(tenant)
    assert found is not None
    return found


async def test_jobs_come_in_order_and_go_when_they_are_done(redis: "Redis", name):
    jobs = RedisJobs(redis, "a", name=name, lost_ms=60_000)
    for number in range(3):
        await jobs.put({"tenant": "t", "number": number})
    found = [await taken(jobs) for _ in range(3)]
    assert [job["number"] for _, job in found] == [0, 1, 2]
    assert await jobs.take("t") is None
    for number, _ in found:
        await jobs.done("t", number)
    assert await jobs.waiting("t") == 0
    left = [key.decode().removeprefix(name) async for key in redis.scan_iter(f"{name}*")]
    assert left == [":bell"]


async def test_jobs_are_those_of_a_tenant(redis: "Redis", name):
    jobs = RedisJobs(redis, "a", name=name, lost_ms=60_000)
    for tenant in "aab":
        await jobs.put({"tenant": tenant})
    assert [await jobs.waiting(tenant) for tenant in "abc"] == [2, 1, 0]
    number, job = await taken(jobs, "a")
    assert job == {"tenant": "a"}
    for _ in range(2):  # the second time nothing is left to be done
        await jobs.done("a", number)
    assert [await jobs.waiting(tenant) for tenant in "abc"] == [1, 1, 0]
    assert await jobs.take("c") is None


async def test_who_has_jobs_is_told_at_every_job(redis: "Redis", name):
    jobs = RedisJobs(redis, "a", name=name, lost_ms=60_000)
    await jobs.put({"tenant": "a"})
    async with asyncio.timeout(10):
        tenants = jobs.tenants()
        assert await anext(tenants) == "a"
        await jobs.done("a", (await taken(jobs, "a"))[0])
        following = asyncio.ensure_future(anext(tenants))
        await jobs.put({"tenant": "b"})
        assert await following == "b"
        assert await anext(tenants) == "b", "as long as it has jobs"


async def test_which_indexes_are_used_is_kept_by_tenant_and_name(redis: "Redis", name):
    jobs, tenant = RedisJobs(redis, "a", name=name, lost_ms=60_000), f"{name}-t".replace(":", "-")
    for embedder in ("old", "new"):
        await jobs.remember(tenant, "messages", {"embedder": embedder})
    assert await jobs.remembered(tenant) == [{"embedder": "new"}]
    assert await jobs.remembered(f"{tenant}-other") == []


async def test_a_job_goes_to_one_replica(redis: "Redis", name):
    replicas = [RedisJobs(redis, replica, name=name, lost_ms=60_000) for replica in "ab"]
    for number in range(2):
        await replicas[0].put({"tenant": "t", "number": number})
    found = await asyncio.gather(*(taken(each) for each in replicas))
    assert {job["number"] for _, job in found} == {0, 1}


async def test_what_a_lost_replica_had_is_taken_over(redis: "Redis", name):
    lost = RedisJobs(redis, "lost", name=name, lost_ms=60_000)
    for number in (7, 8):
        await lost.put({"tenant": "t", "number": number})
    await taken(lost)
    number, job = await taken(RedisJobs(redis, "other", name=name, lost_ms=0))
    assert job == {"tenant": "t", "number": 7}
    await lost.done("t", number)
    assert await lost.waiting("t") == 1
    assert (await taken(lost))[1]["number"] == 8


async def test_replicas_that_hold_a_queue_do_its_jobs_in_order_and_none_beside_another(redis: "Redis", name):
    """Of what one has taken and not done, the next one who holds the queue does first."""
    locks, at_work, begun = RedisLocks(redis, seconds=5), set[int](), list[int]()

    async def work(job):
        assert not at_work
        at_work.add(job["number"])
        begun.append(job["number"])
        await redis.ping()  # others might begin meanwhile
        at_work.remove(job["number"])
        return True

    mine = RedisJobs(redis, "lost", name=name, lost_ms=0)
    for number in range(30):
        await mine.put({"tenant": "t", "number": number})
    await taken(mine)
    queues = [RedisJobs(redis, replica, name=name, lost_ms=0) for replica in "abc"]
    tasks = [asyncio.create_task(Lanes(jobs, work, hold=partial(locks.hold, name)).run()) for jobs in queues]
    await until(lambda: len(begun) == 30)
    await ended(*tasks)
    assert begun == [*range(30)]
