"""A Redis that has answered and not written yet when it is killed; `appendfsync everysec` allows it two seconds."""

import asyncio
import os
import shutil
import signal
import time
from pathlib import Path

from redis.asyncio import Redis

from procession_services.runtime.embedded import EmbeddedServers

__all__ = ["Forgetful"]


class Forgetful:
    """Has Redis come back as it was when `remember` was called last.

    Args:
        servers: Whose Redis it is.
        directory: Where these have their data.
    """

    def __init__(self, servers: EmbeddedServers, directory: Path) -> None:
        self._servers = servers
        self._data, self._saved = directory / "redis", directory / "redis-remembered"

    def remember(self) -> None:
        """Copies what it has written."""
        shutil.rmtree(self._saved, ignore_errors=True)
        shutil.copytree(self._data, self._saved, ignore=shutil.ignore_patterns("temp-*"))

    async def forget(self) -> None:
        """Kills it, and starts it with the copy; returns when it answers.

        Lives of Redis are named by the second in which they began (docs/adr/0024). If the copy is older than the life
        that ends, the next one would have its name, unless it begins in a later second.
        """
        async with Redis.from_url(self._servers.endpoints.redis_url) as redis:
            life = int(await redis.hget("procession:admission:life", "life") or 0)
            os.kill((await redis.info("server"))["process_id"], signal.SIGKILL)
        shutil.rmtree(self._data)
        shutil.copytree(self._saved, self._data)
        await asyncio.sleep(life + 1 - time.time())
        await self._servers.restart_redis()
