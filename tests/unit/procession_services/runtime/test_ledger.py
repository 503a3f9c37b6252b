import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from procession.usage import UsageSum
from procession_services.runtime.embedded import Endpoints
from procession_services.runtime.ledger import Ledger
from procession_services.runtime.redis_client import RedisClient, connect
from tests.support.late_redis import late_redis

pytestmark = pytest.mark.integration

NOON = 1_800_000_000.0 - 1_800_000_000 % 86_400 + 43_200
HOUR, DAY = 3600, 86_400
USED = {"inputTokens": 100, "outputTokens": 20}


class Clock:
    def __init__(self) -> None:
        self.at = NOON

    def __call__(self) -> float:
        return self.at


@pytest_asyncio.fixture
async def redis(servers: Endpoints) -> AsyncIterator[RedisClient]:
    async with connect(servers.redis_url) as client:
        yield client


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(redis, clock) -> Ledger:
    return Ledger(redis, clock)


@pytest.fixture
def tenant() -> str:
    return f"t-{secrets.token_hex(6)}"


async def test_a_call_counts_for_each_scope_and_for_the_tenant(ledger, tenant):
    ledger.add(tenant, {"run": "r1", "thread": "t1"}, "openai/gpt-4o", USED, 0.25)
    await ledger.drain()
    for scope, key in {"run": "r1", "thread": "t1", "tenant": tenant}.items():
        spent = await ledger.read(tenant, scope, key, HOUR)
        assert (spent.cost, spent.input_tokens, spent.output_tokens, spent.calls) == (0.25, 100, 20, 1)
    assert await ledger.read(tenant, "thread", "t2", HOUR) == UsageSum()
    assert await ledger.read(tenant, "user", "t1", HOUR) == UsageSum()
    assert await ledger.read(f"{tenant}-other", "thread", "t1", HOUR) == UsageSum()


async def test_a_burst_of_calls_takes_one_connection(servers, tenant, clock):
    narrow: Any = RedisClient.from_url(servers.redis_url, max_connections=1)
    async with narrow:
        ledger = Ledger(narrow, clock)
        for _ in range(300):
            ledger.add(tenant, {}, "a/b", USED, 0.01)
        await ledger.drain()
        assert (await ledger.read(tenant, "tenant", tenant, HOUR)).calls == 300


async def test_a_reader_sees_what_its_process_has_booked(ledger, tenant):
    ledger.add(tenant, {"run": "r"}, "a/b", USED, 0.01)
    assert (await ledger.read(tenant, "run", "r", None)).calls == 1


async def test_others_see_what_was_booked_before_something_else_was_written(servers, ledger, redis, tenant):
    ledger.add(tenant, {"run": "r"}, "a/b", USED, 0.01)
    await redis.set(f"procession:{tenant}:step", "saved", ex=60)
    async with connect(servers.redis_url) as other:
        assert (await Ledger(other).read(tenant, "run", "r", None)).calls == 1


async def test_a_reader_that_gives_up_stops_no_booking(ledger, tenant):
    ledger.add(tenant, {"run": "r"}, "a/b", USED, 0.01)
    reader = asyncio.create_task(ledger.read(tenant, "run", "r", None))
    await asyncio.sleep(0)
    reader.cancel()
    assert (await ledger.read(tenant, "run", "r", None)).calls == 1


async def test_sums_are_exact(ledger, tenant):
    for _ in range(10):
        ledger.add(tenant, {"run": "r"}, "openai/gpt-4o", USED, 0.1)
        ledger.add(tenant, {"run": "r"}, "openai/gpt-4o", USED, 0.000_000_15)
    await ledger.drain()
    assert (await ledger.read(tenant, "run", "r", None)).cost == 1.0000015


async def test_models_are_told_apart_the_dearest_first(ledger, tenant):
    ledger.add(tenant, {"user": "u"}, "a/cheap", USED, 0.1)
    ledger.add(tenant, {"user": "u"}, "b/dear|odd", USED, 2.0)
    ledger.add(tenant, {"user": "u"}, "a/cheap", USED, 0.1)
    await ledger.drain()
    spent = await ledger.read(tenant, "user", "u", DAY)
    assert [(m.model, m.cost, m.calls) for m in spent.breakdown] == [
        ("b/dear|odd", 2.0, 1),
        ("a/cheap", 0.2, 2),
    ]


