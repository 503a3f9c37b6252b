"""Services as processes that are forked from one that has imported everything: quick to start, and to start again."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.system import ROOT, SERVICES, ServiceProcess

__all__ = ["Forked", "Nursery", "nursery"]

_SECONDS: Final = 90.0
_LOOK_SECONDS: Final = 0.02


class Forked:
    """A process, with its services."""

    def __init__(self, services: tuple[str, ...], pid: int, out: Path, log: Path) -> None:
        self.services, self.pid, self._out, self._log = services, pid, out, log

    async def ready(self) -> None:
        """Waits for the line that says that the service is ready."""
        async with asyncio.timeout(_SECONDS):
            while not self._out.read_text().endswith("\n"):
                assert _lives(self.pid), self.logged()
                await asyncio.sleep(_LOOK_SECONDS)

    def logged(self) -> str:
        """What the process wrote on stderr."""
        return self._log.read_text(errors="replace")

    async def terminate(self) -> None:
        """SIGTERM, and waits for the end."""
        descriptor = os.pidfd_open(self.pid)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            os.kill(self.pid, signal.SIGTERM)
            async with asyncio.timeout(_SECONDS):
                await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # its parent looks after its children only when it forks the next one


class Nursery:
    """The process from which services are forked; they end with it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._asking = asyncio.Lock()

    async def told(self) -> dict[str, int]:
        """Its next line."""
        assert self._process.stdout is not None
        told: dict[str, int] = json.loads(await self._process.stdout.readline())
        return told

    async def start(self, made: ServiceProcess) -> Forked:
        """Forks what `System.process` has described."""
        assert self._process.stdin is not None
        out = made.log.with_suffix(".out")
        out.write_text("")
        asked: dict[str, Any] = {"services": made.services, "environment": made.environment, "out": str(out),
                                 "log": str(made.log)}  # fmt: skip
        async with self._asking:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            pid = (await self.told())["pid"]
        return Forked(made.services, pid, out, made.log)


@asynccontextmanager
async def nursery() -> AsyncIterator[Nursery]:
    """A nursery for the length of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.chaos.nursery", *SERVICES, cwd=ROOT, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("", "schemas", "services"))},
    )  # fmt: skip
    try:
        made = Nursery(process)
        async with asyncio.timeout(_SECONDS):
            await made.told()
        yield made
    finally:
        process.kill()
        await process.wait()
