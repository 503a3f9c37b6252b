"""The servers of a deployment as processes, from the files that compose.yaml and compose.cluster.yaml give them.

Only addresses, ports and directories are the test's; a line of those files that is not there any more fails it.
"""

import asyncio
import json
import signal
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from procession_services.deploy.files import Deployment
from procession_services.runtime import server_programs
from procession_services.runtime.server_process import ServerProcess, free_ports

__all__ = ["INFRA", "Node", "cluster", "nats_server", "redis_server"]

Way = Callable[[int, int, int], Awaitable[int]]
"""From a server (its number) to another, which listens for the others at a port: the port to connect to."""
INFRA: Final = Path(__file__).resolve().parents[2] / "infra"
_NODES: Final = (1, 2, 3)
_NO_OTHER_WAY: Final = '\nadvertise: "127.0.0.1:1"\n'
"""Servers tell each other where the others are: nobody is there, so their routes are those of their files."""
_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.05


def _with(text: str, changes: dict[str, str]) -> str:
    for theirs, ours in changes.items():
        assert theirs in text, f"{theirs} is not there any more"
        text = text.replace(theirs, ours)
    return text


def _nats_conf(name: str, data: Path, ports: Sequence[int]) -> str:
    changes = {
        "$NATS_NAME": name,
        "0.0.0.0:4222": f"127.0.0.1:{ports[0]}",
        "0.0.0.0:8222": f"127.0.0.1:{ports[1]}",
        '"/data"': f'"{data}"',
    }
    return _with((INFRA / "nats.conf").read_text(), changes)


class _Nats(server_programs.Nats):
    """One server of compose.yaml."""

    _accounts: Path

    def __init__(self, accounts: Path) -> None:
        super().__init__()
        object.__setattr__(self, "_accounts", accounts)

    def config(self, data: Path, ports: Sequence[int]) -> str:
        accounts = {'include "accounts.conf"': self._accounts.read_text()}
        return _with(_nats_conf(self.server_name, data, ports), accounts)


class _Redis(server_programs.Redis):
    """Redis of compose.yaml."""

    _users: Path

    def __init__(self, users: Path) -> None:
        super().__init__()
        object.__setattr__(self, "_users", users)

    def config(self, data: Path, ports: Sequence[int]) -> str:
        changes = {"/etc/redis/users.acl": str(self._users), "dir /data": f"dir {data}"}
        text = _with((INFRA / "redis.conf").read_text(), changes)
        return f"{text}\nbind 127.0.0.1\nport {ports[0]}\n"

    async def answers(self, reader: Any, writer: Any, pid: int) -> bool:
        writer.write(b"PING\r\n")
        return bool((await reader.readline()).startswith(b"-NOAUTH"))


def nats_server(deployment: Deployment, directory: Path) -> Any:
    """NATS of compose.yaml, not started yet."""
    return ServerProcess(_Nats(deployment.directory / "nats" / "accounts.conf"), directory)


def redis_server(deployment: Deployment, directory: Path) -> Any:
    """Redis of compose.yaml, not started yet."""
    return ServerProcess(_Redis(deployment.directory / "redis" / "users.acl"), directory)


class _Member(server_programs.Nats):
    """One server of compose.cluster.yaml: its files lie beside each other, as they are mounted there."""

    _deployment: Deployment
    _own: int
    _others: Mapping[int, int]

    def __init__(self, number: int, deployment: Deployment, own: int, others: Mapping[int, int]) -> None:
        super().__init__(name="nats-cluster", port_count=2, server_name=f"nats-{number}")
        for field, value in (("_deployment", deployment), ("_own", own), ("_others", others)):
            object.__setattr__(self, field, value)

    def config(self, data: Path, ports: Sequence[int]) -> str:
        theirs = self._deployment.directory / "nats"
        routes = {"0.0.0.0:6222": f"127.0.0.1:{self._own}"}
        routes |= {f"nats-{n}:6222": f"127.0.0.1:{port}" for n, port in self._others.items()}
        files = {
            "nats.conf": _nats_conf(self.server_name, data, ports),
            "accounts.conf": (theirs / "accounts.conf").read_text(),
            "routes.conf": _with((theirs / "routes.conf").read_text(), routes) + _NO_OTHER_WAY,
        }
        for name, text in files.items():
            (data.parent / name).write_text(text)
        return (INFRA / "nats-cluster.conf").read_text()


class Node:
    """One server of a cluster."""

    def __init__(self, name: str, server: Any) -> None:
        self.name, self._server = name, server

    @property
    def url(self) -> str:
        """Where its clients connect."""
        return f"nats://127.0.0.1:{self._server.ports[0]}"

    def kill(self) -> None:
        """As `kill -9` does."""
        self._server.kill()

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self._server.send(number)

    async def start(self) -> None:
        """Starts it, or starts it again with its data."""
        await self._server.start()

    async def monitored(self, page: str) -> dict[str, Any]:
        """A page of its monitoring."""
        url = f"http://127.0.0.1:{self._server.ports[1]}/{page}"

        def get() -> bytes:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bytes(answer.read())

        told: dict[str, Any] = json.loads(await asyncio.to_thread(get))
        return told

    async def healthy(self) -> None:
        """Waits until it has all that the others have: its own health page says so."""
        async with asyncio.timeout(_SECONDS):
            while True:
                try:
                    if (await self.monitored("healthz"))["status"] == "ok":
                        return
                except OSError:
                    pass  # it is not up yet, or behind the others
                await asyncio.sleep(_LOOK_SECONDS)


@asynccontextmanager
async def cluster(
    deployment: Deployment, directory: Path, *, up: int = 3, way: Way | None = None
) -> AsyncIterator[list[Node]]:
    """The three servers of compose.cluster.yaml, so many of them started.

    Where there is a `way`, it is asked for the port at which one server finds another.
    """
    ports = free_ports(3 * len(_NODES))
    routes = dict(zip(_NODES, ports, strict=False))
    async with AsyncExitStack() as stack:
        nodes = []
        for number, own in routes.items():
            others = {
                n: await way(number, n, port) if way and n != number else port for n, port in routes.items()
            }
            member = _Member(number, deployment, own, others)
            server = ServerProcess(member, directory / f"nats-{number}")
            server.ports = (ports[2 * number + 1], ports[2 * number + 2])
            stack.push_async_callback(server.stop)
            nodes.append(Node(f"nats-{number}", server))
        await asyncio.gather(*(node.start() for node in nodes[:up]))
        yield nodes
