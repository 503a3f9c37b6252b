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
        await jobs.put({"number": number})
    taken = await next_job(jobs, 3)
    assert [job["number"] for _, job in taken] == [0, 1, 2]
    for number, _ in taken:
        await jobs.done(number)
    assert await jobs.waiting() == 0


async def test_a_job_goes_to_one_replica(redis: "Redis", stream):
    replicas = [RedisJobs(redis, name, stream=stream) for name in "ab"]
    for number in range(2):
        await replicas[0].put({"number": number})
    found = await asyncio.gather(*(next_job(each) for each in replicas))
    assert {job["number"] for [(_, job)] in found} == {0, 1}


async def test_what_a_lost_replica_had_is_taken_over(redis: "Redis", stream):
    lost = RedisJobs(redis, "lost", stream=stream)
    await lost.put({"number": 7})
    await next_job(lost)
    [(number, job)] = await next_job(RedisJobs(redis, "other", stream=stream, lost_ms=0))
    assert job == {"number": 7}
    assert await lost.waiting() == 1
    await lost.done(number)
    assert await lost.waiting() == 0
