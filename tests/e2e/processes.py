"""The scenario of `make e2e` on embedded servers and processes, where Docker does not run: `make e2e-embedded`."""

import asyncio
import itertools
import os
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

import nats
from nats.aio.client import Client

from procession.client import Procession
from procession_services.demo_model import serve
from procession_services.runtime.embedded import EmbeddedServers
from procession_services.runtime.health import is_ready
from procession_services.supervisor import SERVICES
from tests.e2e.load import Figures
from tests.e2e.scenario import under_load
from tests.support.chroma import ChromaProcess
from tests.support.system import ROOT, ServiceProcess

_SECONDS: Final = 60.0
_AGENTS: Final = ROOT / "infra" / "agents.yaml"
_DEMO_MODEL: Final = "http://demo-model:8399/v1"
"""As compose.yaml's agents name it."""


class Processes:
    """Servers and services of one machine; an asynchronous context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._servers = EmbeddedServers(directory / "servers")
        self._chroma = ChromaProcess(directory / "chroma")
        self._replicas: dict[str, list[ServiceProcess]] = {service: [] for service in SERVICES}
        self._numbers = itertools.count()
        self._stack = AsyncExitStack()
        self.api_base = ""

    async def __aenter__(self) -> Self:
        """Starts one of everything."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._servers)
            await stack.enter_async_context(self._chroma)
            models = await stack.enter_async_context(await serve())
            self.api_base = f"http://127.0.0.1:{models.port}/v1"
            agents = _AGENTS.read_text(encoding="utf-8").replace(_DEMO_MODEL, self.api_base)
            (self._directory / "agents.yaml").write_text(agents, encoding="utf-8")
            stack.push_async_callback(self._end)
            await asyncio.gather(*(self.scale(service, 1) for service in SERVICES))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Ends all of it."""
        await self._stack.aclose()

    async def _end(self) -> None:
        for replica in itertools.chain(*self._replicas.values()):
            await replica.stop()

    def client(self, tenant: str) -> Procession:
        """A client of that tenant."""
        return Procession(self._servers.endpoints.nats_url, tenant=tenant)

    async def operator(self) -> Client:
        """A connection to NATS that may ask everything."""
        return await nats.connect(self._servers.endpoints.nats_url)

    async def _start(self, service: str) -> None:
        name = f"{service}-{next(self._numbers)}"
        settings = {
            "NATS_URL": self._servers.endpoints.nats_url,
            "REDIS_URL": self._servers.endpoints.redis_url,
            "CHROMA_URL": self._chroma.url,
            "PLUGINS": "procession_services.demo.processors",
            "AGENTS": self._directory / "agents.yaml",
            "HEALTH_FILE": self._directory / f"{service}.ready",
            "WORK_ACK_WAIT": 10,
        }
        own = {f"PROCESSION_{key}": str(value) for key, value in settings.items()}
        environment = {**os.environ, **own, "OPENAI_API_KEY": "unused"}
        replica = ServiceProcess((service,), environment, self._directory / f"{name}.log")
        await replica.start()
        self._replicas[service].append(replica)
        await replica.ready()

    async def scale(self, service: str, replicas: int) -> None:
        """Starts or stops processes of a service until there are so many."""
        running = self._replicas[service]
        await asyncio.gather(*(self._start(service) for _ in range(replicas - len(running))))
        surplus, running[:] = running[replicas:], running[:replicas]
        await asyncio.gather(*(replica.terminate() for replica in surplus))

    async def kill(self, service: str, replicas: int) -> None:
        """Kills so many of its processes for good."""
        running = self._replicas[service]
        for replica in running[:replicas]:
            await replica.stop()
        del running[:replicas]

    async def crash(self, service: str) -> None:
        """Kills the only process, and starts another one as a supervisor does."""
        await self.kill(service, 1)
        await self._start(service)

    async def kill_server(self, server: str) -> None:
        """Kills a server and starts it again."""
        match server:
            case "nats":
                await self._servers.restart_nats()
            case "redis":
                await self._servers.restart_redis()
            case _:
                await self._chroma.kill()
                await self._chroma.start()

    async def restart_server(self, server: str) -> None:
        """The same: embedded servers are ended so."""
        await self.kill_server(server)

    async def without_nats(self) -> None:
        """Stops NATS until a service says that it is not ready, and starts it again."""
        self._servers.kill_nats()
        await self._told(SERVICES[1], ready=False)
        await self._servers.restart_nats()
        for service in SERVICES:
            await self._told(service, ready=True)

    async def _told(self, service: str, *, ready: bool) -> None:
        async with asyncio.timeout(_SECONDS):
            while is_ready(self._directory / f"{service}.ready") != ready:  # noqa: ASYNC110 - another process changes it
                await asyncio.sleep(0.1)

    async def upgrade(self, service: str) -> tuple[int, float]:
        """Starts a new process, and tells the old one to stop."""
        old = self._replicas[service].pop()
        await self._start(service)
        asked = time.monotonic()
        return await old.terminate(), time.monotonic() - asked


async def main() -> int:
    """Runs the scenario; 1 when something was lost, answered twice, or did not start."""
    figures = Figures()
    with TemporaryDirectory(prefix="procession-e2e-") as directory:
        async with AsyncExitStack() as stack:
            with figures.phase("up"):
                system = await stack.enter_async_context(Processes(Path(directory)))
            await under_load(system, figures)
    return figures.told()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
