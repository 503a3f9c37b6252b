"""A Redis that does what it is asked, and answers too late."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from procession_services.runtime.redis_client import RedisClient
from tests.support.servers import Servers, own_servers
from tests.support.waiting import until

__all__ = ["LateRedis", "late_redis"]


class LateRedis:
    """A server of its own, and an impatient client of it."""

    def __init__(self, servers: Servers, client: Any) -> None:
        self.servers, self.client = servers, client

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Has Redis stand still for the length of the block; what it is asked meanwhile it does then."""
        self.servers.freeze_redis()
        try:
            yield
        finally:
            self.servers.thaw_redis()

    async def given_up(self) -> None:
        """Returns when the client waits for no answer any more over the connection on which it has asked."""
        await until(lambda: self.client._line is None)


@asynccontextmanager
async def late_redis(directory: Path) -> AsyncIterator[LateRedis]:
    """Both for the length of the block."""
    async with own_servers(directory, nats=False) as servers:
        url, patience = servers.endpoints.redis_url, Retry(NoBackoff(), 100)
        async with RedisClient.from_url(url, protocol=2, retry=patience, socket_timeout=0.5) as client:
            yield LateRedis(servers, client)
