"""The servers that integration tests talk to."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from procession_services.runtime.embedded import Endpoints, embedded

__all__ = ["running_servers"]


@asynccontextmanager
async def running_servers(directory: Path) -> AsyncIterator[Endpoints]:
    """Give the servers that NATS_URL and REDIS_URL name, and start those that they do not.

    Foreign servers are shared with others: a test must use names of its own for whatever it stores.
    """
    given = {
        "nats_url": os.environ.get("NATS_URL", ""),
        "redis_url": os.environ.get("REDIS_URL", ""),
    }
    async with embedded(directory, nats=not given["nats_url"], redis=not given["redis_url"]) as started:
        yield replace(started, **{name: url for name, url in given.items() if url})
