"""A whole system for integration tests: services in this process or as processes, a scripted model, a client."""

import asyncio
import ctypes
import importlib
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self

import nats
from nats.js.errors import NotFoundError
from redis.asyncio import Redis

from procession.client import Procession, RunHandle
from procession_schemas import subjects
from procession_schemas.agent import Agent
from procession_services.bus import Nearby
from procession_services.demo_model import Server, serve
from procession_services.processor_host.handover import Handover
from procession_services.processor_host.service import hosted
from procession_services.runtime.embedded import Endpoints
from procession_services.runtime.redis_client import RedisClient, connect
from procession_services.runtime.settings import Settings

__all__ = [
    "ROOT",
    "SERVICES",
    "Gate",
    "ServiceProcess",
    "System",
    "all_but",
    "deltas",
    "kept",
    "running_system",
    "service_process",
    "text_of",
]

SERVICES: Final = (
    "orchestrator", "input_processors", "llm_gateway", "output_processors", "error_recovery", "memory",
    "tools",
)  # fmt: skip
PLUGINS: Final = ("tests.support.plugin", "tests.support.hooked")
ROOT: Final = Path(__file__).resolve().parents[2]
_READY_SECONDS: Final = 240.0
_SECONDS: Final = 60.0
_numbers = itertools.count()


def all_but(service: str) -> tuple[str, ...]:
    """The other services."""
    return tuple(each for each in SERVICES if each != service)


class Gate:
    """A place in a run where the first one who comes waits for the test; see `plugin.pass_gate`."""

    def __init__(self, redis: Redis, url: str) -> None:
        self._redis: Any = redis
        self.key = f"gate:{os.getpid()}:{next(_numbers)}"
        self.options = {"redis": url, "key": self.key}

    def processor(self, *hooks: str, kind: str = "gate", **options: Any) -> dict[str, Any]:
        """A reference to the processor that waits in these hooks."""
        return {"id": kind, "options": {**self.options, "hooks": list(hooks), **options}}

    async def reached(self) -> int:
        """Waits until somebody comes; returns the id of its process."""
        found = await self._redis.blpop([f"{self.key}:reached"], timeout=_SECONDS)
        assert found, f"nobody came to {self.key}"
        return int(found[1])

    async def open(self) -> None:
        """Lets the first one go on."""
        await self._redis.rpush(f"{self.key}:open", 1)

    async def passes(self) -> int:
        """How many came."""
        return int(await self._redis.get(f"{self.key}:passes") or 0)


class ServiceProcess:
    """One service as a process of its own, or several in one: `procession serve SERVICE...`."""

    def __init__(self, services: tuple[str, ...], environment: dict[str, str], log: Path) -> None:
        self.services, self.log = services, log
        self.environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The process, which must have been started."""
        assert self._process is not None
        return self._process

    async def start(self) -> Self:
        """Starts the process; it ends with us, however we end."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "procession_services", "serve", *self.services,
                cwd=ROOT, env=self.environment, stdout=asyncio.subprocess.PIPE, stderr=log,
                preexec_fn=_die_with_parent,
            )  # fmt: skip
        return self

    async def ready(self) -> dict[str, Any]:
        """Waits for the line that says that the service is ready."""
        assert self.process.stdout is not None
        async with asyncio.timeout(_READY_SECONDS):
            line = await self.process.stdout.readline()
        assert line, f"{self.services} ended: {self.logged()}"
        told: dict[str, Any] = json.loads(line)
        assert told["ready"] == " ".join(self.services)
        return told

    async def says(self, text: str) -> None:
        """Waits until the log has the text."""
        async with asyncio.timeout(_READY_SECONDS):
            while text not in self.logged():
                assert self.process.returncode is None, self.logged()
                await asyncio.sleep(0.02)

    def logged(self) -> str:
        """What the process wrote on stderr."""
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """As `kill -9` does."""
        if self.process.returncode is None:
            self.process.kill()

    async def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> int:
        """Waits for the end of the process; returns the exit code."""
        async with asyncio.timeout(_READY_SECONDS):
            return await self.process.wait()

    async def stop(self) -> None:
        """Ends the process in any case."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def service_process(services: tuple[str, ...], log: Path, **settings: Any) -> ServiceProcess:
    """A process with one service or several, not started yet."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PROCESSION_")}
    paths = os.pathsep.join(str(ROOT / each) for each in ("", "schemas", "services"))
    environment |= {"PYTHONPATH": paths, "OPENAI_API_KEY": "unused"}
    environment |= {f"PROCESSION_{name.upper()}": str(value) for name, value in settings.items()}
    return ServiceProcess(services, environment, log)


