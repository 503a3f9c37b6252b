"""The system under test: servers, replicas of every service as processes, a counting model, and what befalls them."""

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
from asyncio.subprocess import Process
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from procession_services.runtime.embedded import EmbeddedServers
from tests.chaos.clustered import Clustered, clustered
from tests.chaos.forgetful import Forgetful
from tests.chaos.model import CountingModel
from tests.chaos.proxy import Proxy
from tests.support.system import ROOT

__all__ = ["ACK_WAIT", "APART", "TOGETHER", "Fault", "Replica", "World", "world"]

ACK_WAIT: Final = float(os.environ.get("CHAOS_LEASE", "4"))
"""Seconds after which work that nobody extends is delivered again: the lease of whoever has it. With a long one nothing
hides behind it that is to be done earlier."""
_REPLICAS: Final = {
    "llm_gateway": 2, "orchestrator": 2, "output_processors": 2, "input_processors": 1, "tools": 2, "memory": 1,
    "error_recovery": 1,
}  # fmt: skip
CLUSTERS: Final = frozenset({"cluster", "partition"})
"""Mixes of misfortunes for three servers of NATS."""
Layout = Mapping[tuple[str, ...], int]
"""How many processes there are with these services."""
APART: Final[Layout] = {(service,): count for service, count in _REPLICAS.items()}
TOGETHER: Final[Layout] = {tuple(_REPLICAS): 3}
_PROXIED: Final = {"llm_gateway", "orchestrator", "output_processors", "tools"}
_LARGE: Final = "llm_gateway"
"""It loads LiteLLM."""
_ENDS: Final = frozenset({"kill", "end"})
"""What ends a process."""
_PAUSE_SECONDS: Final = 0.2
"""Before a replica that has ended is started again; the supervisor waits as long."""
_LOOK_SECONDS: Final = 0.05
_END_SECONDS: Final = 60.0
"""More than a service gives what it works on (`drain_timeout`)."""
_SILENCE: Final = (0.3, 1.8)
"""How many leases NATS stands still."""
_HUSH_SECONDS: Final = (1.0, 12.0)
"""How long Redis does: up to more than services wait for an answer, and then for the next."""
_LOSS_SECONDS: Final = (0.1, 1.5)
"""How long messages are lost, as while servers of a cluster find out that one of them is gone."""
_LOST: Final = (0.1, 1.0)
"""The share of them."""
_CLIENTS_LOSE: Final = 0.01
_FORGOTTEN_SECONDS: Final = (0.05, 1.9)
"""What Redis may put off to write while it syncs its file."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What befell services (or a server) from `began` until `ACK_WAIT` after it was over, on the loop's clock."""

    kind: str
    services: tuple[str, ...]
    pid: int
    began: float
    ended: float

    @property
    def outlasts_leases(self) -> bool:
        """Whether it lasted for so long that a lease may have run out, which is renewed when a third of it is over."""
        return self.ended - self.began > ACK_WAIT * (1 + 2 / 3)

    def __str__(self) -> str:
        return " ".join((self.kind, "+".join(self.services))).strip()


@dataclass(eq=False)
class Replica:
    """A process with one service, or several; it is started again whenever it ends."""

    services: tuple[str, ...]
    name: str
    environment: dict[str, str]
    proxy: Proxy | None = None
    pid: int = 0
    healthy: asyncio.Event = field(default_factory=asyncio.Event)


