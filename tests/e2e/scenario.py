"""What is done to a system while runs are in flight, wherever it runs: in containers, or as processes."""

import asyncio
from typing import Final, Protocol

from nats.aio.client import Client

from procession.client import Procession
from procession_services.supervisor import SERVICES
from tests.e2e.load import Figures, answered_once, load

__all__ = ["SERVERS", "System", "under_load"]

SERVERS: Final = ("nats", "redis", "chroma")
STOP_SECONDS: Final = 30.0
_MANY: Final = "output_processors"


class System(Protocol):
    """A running system. Each method returns when everything works again, except `kill`."""

    @property
    def api_base(self) -> str:
        """Where its services reach the demo model."""

    def client(self, tenant: str) -> Procession:
        """A client of that tenant."""

    async def operator(self) -> Client:
        """A connection to NATS that may ask everything."""

    async def scale(self, service: str, replicas: int) -> None:
        """Starts or stops replicas of a service until there are so many."""

    async def kill(self, service: str, replicas: int) -> None:
        """Kills so many of its replicas for good."""

    async def crash(self, service: str) -> None:
        """Kills the only replica; it is started again."""

    async def kill_server(self, server: str) -> None:
        """Kills a server and starts it again."""

    async def restart_server(self, server: str) -> None:
        """Stops a server and starts it again."""

    async def without_nats(self) -> None:
        """Stops NATS until a service says that it is not ready, and starts it again."""

    async def upgrade(self, service: str) -> tuple[int, float]:
        """Starts a new replica, stops the old one; gives its exit code, and how many seconds it took to end."""


async def under_load(system: System, figures: Figures) -> None:
    """Scales, kills, restarts and upgrades everything; every run ends as if nothing had happened, and once."""
    async with load(system, figures) as runs:
        with figures.phase("steady"):
            await asyncio.sleep(10)
        await _scaled(system, figures)
        await _killed(system, figures)
        for server in SERVERS:
            with figures.phase(f"restart {server}"):
                await system.restart_server(server)
        with figures.phase("without NATS"):
            await system.without_nats()
        with figures.phase("upgrade every service"):
            for service in SERVICES:
                code, seconds = await system.upgrade(service)
                figures.stopping = max(figures.stopping, round(seconds, 1))
                told = f"{service} ended with {code}, {seconds:.1f} s after it was told to"
                figures.expect(code == 0 and seconds < STOP_SECONDS, told)
    await answered_once(system, runs, figures)


async def _scaled(system: System, figures: Figures) -> None:
    """Up, with some of the many killed, and down."""
    with figures.phase(f"scale {_MANY} to 4"):
        await system.scale(_MANY, 4)
    with figures.phase(f"kill two {_MANY}"):
        await system.kill(_MANY, 2)
        await asyncio.sleep(5)
    with figures.phase(f"scale {_MANY} to 1"):
        await system.scale(_MANY, 1)


async def _killed(system: System, figures: Figures) -> None:
    for service in SERVICES:
        with figures.phase(f"crash {service}"):
            await system.crash(service)
    for server in SERVERS:
        with figures.phase(f"kill {server}"):
            await system.kill_server(server)