class System:
    """Servers, a model, and whatever of the services a test starts."""

    def __init__(
        self, servers: Endpoints, models: Server, client: Procession, redis: RedisClient, logs: Path
    ) -> None:
        self.servers, self.models, self.client, self.redis = servers, models, client, redis
        self._logs = logs

    def settings(self, replica: str, **more: Any) -> Settings:
        """Settings of a service in this process."""
        servers = {"nats_url": self.servers.nats_url, "redis_url": self.servers.redis_url}
        own = {"plugins": PLUGINS, "replica": replica, "api_base": self.api_base}
        return Settings(**{**servers, **own, **more})

    @property
    def api_base(self) -> str:
        """Base URL of the model server."""
        return f"http://127.0.0.1:{self.models.port}/v1"

    @asynccontextmanager
    async def inside(self, *services: str, together: bool = False, **settings: Any) -> AsyncIterator[None]:
        """Runs services in this process for the length of the block; `together` they know that they share it."""
        shared = (Nearby(), Handover()) if together else (None, None)
        async with AsyncExitStack() as stack:
            for service in services:
                start = importlib.import_module(f"procession_services.{service}.app").start
                own = self.settings(f"{service}-{next(_numbers)}", **settings)
                await stack.enter_async_context(hosted(service, own, start, *shared))
            yield

    def process(self, *services: str, **environment: Any) -> ServiceProcess:
        """A process with one service or several, not started yet; `environment` are settings."""
        servers = {"nats_url": self.servers.nats_url, "redis_url": self.servers.redis_url}
        own = {"plugins": ",".join(PLUGINS), "api_base": self.api_base}
        log = self._logs / f"{'+'.join(services)}-{next(_numbers)}.log"
        return service_process(services, log, **{**servers, **own, **environment})

    def gate(self) -> Gate:
        """A new gate."""
        return Gate(self.redis, self.servers.redis_url)

    def script(self, *calls: dict[str, Any]) -> str:
        """The name of a model that answers so."""
        script_id = f"s{next(_numbers)}"
        self.models.scripts.add(script_id, list(calls))
        return f"openai/script:{script_id}"

    def requests(self, model: str) -> list[Any]:
        """What a scripted model was asked."""
        return self.models.scripts.requests(model.removeprefix("openai/script:")) or []

    async def batches(self, run: str) -> list[dict[str, Any]]:
        """The chunk batches of a run as they are stored."""
        connection = await nats.connect(self.servers.nats_url)
        found: list[dict[str, Any]] = []
        sequence, jetstream = 1, connection.jetstream()
        subject = subjects.chunk(self.client.tenant, run)
        while True:
            try:
                message = await jetstream.get_msg(
                    "CHUNKS", seq=sequence, subject=subject, direct=True, next=True
                )
            except NotFoundError:
                await connection.close()
                return found
            found.append(json.loads(message.data or b""))
            sequence = (message.seq or 0) + 1

    async def start(
        self, *calls: dict[str, Any], text: Any = "Hello", agent: Any = None, **options: Any
    ) -> RunHandle:
        """Starts a run of an agent whose model answers with these calls; `agent` has further fields of it."""
        fields = {"name": "test", **({"model": self.script(*calls)} if calls else {}), **(agent or {})}
        return await self.client.start(text, agent=Agent.model_validate(fields), **options)

    async def run(self, *calls: dict[str, Any], **options: Any) -> Any:
        """Runs such an agent to its end; returns its result and its chunks."""
        handle = await self.start(*calls, **options)
        return await finished(handle)


class Numbered(dict[str, Any]):
    """A chunk with its number, which jumps where work was begun anew before anything was seen of it."""

    number: int


async def numbered(handle: RunHandle) -> AsyncIterator[Numbered]:
    """The chunks of a run, with their numbers."""
    async for chunk in handle:
        each = Numbered(chunk)
        each.number = handle.position - 1
        yield each


async def finished(handle: RunHandle) -> Any:
    """The result and the chunks of a run; a run without end fails the test."""
    async with asyncio.timeout(_SECONDS):
        chunks = [chunk async for chunk in numbered(handle)]
        result = await handle.result()
    await handle.close()
    return result, chunks


def kept(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The chunks that count: a reset takes back those from its number on."""
    counting: list[dict[str, Any]] = []
    numbers: list[int] = []
    for at, chunk in enumerate(chunks):
        if chunk["type"] == "reset":
            keep = sum(each < chunk["payload"]["from"] for each in numbers)
            del counting[keep:], numbers[keep:]
            continue
        counting.append(chunk)
        numbers.append(getattr(chunk, "number", at))
    return counting


def deltas(chunks: list[dict[str, Any]]) -> list[str]:
    """The texts of the chunks that count."""
    return [chunk["payload"]["text"] for chunk in kept(chunks) if chunk["type"] == "text-delta"]


def text_of(chunks: list[dict[str, Any]]) -> str:
    """The text that a client has at the end."""
    return "".join(deltas(chunks))


@asynccontextmanager
async def running_system(servers: Endpoints, logs: Path) -> AsyncIterator[System]:
    """A model and a client at these servers; no service yet."""
    tenant = f"it-{os.getpid()}-{next(_numbers)}"
    async with (
        await serve() as models,
        connect(servers.redis_url) as redis,
        Procession(servers.nats_url, tenant=tenant) as client,
    ):
        yield System(servers, models, client, redis, logs)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
