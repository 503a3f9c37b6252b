"""One server as a child process: it is started, watched, started again where it has ended, and stopped.

Nothing here knows what is stored in it; it is spoken to over a bare socket, only to learn whether it is ready.
"""

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from procession_services.runtime.server_programs import HOST, EmbeddedServerError, Program

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

OnLine = Callable[[str, str], None]
"""Gets the name of a process and a line that it wrote, or that is about it."""


class ServerProcess:
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
        """Its exit code; None while it runs."""
        return self._process.poll() if self._process else None

    async def start(self) -> None:
        """Start the process and return when it answers.

        A process that ends at once is tried again, on other ports if it never ran before: somebody else may
        have taken the port after we looked.
        """
        for _ in range(_ATTEMPTS):
            ports = self.ports or free_ports(self._program.port_count, self._wish)
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
                on_line(self.name, f"ended with code {code}; restarting")
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
                    on_line(self.name, f"cannot be started, trying again: {error}")
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
        """Wait until the process answers (true) or has ended (false); one that does not answer in time is killed."""
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while process.poll() is None:
                    if await self._answers(port, process.pid):
                        return True
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            self.kill()  # whoever tries again starts another one on its data
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


def free_ports(count: int, wish: int | None = None) -> tuple[int, ...]:
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
