"""A copy of this checkout, and the containers that its compose files describe; nobody else uses either."""

import asyncio
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import nats
from nats.aio.client import Client

from procession.client import Procession
from procession_services.deploy.files import OPERATOR, Deployment
from procession_services.deploy.permissions import tenant_user
from procession_services.runtime.access import Access
from procession_services.supervisor import SERVICES
from tests.e2e.load import TENANTS

__all__ = ["COMPOSED", "ROOT", "Stack", "command", "documented"]

ROOT: Final = Path(__file__).resolve().parents[2]


def composed(service: str) -> str:
    """The service as compose.yaml names it."""
    return service.replace("_", "-")


COMPOSED: Final = tuple(map(composed, SERVICES))
"""All of them."""
_READY_SECONDS: Final = 240
_PLACES: Final = ("infra", "requirements", "schemas", "services", "tests/e2e")
_FILES: Final = ("*.yaml", "pyproject.toml", "README.md", ".dockerignore", "docs/operations.md")


class Stack:
    """One project of Docker Compose, in a fresh copy of the files that a clone has."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "procession"
        self.deployment = Deployment(self.directory / "secrets")
        self.version = f"e2e-{secrets.token_hex(3)}"
        self.project = f"procession-{self.version}"
        self.port = _free_port()
        self.scheme = "nats"
        self.api_base = "http://demo-model:8399/v1"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PROCESSION_")},
            "COMPOSE_PROJECT_NAME": self.project,
            "COMPOSE_PROFILES": "demo",
            "NATS_PORT": str(self.port),
            "PROCESSION_VERSION": self.version,
            "PROCESSION_WORK_ACK_WAIT": "10",
        }

    @property
    def url(self) -> str:
        """Where clients on this machine reach NATS."""
        return f"{self.scheme}://127.0.0.1:{self.port}"

    async def init(self) -> None:
        """Copies the checkout and writes keys and credentials, as `make init` does."""
        for place in _PLACES:
            shutil.copytree(
                ROOT / place, self.directory / place, ignore=shutil.ignore_patterns("__pycache__")
            )
        for file in (found for pattern in _FILES for found in ROOT.glob(pattern)):
            copy = self.directory / file.relative_to(ROOT)
            copy.parent.mkdir(exist_ok=True)
            shutil.copy(file, copy)
        tenants = [word for tenant in TENANTS for word in ("--tenant", tenant)]
        await self.run(sys.executable, "-m", "procession_services", "init", *tenants)

    async def run(self, *words: str, given: str = "", **environment: str) -> str:
        """Runs a command in the copy; raises RuntimeError with what it said."""
        return await command(
            *words, directory=self.directory, environment={**self.environment, **environment}, given=given
        )

    async def shell(self, script: str) -> str:
        """Runs a script, such as one of docs/operations.md; `procession_` there begins the names of volumes."""
        return await self.run(
            "bash", "-euo", "pipefail", "-c", script.replace("procession_", f"{self.project}_")
        )

    async def compose(self, *words: str, given: str = "", **environment: str) -> str:
        """Runs `docker compose`."""
        return await self.run("docker", "compose", *words, given=given, **environment)

    async def up(self, *words: str, **environment: str) -> None:
        """Starts what is missing and waits until all of it is ready."""
        await self.compose("up", "-d", "--wait", "--wait-timeout", str(_READY_SECONDS), *words, **environment)

    async def down(self) -> None:
        """Removes the containers, of every profile, and what they stored."""
        await self.compose("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "5")

    async def remove(self) -> None:
        """Leaves nothing behind but what makes the next build fast."""
        await self.down()
        filter_ = f"reference=procession-*:{self.version}*"
        told = await self.run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", filter_)
        if images := told.split():
            await self.run("docker", "rmi", *images)

    async def python(self, service: str, script: str, *words: str) -> str:
        """Runs a Python script in a service's container."""
        return await self.compose("exec", "-T", service, "/app/bin/python", "-", *words, given=script)

    async def containers(self, service: str) -> list[str]:
        """The ids of a service's running containers."""
        return (await self.compose("ps", "-q", service)).split()

    async def inspect(self, *containers: str) -> list[dict[str, Any]]:
        """What Docker knows of containers; of all of the project without a name."""
        named = containers or tuple((await self.compose("ps", "-aq")).split())
        told: list[dict[str, Any]] = json.loads(await self.run("docker", "inspect", *named))
        return told

    async def health(self, container: str, status: str) -> None:
        """Waits until a container is `healthy`, or `unhealthy`."""
        async with asyncio.timeout(_READY_SECONDS):
            while (await self.inspect(container))[0]["State"].get("Health", {}).get("Status") != status:  # noqa: ASYNC110
                await asyncio.sleep(0.5)

    async def healthy(self) -> None:
        """Waits until every container is; `up --wait` gives up at one that has been without its servers."""
        for container in await self.inspect():
            if container["State"]["Running"]:
                await self.health(container["Id"], "healthy")

    async def procession(self, tenant: str, *words: str) -> str:
        """Runs the command line as a tenant."""
        own = {
            "PROCESSION_NATS_URL": self.url,
            "PROCESSION_TENANT": tenant,
            "PROCESSION_NATS_USER": tenant_user(tenant),
            "PROCESSION_NATS_PASSWORD_FILE": str(self.deployment.directory / "clients" / tenant),
        }
        return await command(
            *(sys.executable, "-m", "procession_services", *words),
            directory=self.directory,
            environment={**os.environ, **own},
        )

    def client(self, tenant: str) -> Procession:
        """A client of that tenant."""
        authority = self.deployment.directory / "tls" / "authority.pem" if self.scheme == "tls" else None
        access = Access(
            nats_user=tenant_user(tenant),
            nats_password=self.deployment.password("clients", tenant),
            authority=authority,
        )
        return Procession(self.url, tenant=tenant, **access.nats(self.url))

    async def operator(self) -> Client:
        """A connection to NATS that may ask everything."""
        return await nats.connect(
            self.url, user=OPERATOR, password=self.deployment.password("nats", OPERATOR)
        )

    async def scale(self, service: str, replicas: int) -> None:
        """Starts or stops containers of a service until there are so many."""
        await self.up("--no-recreate", "--scale", f"{composed(service)}={replicas}")

    async def kill(self, service: str, replicas: int) -> None:
        """Kills so many of its containers for good."""
        await self.run("docker", "kill", *(await self.containers(composed(service)))[:replicas])

    async def crash(self, service: str) -> None:
        """Kills the only container from within, so that Docker's policy starts it again."""
        (container,) = await self.containers(composed(service))
        # Everything but the container's first process, which ends with its child.
        await self.run("docker", "exec", container, "sh", "-c", "kill -9 -1 || true")
        async with asyncio.timeout(60):
            while not (await self.inspect(container))[0]["RestartCount"]:  # noqa: ASYNC110 - Docker changes it
                await asyncio.sleep(0.1)
        await self.health(container, "healthy")

    async def kill_server(self, server: str) -> None:
        """Kills a server and starts it again."""
        await self.compose("kill", server)
        await self.compose("start", server)
        await self.healthy()

    async def restart_server(self, server: str) -> None:
        """Stops a server and starts it again."""
        await self.compose("restart", server)
        await self.healthy()

    async def without_nats(self) -> None:
        """Stops NATS until a service says that it is not ready, and starts it again."""
        (container,) = await self.containers("input-processors")
        await self.compose("stop", "nats")
        await self.health(container, "unhealthy")
        await self.compose("start", "nats")
        await self.healthy()

    async def upgrade(self, service: str) -> tuple[int, float]:
        """As docs/operations.md says: the new version joins, then the old one is told to stop."""
        image, name = f"procession-{composed(service)}", composed(service)
        await self.run("docker", "tag", f"{image}:{self.version}", f"{image}:{self.version}-next")
        (old,) = await self.containers(name)
        next_ = {"PROCESSION_VERSION": f"{self.version}-next"}
        await self.up("--no-deps", "--no-recreate", "--scale", f"{name}=2", name, **next_)
        asked = time.monotonic()
        await self.run("docker", "stop", old)
        took = time.monotonic() - asked
        code = (await self.inspect(old))[0]["State"]["ExitCode"]
        await self.run("docker", "rm", old)
        return code, took


async def command(
    *words: str, directory: Path = ROOT, environment: dict[str, str] | None = None, given: str = ""
) -> str:
    """Runs a command and gives what it wrote; raises RuntimeError with what it said when it fails."""
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=directory,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate(given.encode())
    if process.returncode:
        raise RuntimeError(
            f"{' '.join(words[:8])} ended with {process.returncode}:\n{out.decode()[-1000:]}\n{err.decode()[-3000:]}"
        )
    return out.decode()


def documented(heading: str) -> Sequence[str]:
    """The commands of a section of docs/operations.md, block by block."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = re.split(r"^#+ ", text.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