class World:
    """Servers, replicas and the model; `faults` is what has happened so far."""

    def __init__(
        self, servers: EmbeddedServers, model: CountingModel, logs: Path, layout: Layout, mix: str, *,
        max_deliver: int,
    ) -> None:  # fmt: skip
        self.servers, self.model, self.logs, self.mix = servers, model, logs, mix
        self._max_deliver = max_deliver
        self._layout, self._lossy = layout, mix == "lossy"
        self._cluster = servers if isinstance(servers, Clustered) else None
        self.is_clustered = self._cluster is not None
        self.access = self._cluster.access if self._cluster else {}
        self.replicas: list[Replica] = []
        self.faults: deque[Fault] = deque()
        self.current: list[Fault] = []
        self.clients_url = self._cluster.nats_url if self._cluster else servers.endpoints.nats_url
        self._starting = asyncio.Lock()
        self._nurseries: list[Process] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._closing = False

    @property
    def now(self) -> float:
        """The loop's clock."""
        return asyncio.get_running_loop().time()

    def during(self, since: float, until: float) -> list[Fault]:
        """What happened between two moments."""
        return [f for f in (*self.faults, *self.current) if f.began <= until and f.ended >= since]

    async def start(self, stack: AsyncExitStack) -> None:
        """Starts every replica; returns when all are ready."""
        port = int(self.servers.endpoints.nats_url.rsplit(":", 1)[1])
        if self._lossy:
            clients = await stack.enter_async_context(Proxy(port))
            clients.loses, self.clients_url = _CLIENTS_LOSE, self._url(clients.port)
        for services, count in self._layout.items():
            for number in range(count):
                name = f"{'+'.join(services)}-{number + 1}"
                through = not _PROXIED.isdisjoint(services) and number == count - 1
                proxied = self._lossy or (through and not self._cluster)
                proxy = await stack.enter_async_context(Proxy(port)) if proxied else None
                environment = self._environment(proxy.port if proxy else port)
                self.replicas.append(Replica(services, name, environment, proxy))
        stack.push_async_callback(self._stop)
        small = [service for service in _REPLICAS if service != _LARGE]
        large = [name for services in self._layout if _LARGE in services for name in services]
        self._small, self._large = [await self._nursery(services, port) for services in (small, large)]
        await asyncio.gather(_told(self._small), _told(self._large))
        self._keepers = [asyncio.create_task(self._keep(replica)) for replica in self.replicas]
        await asyncio.gather(*(replica.healthy.wait() for replica in self.replicas))

    def _environment(self, nats_port: int) -> dict[str, str]:
        base = {name: value for name, value in os.environ.items() if not name.startswith("PROCESSION_")}
        return {
            **base,
            "PROCESSION_NATS_URL": self._url(nats_port),
            **(_of_a_cluster(self._cluster) if self._cluster else {}),
            "PROCESSION_REDIS_URL": self.servers.endpoints.redis_url,
            "PROCESSION_PLUGINS": "tests.chaos.plugin",
            "PROCESSION_API_BASE": f"http://127.0.0.1:{self.model.port}/v1",
            "PROCESSION_WORK_ACK_WAIT": str(ACK_WAIT),
            "PROCESSION_MAX_DELIVER": str(self._max_deliver),
            "PROCESSION_WORKER_CONCURRENCY": os.environ.get("CHAOS_PLACES", "128"),  # a few: most runs wait
            "PROCESSION_EMBEDDER": "lexical",
            "PROCESSION_CHROMA_PATH": str(self.logs / "chroma"),
            "PROCESSION_LOG_LEVEL": os.environ.get("CHAOS_LOG_LEVEL", "WARNING"),
            "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("", "schemas", "services")),
            "OPENAI_API_KEY": "unused",
        }

    def _url(self, port: int) -> str:
        if self._cluster:
            return self._cluster.nats_url
        names = ("127.0.0.1", "localhost") if self._lossy else ("127.0.0.1",)  # two are a cluster
        return ",".join(f"nats://{name}:{port}" for name in names)

    async def _nursery(self, services: list[str], nats_port: int) -> Process:
        nursery = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.chaos.nursery", *services, cwd=ROOT, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, env=self._environment(nats_port),
        )  # fmt: skip
        self._nurseries.append(nursery)
        return nursery

    async def _keep(self, replica: Replica) -> None:
        out = self.logs / f"{replica.name}.out"
        while not self._closing:
            out.write_text("")
            async with self._starting:
                replica.pid = await self._fork(replica, out)
            ended = asyncio.ensure_future(_ended(replica.pid))
            while not ended.done() and not out.read_text().endswith("\n"):
                await asyncio.wait([ended], timeout=_LOOK_SECONDS)
            if not ended.done():
                replica.healthy.set()
            await ended
            replica.healthy.clear()
            self._note_end(replica)
            await asyncio.sleep(_PAUSE_SECONDS)

    def _note_end(self, replica: Replica) -> None:
        """Notes that a process has ended by itself, where nobody had told it to."""
        if not any(f.pid == replica.pid and f.kind in _ENDS for f in (*self.faults, *self.current)):
            fault = Fault("crash", replica.services, replica.pid, self.now, self.now + ACK_WAIT)
            self._note("has ended", fault, replica)
            self.faults.append(fault)

    @property
    def has_forgotten(self) -> bool:
        """Whether Redis has come back as it was a moment before."""
        return any(fault.kind == "forget" for fault in self.faults)

    def crashed(self) -> list[str]:
        """The processes that have ended by themselves, for which no hook or tool of a run was to blame."""
        noted = (line for path in self.logs.glob("*.deaths") for line in path.read_text().splitlines())
        by_runs = {line.split()[1] for line in noted}
        return [str(f) for f in self.faults if f.kind == "crash" and str(f.pid) not in by_runs]

    async def _fork(self, replica: Replica, out: Path) -> int:
        asked = {
            "services": replica.services,
            "environment": replica.environment,
            "out": str(out),
            "log": str(self.logs / f"{replica.name}.log"),
        }
        nursery = self._large if _LARGE in replica.services else self._small
        assert nursery.stdin is not None
        nursery.stdin.write(json.dumps(asked).encode() + b"\n")
        return (await _told(nursery))["pid"]

    async def end(self) -> list[str]:
        """Ends every replica as a deployment does; gives the names of those that hear nothing any more."""
        await self._leave()
        ends: dict[str, asyncio.Task[None]] = {}
        for replica in self.replicas:
            if replica.proxy is not None:
                replica.proxy.cut()
            with suppress(ProcessLookupError):
                for number in (signal.SIGTERM, signal.SIGCONT):  # it may have been stopped just now
                    os.kill(replica.pid, number)
                ends[replica.name] = asyncio.create_task(_ended(replica.pid))
        if ends:
            await asyncio.wait(ends.values(), timeout=_END_SECONDS)
        hung = [name for name, ended in ends.items() if not ended.done()]
        for ended in ends.values():
            ended.cancel()
        return hung

    async def _leave(self) -> None:
        """Starts no replica any more."""
        self._closing = True
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _stop(self) -> None:
        """Ends all; what is forked ends with its parent."""
        await self._leave()
        for nursery in self._nurseries:
            nursery.kill()
            await nursery.wait()

    def of(self, service: str) -> list[Replica]:
        """The replicas of a service that run."""
        return [r for r in self.replicas if service in r.services and r.healthy.is_set()]

    async def befall(self, kind: str, rng: random.Random, replica: Replica | None = None) -> None:
        """Has something happen; returns when it is over (a killed process may still be starting).

        Kinds: `kill`, `end` (in order, as in an upgrade), `stop`, `half-open`, `loss` (of messages), `nats`, `silence`
        (NATS stands still), `apart` (one of its servers does not hear the others), `redis`, `hush` (it stands still),
        `forget`: Redis comes back as it was a moment before.
        """
        services = replica.services if replica else ()
        running = Fault(kind, services, replica.pid if replica else 0, self.now, float("inf"))
        self.current.append(running)
        self._note("begins", running, replica)
        if self._cluster and kind in ("nats", "silence"):
            self._cluster.choose(rng)
        try:
            match kind:
                case "nats":
                    await self.servers.restart_nats()
                case "silence":
                    self.servers.freeze_nats()
                    try:
                        await asyncio.sleep(ACK_WAIT * rng.uniform(*_SILENCE))
                    finally:
                        self.servers.thaw_nats()
                case "apart":
                    assert self._cluster is not None
                    await self._cluster.part(rng)
                case "redis":
                    await self._kept_by_redis()
                    await self.servers.restart_redis()
                case "hush":
                    self.servers.freeze_redis()
                    try:
                        await asyncio.sleep(rng.uniform(*_HUSH_SECONDS))
                    finally:
                        self.servers.thaw_redis()
                case "forget":
                    redis = Forgetful(self.servers, self.logs)
                    redis.remember()
                    await asyncio.sleep(rng.uniform(*_FORGOTTEN_SECONDS))
                    await redis.forget()
                case _:
                    assert replica is not None
                    await self._hit(kind, rng, replica)
        finally:
            self._note("has ended", running, replica)
            self.current.remove(running)
            self.faults.append(Fault(kind, services, running.pid, running.began, self.now + ACK_WAIT))

    async def _kept_by_redis(self) -> None:
        """Returns when Redis has in its file what it has answered; while it syncs that, it may not (see `forget`)."""
        async with Redis.from_url(self.servers.endpoints.redis_url) as redis:
            await redis.config_set("appendfsync", "always")

    def _note(self, what: str, fault: Fault, replica: Replica | None) -> None:
        """Writes it beside the services' logs, with a time as they have."""
        at = datetime.now().astimezone().isoformat(" ", "milliseconds")
        with (self.logs / "faults.log").open("a") as out:
            out.write(f"{at} {fault.kind} {replica.name if replica else ''} ({fault.pid}) {what}\n")

    def trace(self, run: str) -> Path:
        """Where the tool of a run notes its calls."""
        return self.logs / f"{run}.calls"

    async def _hit(self, kind: str, rng: random.Random, replica: Replica) -> None:
        longer_than_lease = ACK_WAIT * rng.uniform(1.2, 1.8)
        if kind in _ENDS:
            _tell(replica.pid, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        elif kind == "stop":
            pid = replica.pid
            _tell(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(longer_than_lease)
            finally:
                _tell(pid, signal.SIGCONT)
        elif kind == "loss":
            assert replica.proxy is not None
            replica.proxy.loses = rng.uniform(*_LOST)
            try:
                await asyncio.sleep(rng.uniform(*_LOSS_SECONDS))
            finally:
                replica.proxy.loses = 0.0
        elif replica.proxy is not None:
            replica.proxy.freeze()
            try:
                await asyncio.sleep(longer_than_lease)
            finally:
                if rng.random() < 0.5:
                    replica.proxy.thaw()
                else:
                    replica.proxy.cut()


def _of_a_cluster(servers: Clustered) -> dict[str, str]:
    """What the services of a cluster are told besides."""
    return {
        "PROCESSION_STREAM_REPLICAS": "3",
        "PROCESSION_NATS_USER": servers.access["user"],
        "PROCESSION_NATS_PASSWORD_FILE": str(servers.password_file),
    }


def _tell(pid: int, number: signal.Signals) -> None:
    """Signals a process, which may have ended by itself just now."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


async def _told(nursery: Process) -> dict[str, int]:
    """A nursery's next line."""
    assert nursery.stdout is not None
    told: dict[str, int] = json.loads(await nursery.stdout.readline())
    return told


async def _ended(pid: int) -> None:
    """Returns when that process has ended."""
    descriptor = os.pidfd_open(pid)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


@asynccontextmanager
async def world(
    logs: Path | None = None, layout: Layout = APART, *, mix: str = "mixed", max_deliver: int = 30
) -> AsyncIterator[World]:
    """A running system for the length of the block.

    The `mix` of misfortunes is one of `faults.MIXES`: for `lossy`, messages of every replica can be lost, and for
    `CLUSTERS`, there are three servers of NATS.
    """
    async with AsyncExitStack() as stack:
        if logs is None:
            logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        starting = clustered(logs) if mix in CLUSTERS else EmbeddedServers(logs)
        servers = await stack.enter_async_context(starting)
        model = await stack.enter_async_context(CountingModel())
        await model.listen()
        made = World(servers, model, logs, layout, mix, max_deliver=max_deliver)
        await made.start(stack)
        yield made
