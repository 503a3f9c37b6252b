"""Jobs of the index in a real Redis: each is done, whoever dies."""

import asyncio
import secrets

import pytest
from redis.asyncio import Redis

from procession_services.memory.stores.redis_jobs import RedisJobs

pytestmark = pytest.mark.integration


@pytest.fixture
def stream():
    return f"test:{secrets.token_hex(6)}"


async def next_job(jobs, number=1):
    taken = []
    async with asyncio.timeout(10):
        async for job in jobs.take():
            taken.append(job)
            if len(taken) == number:
                break
    return taken


async def test_jobs_come_in_order_and_go_when_they_are_done(redis: "Redis", stream):
    jobs = RedisJobs(redis, "a", stream=stream)
    for number in range(3):
        await jobs.put({"tenant": "t", "number": number})
    taken = await next_job(jobs, 3)
    assert [job["number"] for _, job in taken] == [0, 1, 2]
    for number, _ in taken:
        await jobs.done(number)
    assert await jobs.waiting("t") == 0


async def test_a_tenant_learns_only_of_its_own_jobs(redis: "Redis", stream):
    jobs = RedisJobs(redis, "a", stream=stream)
    for tenant in "aab":
        await jobs.put({"tenant": tenant})
    assert [await jobs.waiting(tenant) for tenant in "abc"] == [2, 1, 0]
    [(number, _)] = await next_job(jobs)
    for _ in range(2):  # the second time nothing is left to be done
        await jobs.done(number)
    assert [await jobs.waiting(tenant) for tenant in "abc"] == [1, 1, 0]


async def test_which_indexes_are_used_is_kept_by_tenant_and_name(redis: "Redis", stream):
    jobs, tenant = RedisJobs(redis, "a", stream=stream), f"{stream}-t".replace(":", "-")
    for embedder in ("old", "new"):
        await jobs.remember(tenant, "messages", {"embedder": embedder})
    assert await jobs.remembered(tenant) == [{"embedder": "new"}]
    assert await jobs.remembered(f"{tenant}-other") == []


async def test_a_job_goes_to_one_replica(redis: "Redis", stream):
    replicas = [RedisJobs(redis, name, stream=stream) for name in "ab"]
    for number in range(2):
        await replicas[0].put({"tenant": "t", "number": number})
    found = await asyncio.gather(*(next_job(each) for each in replicas))
    assert {job["number"] for [(_, job)] in found} == {0, 1}


async def test_what_a_lost_replica_had_is_taken_over(redis: "Redis", stream):
    lost = RedisJobs(redis, "lost", stream=stream)
    await lost.put({"tenant": "t", "number": 7})
    await next_job(lost)
    [(number, job)] = await next_job(RedisJobs(redis, "other", stream=stream, lost_ms=0))
    assert job == {"tenant": "t", "number": 7}
    assert await lost.waiting("t") == 1
    await lost.done(number)
    assert await lost.waiting("t") == 0
