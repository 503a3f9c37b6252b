"""What a user may do in Redis is known before it is needed."""

import re
from pathlib import Path

import pytest
from redis.asyncio import Redis

import procession_services
from procession_services.runtime.access import Access
from procession_services.runtime.redis_rights import COMMANDS, rights_problems_at

USER = Access(redis_user="narrow", redis_password="x")


@pytest.fixture
async def narrow(servers):
    """Gives the user these rules; gives what is told of it."""
    async with Redis.from_url(servers.redis_url) as redis:

        async def told(*rules: str, service: str = "tools") -> str:
            await redis.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">x", *rules)
            return "".join(
                each.message for each in await rights_problems_at(servers.redis_url, USER, service)
            )

        before = await redis.dbsize()
        yield told
        await redis.execute_command("ACL", "DELUSER", "narrow")
        assert await redis.dbsize() <= before + 10  # those that expire


@pytest.mark.parametrize("service", ["tools", "memory"])
async def test_a_user_who_may_do_everything_is_told_nothing(narrow, service):
    assert await narrow("~*", "+@all", service=service) == ""


@pytest.mark.parametrize(
    ("rule", "missing"),
    [
        ("-hset", "(HSET)"),
        ("-zadd", "(ZADD)"),
        ("-evalsha", "(EVALSHA)"),
        ("-del", "(DEL)"),
        ("-set", "(SET)"),
        ("-multi", "(MULTI)"),
        ("-ping", "(PING)"),
        ("-@scripting", "(EVAL, EVALSHA, SCRIPT LOAD, SCRIPT EXISTS)"),
    ],
)
async def test_a_command_that_is_missing_is_told_with_the_remedy(narrow, rule, missing):
    told = await narrow("~*", "+@all", rule)
    assert missing in told
    assert "procession init" in told


async def test_keys_that_are_missing_are_told(narrow):
    told = await narrow("~procession:admission:*", "~procession:*:run:*", "+@all")
    assert "HSET" not in told
    assert "keys procession:*:run:*" not in told
    assert "keys procession:*:kv:*" in told
    assert "the key procession:deadlines" in told


async def test_only_the_memory_service_needs_what_memory_needs(narrow):
    rules = ("~*", "+@all", "-xadd")
    assert await narrow(*rules, service="tools") == ""
    assert "(XADD)" in await narrow(*rules, service="memory")


def test_every_command_of_a_script_is_tried():
    below = Path(procession_services.__file__).parent
    used = set()
    for path in (below / "runtime").glob("*.py"):
        used |= set(re.findall(r"p?call\('([A-Z]+)'", path.read_text(encoding="utf-8")))
    assert used - {"INFO"} <= set(COMMANDS)  # without INFO, lives of Redis are not told apart
