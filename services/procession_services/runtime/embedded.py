"""NATS and Redis as child processes, for a machine that has neither.

The demo, the tests and a developer's laptop get real servers with real files from one call. Which programs they are is
in `server_programs.py`, how one of them is run in `server_process.py`.
"""

import asyncio
import fcntl
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from procession_services.runtime.server_process import OnLine, ServerProcess
from procession_services.runtime.server_programs import HOST, EmbeddedServerError, Nats, Redis
from procession_services.runtime.tasks import meanwhile

__all__ = ["EmbeddedServerError", "EmbeddedServers", "Endpoints", "OnLine", "embedded", "nobody"]


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
        self._nats = ServerProcess(Nats(), self._directory, nats_port)
        self._redis = ServerProcess(Redis(), self._directory)
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
    started = EmbeddedServers(directory, nats=nats, redis=redis, nats_port=nats_port)
    async with started as servers, meanwhile(servers.keep(on_line)):
        yield servers.endpoints


@contextmanager
def _owned(directory: Path) -> Iterator[None]:
    """Keeps a directory from everybody else for the length of the block."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / "lock").open("a+", encoding="ascii")
    except OSError as error:
        raise EmbeddedServerError(
            f"cannot keep data in {directory}: {error.strerror}; choose another directory"
        ) from error
    with file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise EmbeddedServerError(
                f"{directory} is in use by process {lock.read()}: stop that one first, or choose another directory"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
