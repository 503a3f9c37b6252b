"""The stack of compose.yaml in real containers, under load: `make e2e`.

Brings everything up from a fresh `procession init`, sends runs all the time, and meanwhile scales, kills, restarts and
upgrades. Every run must end as if nothing had happened, with one terminal event. The last line has the figures.
"""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import nats

from procession.client import Procession, RunHandle
from procession.errors import ProcessionError
from procession_schemas import subjects
from procession_services.deploy.files import OPERATOR, Deployment
from procession_services.deploy.permissions import tenant_user

ROOT: Final = Path(__file__).resolve().parents[2]
STANDINS: Final = ROOT.parent / "shared" / "tools" / "standin-images"
TENANT: Final = "acme"
QUESTION: Final = "What is the weather in Paris, and whom can I write to about it?"
CLIENTS: Final = 4
RUN_SECONDS: Final = 150.0


@dataclass
class Figures:
    """What happened."""

    runs: int = 0
    chunks: int = 0
    resets: int = 0
    slowest: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def phase(self, name: str) -> Any:
        """Notes how long something took."""
        started, before = time.monotonic(), self.runs
        yield
        self.seconds[name] = round(time.monotonic() - started, 1)
        _say(f"{name}: {self.seconds[name]} s, {self.runs - before} runs")


class Stack:
    """The containers of one project, which nobody else uses."""

    def __init__(self, directory: Path) -> None:
        self.deployment = Deployment(directory / "secrets")
        self.deployment.write([TENANT])
        self.project = f"procession-e2e-{secrets.token_hex(3)}"
        self.url = f"nats://127.0.0.1:{(port := _free_port())}"
        self.environment = {
            **os.environ,
            "PROCESSION_SECRETS": str(self.deployment.directory),
            "NATS_PORT": str(port),
            "PROCESSION_VERSION": "e2e",
        }

    async def compose(self, *command: str, **environment: str) -> str:
        """Runs `docker compose`; raises RuntimeError with what it said."""
        return await _command(
            *("docker", "compose", "-p", self.project, "--profile", "demo", *command),
            environment={**self.environment, **environment},
        )

    async def up(self, *command: str, **environment: str) -> None:
        """Starts what is missing and waits until all of it is ready."""
        await self.compose("up", "-d", "--wait", "--wait-timeout", "240", *command, **environment)

    async def containers(self, service: str) -> list[str]:
        """The ids of a service's running containers."""
        return (await self.compose("ps", "-q", service)).split()


async def _command(*command: str, environment: dict[str, str] | None = None) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    if process.returncode:
        raise RuntimeError(
            f"{' '.join(command[:8])} ended with {process.returncode}:\n{err.decode()[-3000:]}"
        )
    return out.decode()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@asynccontextmanager
async def load(stack: Stack, figures: Figures) -> AsyncIterator[list[str]]:
    """Runs for the length of the block, of several clients; every one that was begun is waited for."""
    stopping, ids = asyncio.Event(), list[str]()
    password = stack.deployment.password("clients", TENANT)
    async with Procession(
        stack.url, tenant=TENANT, user=tenant_user(TENANT), password=password
    ) as procession:

        async def client(number: int) -> None:
            while not stopping.is_set():
                run = f"e2e-{number}-{secrets.token_hex(6)}"
                try:
                    async with asyncio.timeout(RUN_SECONDS):
                        await _one(procession, run, figures)
                except Exception as error:  # noqa: BLE001 - whatever it is, the run counts as lost
                    figures.wrong.append(f"{run}: {error!r}")
                figures.runs += 1
                ids.append(run)

        clients = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
        try:
            yield ids
        finally:
            stopping.set()
            await asyncio.gather(*clients)


async def _one(procession: Procession, run: str, figures: Figures) -> None:
    """One run: its result must be good, and its chunks must say what its result says."""
    started, shown = time.monotonic(), ""
    handle = await _started(procession, run)
    async for chunk in handle:
        figures.chunks += 1
        if chunk["type"] == "reset":
            figures.resets += 1
        if chunk["type"] == "text-delta":
            shown += chunk["payload"]["text"]
    result = await handle.result()
    figures.slowest = max(figures.slowest, time.monotonic() - started)
    await handle.close()
    if result.status != "finished":
        figures.wrong.append(f"{run}: {result.status}, {result.error}")
    elif not result.text or not shown.endswith(result.text):
        figures.wrong.append(f"{run}: showed {shown!r}, answered {result.text!r}")


