"""NATS, Redis and Chroma in containers, of the images of compose.yaml."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, Self

import yaml
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from procession_services.runtime.embedded import Endpoints
from tests.support.probes import chroma_answers, free_port, nats_answers, redis_answers, until

__all__ = ["Container", "ContainerChroma", "ContainerServers"]

_COMPOSE: Final = Path(__file__).resolve().parents[2] / "compose.yaml"
_NATS: Final = 4222
_MONITOR: Final = 8222
_REDIS: Final = 6379
_CHROMA: Final = 8000
_NATS_CONFIG: Final = """\
listen: "0.0.0.0:4222"
http: "0.0.0.0:8222"
max_payload: 8MB
jetstream { store_dir: "/data", limits { default_max_consumers: 100000 } }
"""

# Its own container that removes others is one image more than compose.yaml needs; blocks end here, and clean up.
testcontainers_config.ryuk_disabled = True


class Container:
    """One server of compose.yaml; keeps its ports and its data from start to start, as the embedded ones do."""

    def __init__(
        self,
        name: str,
        ports: Sequence[int],
        answers: Callable[[int], Awaitable[bool]],
        command: str | None = None,
        mounted: Sequence[Path] = (),
    ) -> None:
        self._name = name
        self._answers = answers
        self.ports = {port: free_port() for port in ports}
        image = yaml.safe_load(_COMPOSE.read_text(encoding="utf-8"))["services"][name]["image"]
        self._container = DockerContainer(image)
        for port, outside in self.ports.items():
            self._container.with_bind_ports(port, outside)
        if command:
            self._container.with_command(command)
        for file in mounted:  # one by one: a test's directory is its owner's alone
            self._container.with_volume_mapping(file, str(file))

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._container.start)
        try:
            await self._answering()
        except BaseException:
            await self.remove()
            raise
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.remove()

    async def remove(self) -> None:
        """Ends it, and removes what it stored."""
        await asyncio.to_thread(self._container.stop)

    def kill(self) -> None:
        """As `kill -9` does; one that is dead stays dead."""
        docker: Any = self._container.get_wrapped_container()
        docker.reload()
        if docker.status == "running":
            docker.kill()
            docker.wait()

    def send(self, name: str) -> None:
        """Sends it a signal."""
        docker: Any = self._container.get_wrapped_container()
        docker.kill(signal=name)

    async def start(self) -> None:
        """Starts it again, and returns when it answers."""
        docker: Any = self._container.get_wrapped_container()
        await asyncio.to_thread(docker.start)
        await self._answering()

    async def _answering(self) -> None:
        first = next(iter(self.ports.values()))
        await until(lambda: self._answers(first), f"{self._name} in a container")


class ContainerServers:
    """NATS with JetStream and Redis with an append-only file; what `EmbeddedServers` is, in containers."""

    def __init__(self, directory: Path, *, nats: bool = True, redis: bool = True) -> None:
        self._nats = self._redis = None
        if nats:
            directory.mkdir(parents=True, exist_ok=True)
            config = directory.resolve() / "nats.conf"
            config.write_text(_NATS_CONFIG, encoding="utf-8")
            self._nats = Container("nats", [_NATS, _MONITOR], nats_answers, f"--config {config}", [config])
        if redis:
            self._redis = Container(
                "redis", [_REDIS], redis_answers, "redis-server --appendonly yes --save ''"
            )
        self._stack = AsyncExitStack()

    @property
    def endpoints(self) -> Endpoints:
        """The URLs of the servers; they stay the same over restarts."""
        nats, redis = self._nats, self._redis
        return Endpoints(
            nats_url=f"nats://127.0.0.1:{nats.ports[_NATS]}" if nats else "",
            redis_url=f"redis://127.0.0.1:{redis.ports[_REDIS]}/0" if redis else "",
            monitor_url=f"http://127.0.0.1:{nats.ports[_MONITOR]}" if nats else "",
        )

    async def __aenter__(self) -> Self:
        """Starts the servers and returns when they answer."""
        async with AsyncExitStack() as stack:
            for server in (self._nats, self._redis):
                if server:
                    await stack.enter_async_context(server)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Removes the containers."""
        await self._stack.aclose()

    def kill_nats(self) -> None:
        """Kills NATS as `kill -9` does."""
        assert self._nats
        self._nats.kill()

    def freeze_nats(self) -> None:
        """Has NATS stand still until `thaw_nats`."""
        assert self._nats
        self._nats.send("SIGSTOP")

    def thaw_nats(self) -> None:
        """Lets NATS go on."""
        assert self._nats
        self._nats.send("SIGCONT")

    def freeze_redis(self) -> None:
        """Has Redis stand still until `thaw_redis`."""
        assert self._redis
        self._redis.send("SIGSTOP")

    def thaw_redis(self) -> None:
        """Lets Redis go on."""
        assert self._redis
        self._redis.send("SIGCONT")

    def kill_redis(self) -> None:
        """Kills Redis as `kill -9` does."""
        assert self._redis
        self._redis.kill()

    async def restart_nats(self) -> None:
        """Kills NATS and starts it again on the same ports and data; returns when it answers."""
        assert self._nats
        self._nats.kill()
        await self._nats.start()

    async def restart_redis(self) -> None:
        """Kills Redis and starts it again on the same port and data; returns when it answers."""
        assert self._redis
        self._redis.kill()
        await self._redis.start()


class ContainerChroma:
    """Chroma in a container."""

    def __init__(self) -> None:
        self._server = Container("chroma", [_CHROMA], chroma_answers)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.ports[_CHROMA]}"

    async def __aenter__(self) -> Self:
        """Starts it."""
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Removes the container."""
        await self._server.remove()

    async def kill(self) -> None:
        """Kills it as `kill -9` does."""
        await asyncio.to_thread(self._server.kill)

    async def start(self) -> None:
        """Starts it again on the same port and data; returns when it answers."""
        await self._server.start()
