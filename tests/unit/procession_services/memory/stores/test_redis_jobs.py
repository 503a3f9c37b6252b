"""Jobs in a real Redis: each is done, whoever dies."""

import asyncio
import secrets

import pytest
from redis.asyncio import Redis

from procession_services.memory.stores.redis_jobs import RedisJobs

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
    jobs = RedisJobs(redis, "a", name=name)
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
    jobs = RedisJobs(redis, "a", name=name)
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
    jobs = RedisJobs(redis, "a", name=name)
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
    jobs, tenant = RedisJobs(redis, "a", name=name), f"{name}-t".replace(":", "-")
    for embedder in ("old", "new"):
        await jobs.remember(tenant, "messages", {"embedder": embedder})
    assert await jobs.remembered(tenant) == [{"embedder": "new"}]
    assert await jobs.remembered(f"{tenant}-other") == []


async def test_a_job_goes_to_one_replica(redis: "Redis", name):
    replicas = [RedisJobs(redis, replica, name=name) for replica in "ab"]
    for number in range(2):
        await replicas[0].put({"tenant": "t", "number": number})
    found = await asyncio.gather(*(taken(each) for each in replicas))
    assert {job["number"] for _, job in found} == {0, 1}


async def test_what_a_lost_replica_had_is_taken_over(redis: "Redis", name):
    lost = RedisJobs(redis, "lost", name=name)
    for number in (7, 8):
        await lost.put({"tenant": "t", "number": number})
    await taken(lost)
    number, job = await taken(RedisJobs(redis, "other", name=name, lost_ms=0))
    assert job == {"tenant": "t", "number": 7}
    await lost.done("t", number)
    assert await lost.waiting("t") == 1
    assert (await taken(lost))[1]["number"] == 8