async def test_an_unknown_price_is_not_zero_and_zero_is(ledger, tenant):
    ledger.add(tenant, {"thread": "free"}, "a/free", USED, 0.0)
    ledger.add(tenant, {"thread": "unknown"}, "a/unknown", {"inputTokens": None}, None)
    ledger.add(tenant, {"thread": "both"}, "a/unknown", USED, None)
    ledger.add(tenant, {"thread": "both"}, "a/priced", USED, 0.5)
    await ledger.drain()
    free, unknown, both = [
        await ledger.read(tenant, "thread", key, HOUR) for key in ("free", "unknown", "both")
    ]
    assert (free.cost, free.unpriced_calls) == (0.0, 0)
    assert (unknown.cost, unknown.unpriced_calls, unknown.input_tokens) == (None, 1, 0)
    assert (both.cost, both.unpriced_calls, both.calls) == (0.5, 1, 2)


@pytest.mark.parametrize(
    ("window", "slot"),
    [(HOUR, 60), (6 * HOUR, 60), (DAY, HOUR), (7 * DAY, HOUR), (30 * DAY, DAY), (365 * DAY, DAY)],
)
async def test_a_call_leaves_the_window_with_its_slot(ledger, tenant, clock, window, slot):
    ledger.add(tenant, {"user": "u"}, "a/b", USED, 1.0)
    await ledger.drain()
    clock.at = NOON + window
    assert (await ledger.read(tenant, "user", "u", window)).cost == 1.0
    clock.at = NOON + window + slot
    assert (await ledger.read(tenant, "user", "u", window)).cost == 0.0


async def test_calls_of_many_slots_are_summed(ledger, tenant, clock):
    for hours_ago in range(30, -1, -1):
        clock.at = NOON - hours_ago * HOUR
        ledger.add(tenant, {"user": "u"}, "a/b", USED, 1.0)
        await ledger.drain()
    assert [(await ledger.read(tenant, "user", "u", w)).calls for w in (HOUR, 6 * HOUR, DAY, 7 * DAY)] == [
        2,
        7,
        25,
        31,
    ]
    assert (await ledger.read(tenant, "user", "u", None)).calls == 31


async def test_nothing_is_kept_for_ever(ledger, tenant, redis):
    ledger.add(tenant, {"run": "r", "user": "u"}, "a/b", USED, 1.0)
    await ledger.drain()
    keys = await redis.keys(f"procession:{tenant}:usage:*")
    assert len(keys) == 7
    assert all([0 < await redis.ttl(key) <= 400 * DAY for key in keys])


async def test_a_key_with_colons_is_no_other_key(ledger, tenant):
    ledger.add(tenant, {"user": "a:b"}, "a/b", USED, 1.0)
    await ledger.drain()
    assert (await ledger.read(tenant, "user", "a", HOUR)).calls == 0
    assert (await ledger.read(tenant, "user", "a:b", HOUR)).calls == 1


async def test_a_call_that_redis_is_told_of_again_is_booked_once(tmp_path, tenant):
    async with late_redis(tmp_path) as redis:
        ledger = Ledger(redis.client)
        ledger.add(tenant, {"run": "before"}, "a/b", USED, 1.0)
        await ledger.drain()  # so that Redis knows the script
        with redis.frozen():
            ledger.add(tenant, {"run": "r"}, "a/b", USED, 1.0)
            await redis.given_up()
        await ledger.drain()
        assert (await ledger.read(tenant, "run", "r", None)).calls == 1


async def test_booking_waits_for_nothing_and_a_failure_is_logged(tenant, caplog):
    nowhere: Any = RedisClient.from_url("redis://127.0.0.1:1", retry=None)
    ledger = Ledger(nowhere)
    ledger.add(tenant, {}, "a/b", USED, 1.0)
    assert not caplog.records
    await ledger.drain()
    assert "not recorded" in caplog.text
    await nowhere.aclose()
