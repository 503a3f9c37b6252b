"""How often messages were begun."""

import secrets

import pytest

from procession_services.runtime.begun import Begun
from procession_services.runtime.redis_client import connect

pytestmark = pytest.mark.integration


async def test_what_was_begun_counts_until_it_is_done(servers):
    message = secrets.token_hex(6)
    async with connect(servers.redis_url) as redis:
        begun = Begun(redis)
        for attempt in (1, 2, 3):
            with pytest.raises(ZeroDivisionError):
                async with begun.counted(message, attempt):
                    raise ZeroDivisionError
        assert await begun.times(message) == 2
        assert 0 < await redis.ttl(f"procession:admission:begun:{message}") <= 3_600
        async with begun.counted(message, 4):
            assert await begun.times(message) == 3
        assert await begun.times(message) == 0


async def test_a_message_waits_for_one_moment_for_each_time_that_it_was_begun(servers):
    """However often it is delivered until then."""
    message = secrets.token_hex(6)
    async with connect(servers.redis_url) as redis:
        begun = Begun(redis)
        assert await begun.parted(message, 2, 60.0) == 60.0
        assert 59.0 < await begun.parted(message, 2, 5.0) <= 60.0
        assert await begun.parted(message, 3, 0.0) == 0.0
        assert await begun.parted(message, 3, 60.0) == 0.0
        assert 0 < await redis.ttl(f"procession:admission:parted:{message}") <= 3_600
