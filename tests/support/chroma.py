"""The Chroma server that comes with the package `chromadb`, as a process."""

import asyncio
import sys
from pathlib import Path
from typing import Self

from tests.support.probes import chroma_answers, free_port, until

__all__ = ["ChromaProcess"]


class ChromaProcess:
    """A server on a port of its own; an asynchronous context manager."""

    def __init__(self, directory: Path) -> None:
        self._port = free_port()
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The process, which must have been started."""
        assert self._process is not None
        return self._process.pid

    async def __aenter__(self) -> Self:
        """Starts it."""
        await self.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Ends it."""
        await self.kill()

    async def start(self) -> None:
        """Starts it, and returns when it answers."""
        self._process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("chroma"), "run", "--path", self._directory, "--port", str(self._port),
            "--host", "127.0.0.1", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await until(lambda: chroma_answers(self._port), "Chroma")

    async def kill(self) -> None:
        """As `kill -9` does."""
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