async def _started(procession: Procession, run: str) -> RunHandle:
    """NATS may be away: the same request under the same id is the same run."""
    while True:
        try:
            return await procession.start(QUESTION, agent="demo", run_id=run)
        except ProcessionError:
            await asyncio.sleep(0.5)


async def answered_once(stack: Stack, runs: list[str], figures: Figures) -> None:
    """Every run has exactly one terminal event in the stream."""
    connection = await nats.connect(
        stack.url, user=OPERATOR, password=stack.deployment.password("nats", OPERATOR)
    )
    pattern = subjects.event(TENANT, "x", "run.finished").replace(".x.", ".*.")
    answer = await connection.request(
        "$JS.API.STREAM.INFO.EVENTS", json.dumps({"subjects_filter": pattern}).encode(), timeout=10
    )
    counts = json.loads(answer.data)["state"].get("subjects") or {}
    for run in runs:
        if (found := counts.get(subjects.event(TENANT, run, "run.finished"), 0)) != 1:
            figures.wrong.append(f"{run}: {found} terminal events")
    await connection.close()


async def scenario(stack: Stack, figures: Figures) -> None:
    """What is done to the stack while runs are in flight."""
    with figures.phase("build"):
        await stack.compose("build", "--quiet")
    with figures.phase("up"):
        await stack.up()
    async with load(stack, figures) as runs:
        with figures.phase("steady"):
            await asyncio.sleep(10)
        with figures.phase("scale output-processors to 4"):
            await stack.up("--no-recreate", "--scale", "output-processors=4")
        with figures.phase("kill two output-processors"):
            for container in (await stack.containers("output-processors"))[:2]:
                await _command("docker", "kill", container)
            await asyncio.sleep(5)
        with figures.phase("scale output-processors to 1"):
            await stack.up("--no-recreate", "--scale", "output-processors=1")
        for service in ("tools", "llm-gateway", "orchestrator"):
            with figures.phase(f"kill {service}"):
                await _command("docker", "kill", *await stack.containers(service))
                await stack.up("--no-recreate")
        with figures.phase("restart NATS"):
            await stack.compose("restart", "nats")
            await stack.up("--no-recreate")
        with figures.phase("restart Redis"):
            await stack.compose("restart", "redis")
            await stack.up("--no-recreate")
        with figures.phase("upgrade input-processors"):
            await upgrade(stack, "input-processors")
    await answered_once(stack, runs, figures)


async def upgrade(stack: Stack, service: str) -> None:
    """A rolling upgrade: the new version joins, then the old one is told to stop."""
    image = f"procession-{service}"
    await _command("docker", "tag", f"{image}:e2e", f"{image}:e2e-next")
    old = await stack.containers(service)
    await stack.up(
        "--no-deps", "--no-recreate", "--scale", f"{service}=2", service, PROCESSION_VERSION="e2e-next"
    )
    await _command("docker", "stop", *old)
    await _command("docker", "rm", *old)


async def ready() -> str | None:
    """Why containers cannot run here; None when they can. Stand-in images are made where nothing can be pulled."""
    if STANDINS.exists():
        with contextlib.suppress(RuntimeError):
            await _command(str(STANDINS), "--from", "compose.yaml", "infra/Dockerfile")
    try:
        await _command("docker", "info")
        await _command("docker", "compose", "version")
    except (RuntimeError, OSError) as error:
        return str(error)
    return None


async def main() -> int:
    """Runs everything; 1 when something was lost, answered twice, or did not start."""
    if why := await ready():
        _say(f"{why}\nDocker does not run here; `make e2e-embedded` runs the same scenarios on processes.")
        return 1
    figures = Figures()
    with TemporaryDirectory(prefix="procession-e2e-") as directory:
        stack = Stack(Path(directory))
        try:
            await scenario(stack, figures)
        except Exception as error:  # noqa: BLE001 - told with what the containers said
            figures.wrong.append(f"{error!r}")
            _say(await stack.compose("ps", "-a"))
            _say(await stack.compose("logs", "--tail", "20"))
        finally:
            await stack.compose("down", "--volumes", "--timeout", "5")
    for wrong in figures.wrong:
        _say(f"wrong: {wrong}")
    told = {
        "runs": figures.runs, "wrong": len(figures.wrong), "chunks": figures.chunks, "resets": figures.resets,
        "slowestRun": round(figures.slowest, 1), "seconds": figures.seconds,
    }  # fmt: skip
    _say(json.dumps(told))
    return 1 if figures.wrong or not figures.runs else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
