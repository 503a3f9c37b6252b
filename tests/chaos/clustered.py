"""Three servers of NATS as compose.cluster.yaml runs them, of which one is hit at a time."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from procession_services.deploy.files import OPERATOR, Deployment
from procession_services.runtime.embedded import EmbeddedServers, Endpoints
from tests.chaos.proxy import Proxy
from tests.support.deployed import Node, cluster

__all__ = ["Clustered", "clustered"]

_AWAY: Final = (0.2, 6.0)
"""Seconds that a killed server is away: less and more than the others need to elect who leads its streams."""
_APART: Final = (0.2, 30.0)
"""Seconds that a server is apart from the others: after ten it leads nothing, and after some more all have left it."""

Ways = Mapping[tuple[int, int], Proxy]
"""What stands between two servers (their numbers)."""


class Clustered(EmbeddedServers):
    """A Redis, and a cluster of NATS whose clients are all the operator."""

    def __init__(self, directory: Path, nodes: list[Node], ways: Ways, password_file: Path) -> None:
        super().__init__(directory, nats=False)
        self.password_file = password_file
        self._nodes, self._ways = nodes, ways
        self._hit, self._away = nodes[0], 0.0

    @property
    def access(self) -> dict[str, Any]:
        """What a client says that connects to NATS."""
        return {"user": OPERATOR, "password": self.password_file.read_text().strip()}

    @property
    def endpoints(self) -> Endpoints:
        """That of Redis, and those of all servers of NATS in one, with user and password."""
        user = "{user}:{password}@".format(**self.access)
        urls = [url.replace("//", f"//{user}") for url in self.nats_url.split(",")]
        return Endpoints(nats_url=",".join(urls), redis_url=super().endpoints.redis_url, monitor_url="")

    @property
    def nats_url(self) -> str:
        """The servers of NATS, without user and password."""
        return ",".join(node.url for node in self._nodes)

    async def healthy(self) -> None:
        """Waits until each server of NATS has what the others have."""
        await asyncio.gather(*(node.healthy() for node in self._nodes))

    @asynccontextmanager
    async def apart(self, number: int, *, told: bool, late: bool) -> AsyncIterator[None]:
        """For the length of the block a server does not hear the others, nor they it; then it catches up with them.

        Its clients are where they were. Servers are `told` that the connections between them are gone, or they are half
        open; what was sent over them meanwhile comes `late`, or never.
        """
        ways = [proxy for pair, proxy in self._ways.items() if number in pair]
        for way in ways:
            way.freeze()
            if told:
                way.abort()
        try:
            yield
        finally:
            for way in ways:
                if late:
                    way.thaw()
                else:
                    way.cut()
        await self._nodes[number - 1].healthy()

    async def part(self, rng: random.Random) -> None:
        """Has a server be apart from the others for a while."""
        number = rng.randrange(len(self._nodes)) + 1
        async with self.apart(number, told=rng.random() < 0.5, late=rng.random() < 0.5):
            await asyncio.sleep(rng.uniform(*_APART))

    def choose(self, rng: random.Random) -> None:
        """Chooses which server is hit next, and how long it is away if it is killed."""
        self._hit, self._away = rng.choice(self._nodes), rng.uniform(*_AWAY)

    async def restart_nats(self) -> None:
        """Kills the server; returns when it is back, and has what the others have."""
        self._hit.kill()
        await asyncio.sleep(self._away)
        await self._hit.start()
        await self._hit.healthy()

    def freeze_nats(self) -> None:
        """Has the server stand still until `thaw_nats`."""
        self._hit.send(signal.SIGSTOP)

    def thaw_nats(self) -> None:
        """Lets it go on."""
        self._hit.send(signal.SIGCONT)


@asynccontextmanager
async def clustered(directory: Path) -> AsyncIterator[Clustered]:
    """The servers for the length of the block, with their files in that directory."""
    deployment = Deployment(directory / "secrets")
    deployment.write()
    ways: dict[tuple[int, int], Proxy] = {}
    async with AsyncExitStack() as stack:

        async def way(one: int, other: int, port: int) -> int:
            ways[one, other] = await stack.enter_async_context(Proxy(port))
            return ways[one, other].port

        nodes = await stack.enter_async_context(cluster(deployment, directory, way=way))
        password_file = deployment.directory / "nats" / OPERATOR
        yield await stack.enter_async_context(Clustered(directory, nodes, ways, password_file))
