"""A Chroma server, as a process."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

__all__ = ["ChromaServer", "running_chroma"]


class ChromaServer:
    """A server that can be killed and started again, on the same port and with the same data."""

    def __init__(self, data: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url, self._data = f"http://127.0.0.1:{self._port}", data
        self._process: Any = None

    async def start(self) -> None:
        """Returns when it answers."""
        self._process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("chroma"), "run", "--path", self._data, "--port", str(self._port),
            "--host", "127.0.0.1", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with asyncio.timeout(60), httpx.AsyncClient() as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"{self.url}/api/v2/heartbeat")).is_success:
                        return
                await asyncio.sleep(0.05)

    async def kill(self) -> None:
        """Takes it away, without a warning."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def running_chroma(data: Path) -> AsyncIterator[ChromaServer]:
    """A server that keeps its data in a directory."""
    server = ChromaServer(data)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()
