"""The sides of a comparison: our system with its client, apart or in one process, and the peer; driven over pipes."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import agents
from benchmarks.machine import Reading, children
from benchmarks.protocol import INPUT, RESOURCE, SETTLE_SECONDS, SPREAD, Command, Outcome
from procession_services.supervisor import system

__all__ = [
    "APART",
    "PEER",
    "TOGETHER",
    "Sample",
    "Side",
    "model_server",
    "our_side",
    "peer_modules",
    "peer_side",
]

APART: Final = ""
TOGETHER: Final = "together_"
PEER: Final = "peer_"
"""What the names of a side's values begin with: ours with a process for each service, in one process, and Mastra."""
_HERE: Final = Path(__file__).parent
_ROOT: Final = _HERE.parent
_LINE_LIMIT: Final = 64 * 1024 * 1024
_PLACES: Final = 512
"""Runs that the one gateway works on at once: more than any part has."""
_SERVERS: Final = {
    "nats-server": "nats-server",
    "redis-server": "redis-server",
    "valkey-server": "redis-server",
}
"""The programs of servers, and what they are called here."""


class SideError(RuntimeError):
    """A client process ended or said what it should not; the message has what it wrote."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One repetition: how the runs went, the CPU seconds of the side's processes and the model, the CPUs of others."""

    outcome: Outcome
    cpu: Mapping[str, float]
    foreign: float


@dataclass(frozen=True, slots=True)
class Side:
    """A client process, and the processes that serve it.

    Attributes:
        prefix: What the names of its values begin with in the results, and those of its processes in `everybody`.
        pids: The processes of the system that is measured, by name; without model server, and without the client
            where that is a process of its own.
        everybody: All processes of the benchmark, for telling what others use.
    """

    name: str
    prefix: str
    client: asyncio.subprocess.Process
    pids: Mapping[str, int]
    everybody: dict[str, int]
    versions: Mapping[str, str]

    @property
    def processes(self) -> tuple[str, ...]:
        """What is counted for it: the processes that serve, and the client where that is not one of them."""
        return (*self.pids, *(["client"] if self.client.pid not in self.pids.values() else []))

    async def measure(self, command: Command) -> Sample:
        """Has the client carry out a command; raises SideError when it ends instead."""
        assert self.client.stdin is not None
        self.client.stdin.write(command.model_dump_json(by_alias=True).encode() + b"\n")
        await _hear(self.client, "begin")
        before = Reading.take(self.everybody)
        await _hear(self.client, "end")
        used, foreign = Reading.take(self.everybody).since(before)
        cpu = {name: used[self.prefix + name] for name in self.processes} | {"model": used["model"]}
        return Sample(Outcome.model_validate(await _line(self.client)), cpu, foreign)


@asynccontextmanager
async def model_server() -> AsyncIterator[tuple[str, int]]:
    """The model server that both sides ask; yields the base URL of its API and its process id."""
    command = ("-m", "procession_services.demo_model", "--port", "0", "--pace-ms", "0")
    async with _process(sys.executable, *command, environment=os.environ) as process:
        line = await _line(process)
        yield f"http://127.0.0.1:{line['port']}/v1", process.pid


@asynccontextmanager
async def our_side(api: str, everybody: dict[str, int], *, together: bool = False) -> AsyncIterator[Side]:
    """NATS, Redis, every service as a process of its own or all in one, and a client process."""
    paths = os.pathsep.join((str(_ROOT), os.environ.get("PYTHONPATH", "")))
    environment = {
        "PYTHONPATH": paths.rstrip(os.pathsep),
        "PROCESSION_AGENTS": str(agents.__file__),
        "PROCESSION_PLUGINS": "benchmarks.processors",
        "PROCESSION_API_BASE": api,
        "OPENAI_API_KEY": "none-needed",
        "PROCESSION_WORKER_CONCURRENCY": str(_PLACES),
    }
    async with system(environment=environment, together=together, on_line=_pass_on) as running:
        client_of = ("-m", "benchmarks.client", running.nats_url, api)
        async with _process(sys.executable, *client_of, environment={**os.environ, **environment}) as client:
            new = {pid: name for pid, name in children().items() if pid not in everybody.values()}
            servers = {_SERVERS[name]: pid for pid, name in new.items() if name in _SERVERS}
            pids = {**running.supervisor.pids, **servers}
            name, prefix = ("together", TOGETHER) if together else ("procession", APART)
            everybody.update(
                {prefix + process: pid for process, pid in {**pids, "client": client.pid}.items()}
            )
            versions = (await _hear(client, "ready"))["versions"]
            yield Side(name, prefix, client, pids, everybody, versions)


def peer_modules(given: Path | None) -> Path | None:
    """The `node_modules` with the peer: of the given directory, PEER_NODE_MODULES, or `benchmarks/.peer`."""
    named = os.environ.get("PEER_NODE_MODULES")
    places = [
        given,
        given and given / "node_modules",
        named and Path(named),
        _HERE / ".peer" / "node_modules",
    ]
    return next((Path(p).resolve() for p in places if p and (Path(p) / "@mastra" / "core").is_dir()), None)


@asynccontextmanager
async def peer_side(modules: Path, api: str, everybody: dict[str, int]) -> AsyncIterator[Side]:
    """Mastra in one Node process, with the client in it; the Node of `modules` where there is one."""
    ours = modules / "node" / "bin" / "node"
    node = str(ours) if ours.exists() else shutil.which("node")
    if node is None:
        raise SideError("Node is neither on the PATH nor in the peer's node_modules: npm install node@22")
    settings = {
        "api": api,
        "input": INPUT,
        "resource": RESOURCE,
        "instructions": agents.INSTRUCTIONS,
        "settleMs": SETTLE_SECONDS * 1e3,
        "spread": SPREAD,
        "modules": str(modules),
    }
    with tempfile.TemporaryDirectory(prefix="procession-peer-") as directory:
        # Node looks for modules beside the script.
        script = shutil.copy(_HERE / "peer.mjs", directory)
        (Path(directory) / "node_modules").symlink_to(modules)
        settings["database"] = f"file:{directory}/memory.db"
        environment = {**os.environ, "NODE_ENV": "production"}
        arguments = (node, str(script), json.dumps(settings))
        async with _process(*arguments, environment=environment) as process:
            everybody[f"{PEER}node"] = process.pid
            versions = (await _hear(process, "ready"))["versions"]
            yield Side("mastra", PEER, process, {"node": process.pid}, everybody, versions)


@asynccontextmanager
async def _process(
    *command: str, environment: Mapping[str, str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that is spoken to over pipes and ended with the block."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, env=environment, limit=_LINE_LIMIT
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _line(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise SideError(f"process {process.pid} ended with code {await process.wait()}; see above for why")
    said: dict[str, Any] = json.loads(line)
    return said


async def _hear(process: asyncio.subprocess.Process, event: str) -> dict[str, Any]:
    said = await _line(process)
    if said.get("event") != event:
        raise SideError(f"process {process.pid} said {str(said)[:300]} instead of {event!r}")
    return said


def _pass_on(name: str, line: str) -> None:
    sys.stderr.write(f"[{name}] {line}\n")
