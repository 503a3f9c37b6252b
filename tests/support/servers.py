"""The servers that integration tests talk to: in containers where Docker runs, else the embedded ones.

`PROCESSION_TEST_SERVERS=embedded` or `containers` decides, whatever runs.
"""

import functools
import gc
import os
import warnings
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from procession_services.runtime.embedded import EmbeddedServers, Endpoints
from tests.support.chroma import ChromaProcess

__all__ = ["Chroma", "Servers", "in_containers", "own_chroma", "own_servers", "running_servers"]

# Read before conftest.py takes all of our variables away.
_CHOICE: Final = os.environ.get("PROCESSION_TEST_SERVERS", "")


class Servers(Protocol):
    """NATS and Redis that a test may kill and start again, on the same ports and data."""

    @property
    def endpoints(self) -> Endpoints:
        """Where they listen."""

    def kill_nats(self) -> None:
        """Kills NATS as `kill -9` does."""

    def freeze_nats(self) -> None:
        """Has NATS stand still until `thaw_nats`."""

    def thaw_nats(self) -> None:
        """Lets NATS go on."""

    def freeze_redis(self) -> None:
        """Has Redis stand still until `thaw_redis`."""

    def thaw_redis(self) -> None:
        """Lets Redis go on."""

    def kill_redis(self) -> None:
        """Kills Redis as `kill -9` does."""

    async def restart_nats(self) -> None:
        """Kills NATS, if it runs, and returns when it answers again."""

    async def restart_redis(self) -> None:
        """Kills Redis, if it runs, and returns when it answers again."""


class Chroma(Protocol):
    """A Chroma server that a test may kill and start again."""

    @property
    def url(self) -> str:
        """Where it listens."""

    async def kill(self) -> None:
        """Kills it as `kill -9` does."""

    async def start(self) -> None:
        """Starts it, and returns when it answers."""


@functools.cache
def in_containers(choice: str = _CHOICE) -> bool:
    """Whether servers run in containers: as was chosen, else when a Docker engine answers."""
    if choice not in ("", "embedded", "containers"):
        raise ValueError(f"PROCESSION_TEST_SERVERS={choice}: say `embedded` or `containers`")
    return choice == "containers" or (not choice and _docker_runs())


def _docker_runs() -> bool:
    import docker  # noqa: PLC0415 - only who asks pays for it
    from docker.errors import DockerException  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves its socket open where the engine is down
        try:
            docker.from_env(timeout=3).close()
            runs = True
        except DockerException:
            runs = False
        gc.collect()
    return runs


def own_servers(
    directory: Path, *, nats: bool = True, redis: bool = True
) -> AbstractAsyncContextManager[Servers]:
    """Servers of one test, or module, alone."""
    if in_containers():
        from tests.support.containers import ContainerServers  # noqa: PLC0415 - only who needs it pays for it

        return ContainerServers(directory, nats=nats, redis=redis)
    return EmbeddedServers(directory, nats=nats, redis=redis)


def own_chroma(directory: Path) -> AbstractAsyncContextManager[Chroma]:
    """A Chroma server of one test alone."""
    if in_containers():
        from tests.support.containers import ContainerChroma  # noqa: PLC0415 - only who needs it pays for it

        return ContainerChroma()
    return ChromaProcess(directory)


@asynccontextmanager
async def running_servers(directory: Path) -> AsyncIterator[Endpoints]:
    """Give the servers that NATS_URL and REDIS_URL name, and start those that they do not.

    Foreign servers are shared with others: a test must use names of its own for whatever it stores.
    """
    given = {
        "nats_url": os.environ.get("NATS_URL", ""),
        "redis_url": os.environ.get("REDIS_URL", ""),
    }
    own = own_servers(directory, nats=not given["nats_url"], redis=not given["redis_url"])
    async with own as started:
        yield replace(started.endpoints, **{name: url for name, url in given.items() if url})
