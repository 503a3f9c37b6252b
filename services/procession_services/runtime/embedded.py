"""NATS and Redis as child processes, for a machine that has neither.

The demo, the tests and a developer's laptop get real servers with real files from one call. This module
knows how to find, configure, start, stop and kill the two programs; it knows nothing of what is stored in
them, and speaks to them over a bare socket only to learn whether they are ready.
"""

import asyncio
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from procession_services.runtime.server_programs import HOST, EmbeddedServerError, Nats, Program, Redis
from procession_services.runtime.tasks import ended

__all__ = ["EmbeddedServerError", "EmbeddedServers", "Endpoints", "OnLine", "embedded", "nobody"]

_READY_SECONDS: Final = 60.0
_PROBE_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.01
_GRACE_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.5
_LONGEST_PAUSE: Final = 8.0
_ATTEMPTS: Final = 5
_LOG_TAIL_LINES: Final = 12

# Below the ports that systems hand to outgoing connections: otherwise a client that keeps reconnecting to a
# killed server can be given the server's own port, end up connected to itself, and block the restart.
_PORTS: Final = range(20_000, 32_000)

# nats-server has the machine in common with all services: with few threads, work is handed on less often among them.
_THREADS: Final = {"GOMAXPROCS": str(max(1, (os.cpu_count() or 1) // 4))}

# Runs in the child and becomes the server: the kernel ends it when the parent dies, however that happens. A thread of
# Go's runtime wakes every 20 microseconds while the server is at work, a fifth of nats-server's CPU here; with more
# slack for timers the kernel wakes it every two milliseconds. Redis does not mind.
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


OnLine = Callable[[str, str], None]
"""Gets the name of a process and a line that it wrote, or that is about it."""


def nobody(_name: str, _line: str) -> None:
    """Hears nothing."""


class EmbeddedServers:
    """NATS with JetStream and Redis with an append-only file, both below one directory.

    An async context manager. The directory receives the configuration files, the logs and the data; entering
    again with the same directory finds the data again, on other ports. It belongs to one of them at a time: two
    servers on the same files destroy them.

    On Linux the servers die with the thread that started them, even if it is killed. Elsewhere a killed
    parent leaves them running: end them by the process ids that their logs name.
    """

    def __init__(
        self, directory: Path, *, nats: bool = True, redis: bool = True, nats_port: int | None = None
    ) -> None:
        self._directory = directory.resolve()
        self._nats = _Server(Nats(), self._directory, nats_port)
        self._redis = _Server(Redis(), self._directory)
        self._wanted = [server for server, wanted in ((self._nats, nats), (self._redis, redis)) if wanted]
        self._stack = AsyncExitStack()

    @property
    def endpoints(self) -> Endpoints:
        """The URLs of the servers; they stay the same over restarts."""
        return Endpoints(
            nats_url=f"nats://{HOST}:{self._nats.ports[0]}" if self._nats.ports else "",
            redis_url=f"redis://{HOST}:{self._redis.ports[0]}/0" if self._redis.ports else "",
            monitor_url=f"http://{HOST}:{self._nats.ports[1]}" if self._nats.ports else "",
        )

    async def __aenter__(self) -> Self:
        """Start the servers and return when they answer.

        Raises:
            EmbeddedServerError: the directory is another process's, or a server is missing or did not become ready;
                none is left running.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(_owned(self._directory))
            for server in self._wanted:
                stack.push_async_callback(server.stop)
                await server.start()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ask the servers to end, and kill one that has not ended after 5 seconds."""
        await self._stack.aclose()

    def kill_nats(self) -> None:
        """Kill NATS as `kill -9` does; a server that is already dead stays dead."""
        self._nats.kill()

    def freeze_nats(self) -> None:
        """Have NATS stand still until `thaw_nats`; it does when this returns."""
        self._nats.freeze()

    def thaw_nats(self) -> None:
        """Let NATS go on."""
        self._nats.send(signal.SIGCONT)

    def freeze_redis(self) -> None:
        """Have Redis stand still until `thaw_redis`; it does when this returns."""
        self._redis.freeze()

    def thaw_redis(self) -> None:
        """Let Redis go on."""
        self._redis.send(signal.SIGCONT)

    def kill_redis(self) -> None:
        """Kill Redis as `kill -9` does; a server that is already dead stays dead."""
        self._redis.kill()

    async def keep(self, on_line: OnLine) -> None:
        """Starts a server again that has ended, on the same ports and data, until it is cancelled.

        Args:
            on_line: Gets the name of a server and a line about it.
        """
        async with asyncio.TaskGroup() as keepers:
            for server in self._wanted:
                keepers.create_task(server.keep(on_line))

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
async def embedded(
    directory: Path,
    *,
    nats: bool = True,
    redis: bool = True,
    nats_port: int | None = None,
    on_line: OnLine = nobody,
) -> AsyncIterator[Endpoints]:
    """Run the servers for as long as the block lasts, and say where they listen; one that ends is started again.

    Args:
        directory: Where they have their data.
        nats: Whether NATS is wanted.
        redis: Whether Redis is wanted.
        nats_port: Where NATS listens if nobody else does; on any free port otherwise.
        on_line: Gets the name of a server that has ended, and a line about it.

    Raises:
        EmbeddedServerError: the directory is another process's, or a server is missing or did not become ready;
            none is left running.
    """
    async with EmbeddedServers(directory, nats=nats, redis=redis, nats_port=nats_port) as servers:
        keeping = asyncio.create_task(servers.keep(on_line))
        try:
            yield servers.endpoints
        finally:
            await ended(keeping)


class _Server:
    """One server process; keeps its ports and its data from start to start."""

    def __init__(self, program: Program, directory: Path, port: int | None = None) -> None:
        self._program = program
        self._directory = directory
        self._wish = port
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
            ports = self.ports or _free_ports(self._program.port_count, self._wish)
            process = self._spawn(ports)
            if await self._becomes_ready(process, ports[0]):
                self.ports = ports
                return
        raise EmbeddedServerError(self._complaint("ended instead of starting"))

    async def keep(self, on_line: OnLine) -> None:
        """Start the process again whenever it has ended, whatever becomes of the other server."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if (code := self.code()) is not None:
                on_line(self.name, f"ended with code {code}; it is started again")
                await self._start_again(on_line)
                on_line(self.name, "is ready again")

    async def _start_again(self, on_line: OnLine) -> None:
        """Start the process, later each time that it cannot be, as on a full disk; say why once."""
        pause = _LOOK_SECONDS
        while True:
            try:
                await self.start()
            except Exception as error:  # noqa: BLE001 - whatever it is: else nobody would start it any more
                if pause == _LOOK_SECONDS:
                    on_line(self.name, f"cannot be started, and is tried again and again: {error}")
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                return

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

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def freeze(self) -> None:
        """Stop the process and wait until it stands still, which a busy one does not at once."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

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
            reader, writer = await asyncio.open_connection(HOST, port)
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


@contextmanager
def _owned(directory: Path) -> Iterator[None]:
    """Keeps a directory from everybody else for the length of the block."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / "lock").open("a+", encoding="ascii")
    except OSError as error:
        raise EmbeddedServerError(
            f"cannot keep data in {directory}: {error.strerror}; take another directory"
        ) from error
    with file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise EmbeddedServerError(
                f"{directory} is in use by process {lock.read()}: stop that one first, or take another directory"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _free_ports(count: int, wish: int | None = None) -> tuple[int, ...]:
    """Find ports that nobody listens on at this moment; the wish comes first, if it is one of them."""
    ports = [wish] if wish and _is_free(wish) else []
    while len(ports) < count:
        port = secrets.choice(_PORTS)
        if port not in ports and _is_free(port):
            ports.append(port)
    return tuple(ports)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: connections that were closed a moment ago keep nobody from a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
