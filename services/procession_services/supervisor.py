"""Starts the services, keeps their processes alive, and stops all of them in an orderly way.

For one machine: `procession up`, the demo and the tests. Containers have their own supervisor.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

from procession_services.runtime.embedded import OnLine, embedded, nobody

__all__ = ["DRAIN_SECONDS", "SERVICES", "StartError", "Supervisor", "System", "system"]

SERVICES: Final = (
    "orchestrator",
    "input_processors",
    "llm_gateway",
    "output_processors",
    "error_recovery",
    "memory",
    "tools",
)

_SLOWEST: Final = "llm_gateway"
"""It loads LiteLLM, for seconds, so it is started first."""
_READY_SECONDS: Final = 300.0
"""Longer than a service waits for what it needs before it ends and says what: one slow CPU starts all in a minute."""
DRAIN_SECONDS: Final = 5.0
"""Less than a service on its own gives: all stop together, so what is handed back waits until they start again."""
_CLOSE_SECONDS: Final = 5.0
"""How much longer a process may take to end."""
_BACKOFF: Final = (0.2, 0.5, *(1.0,) * 8, 2.0, 5.0, 10.0)
"""Two runs that end a process end it ten times until they are in DEAD, and all that it has to do waits meanwhile."""
_STABLE_SECONDS: Final = 30.0
_TAIL_LINES: Final = 15
_LINE_LIMIT: Final = 1024 * 1024


class StartError(RuntimeError):
    """A service did not become ready; the message says which, and shows the end of what it wrote."""


@dataclass(slots=True, eq=False)
class _Child:
    """A process that is kept: a replica of a service, or several services; `process` is its current incarnation."""

    services: tuple[str, ...]
    name: str
    process: asyncio.subprocess.Process | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    starts: int = 0


class Supervisor:
    """Service processes; an asynchronous context manager that is entered when all of them are ready.

    Args:
        environment: Added to the environment of the processes, such as `{"PROCESSION_NATS_URL": ...}`.
        replicas: How many processes of a service; one where it is not named, 0 leaves it out.
        together: Services that `replicas` does not name share one process, which is called `together`.
        on_line: Gets what the processes write, and what becomes of them.
        drain_seconds: How long a stopping process gives work in flight; it is killed when it does not end soon after.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        replicas: Mapping[str, int] | None = None,
        together: bool = False,
        on_line: OnLine = nobody,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        own = {"PROCESSION_DRAIN_TIMEOUT": str(drain_seconds)}
        self._environment = {**os.environ, **environment, **own}
        self._on_line = on_line
        self._ending_seconds = drain_seconds + _CLOSE_SECONDS
        self._stopping = False
        self._keepers: list[asyncio.Task[None]] = []
        # Starting is all CPU: more at once than there are processors only delays the longest one.
        self._turns = asyncio.Semaphore(max(2, os.cpu_count() or 1))
        counts = replicas or {}
        shared = tuple(service for service in SERVICES if together and service not in counts)
        self._children = [_Child(shared, "together")] if shared else []
        self._children += [
            _Child((service,), f"{service}-{number}" if count > 1 else service)
            for service in sorted(SERVICES, key=lambda service: service != _SLOWEST)
            if service not in shared
            for count in [counts.get(service, 1)]
            for number in range(1, count + 1)
        ]

    async def __aenter__(self) -> Self:
        """Starts all processes and returns when each has said that it is ready.

        Raises:
            StartError: One ended or was not ready in time; none is left running.
        """
        self._keepers = [asyncio.create_task(self._keep(child)) for child in self._children]
        ready = asyncio.create_task(self._all_ready())
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await asyncio.wait({ready, *self._keepers}, return_when=asyncio.FIRST_COMPLETED)
            for keeper in self._keepers:
                if keeper.done():
                    keeper.result()  # it ends only by raising
        except TimeoutError:
            late = ", ".join(child.name for child in self._children if not child.ready.is_set())
            await self.stop()
            raise StartError(f"not ready within {_READY_SECONDS:g} seconds: {late}") from None
        except BaseException:
            await self.stop()
            raise
        finally:
            ready.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops all processes."""
        await self.stop()

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of what runs, by name: `tools`, or `tools-1` and `tools-2`; `together`."""
        return {c.name: c.process.pid for c in self._children if c.process and c.process.returncode is None}

    async def stop(self) -> None:
        """Asks all processes to drain and end, and kills those that have not in time.

        One that is not ready has nothing to drain, and may be loading LiteLLM for seconds: it is killed at once.
        """
        self._stopping = True
        running: list[asyncio.subprocess.Process] = []
        for child in self._children:
            if (process := child.process) and process.returncode is None:
                running.append(process)
                with contextlib.suppress(ProcessLookupError):
                    (process.terminate if child.ready.is_set() else process.kill)()
        try:
            async with asyncio.timeout(self._ending_seconds):
                await asyncio.gather(*(process.wait() for process in running))
        except TimeoutError:
            pass
        finally:
            for process in running:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
            for keeper in self._keepers:
                keeper.cancel()
        await asyncio.gather(*(process.wait() for process in running))
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _all_ready(self) -> None:
        for child in self._children:
            await child.ready.wait()

    async def _keep(self, child: _Child) -> None:
        """Runs a replica again and again, later each time; raises StartError when its first start fails."""
        clock = asyncio.get_running_loop().time
        failures = 0
        while not self._stopping:
            await self._turns.acquire()
            if self._stopping:  # whoever was stopped has given its turn to us
                return
            started, is_first = clock(), not child.starts
            waiting = asyncio.create_task(child.ready.wait())
            waiting.add_done_callback(lambda _waiting: self._turns.release())  # the next one may start
            try:
                what = f"ended with {_ending(await self._run(child))}"
            except OSError as error:  # there may be memory, or room for a process, in a while
                what = f"could not be started ({error})"
            finally:
                waiting.cancel()
            if self._stopping:
                return
            if is_first and not child.ready.is_set():
                tail = "\n".join(f"  {line}" for line in child.tail)
                raise StartError(f"{child.name} {what} before it was ready:\n{tail}")
            child.ready.clear()
            failures = 0 if clock() - started > _STABLE_SECONDS else failures
            pause = _BACKOFF[min(failures, len(_BACKOFF) - 1)]
            failures += 1
            self._on_line(child.name, f"{what}; restarting in {pause:g} s")
            await asyncio.sleep(pause)

    async def _run(self, child: _Child) -> int:
        """Runs one incarnation to its end and returns its exit code."""
        command = ["-m", "procession_services", "serve", *child.services, "--parent", str(os.getpid())]
        process = child.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            env={**self._environment, **self._own(child)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal reaches us, who stop the services in order
            limit=_LINE_LIMIT,
        )
        child.starts += 1
        try:
            async with asyncio.TaskGroup() as readers:
                readers.create_task(self._read(child, process.stdout))
                readers.create_task(self._read(child, process.stderr))
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _own(self, child: _Child) -> dict[str, str]:
        """What no two processes can share: the port of their metrics, and a name that was given to this replica."""
        own = {}
        port, replica = "PROCESSION_METRICS_PORT", "PROCESSION_REPLICA"
        first = self._environment.get(port, "")
        if first.isdigit() and int(first):
            own[port] = str(int(first) + self._children.index(child))
        if given := self._environment.get(replica):  # with one name for two, each gets what is for the other
            own[replica] = f"{given}-{child.name}"
        return own

    async def _read(self, child: _Child, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        async for raw in _lines(stream):
            line = raw.decode(errors="replace").rstrip()
            if stream is (child.process and child.process.stdout) and _is_ready(line):
                if child.starts > 1:
                    self._on_line(child.name, "is ready again")
                child.ready.set()
                continue
            child.tail.append(line)
            self._on_line(child.name, line)


@dataclass(frozen=True, slots=True)
class System:
    """A running system: where it is reached, and who looks after its processes."""

    nats_url: str
    redis_url: str
    supervisor: Supervisor


@asynccontextmanager
async def system(
    *,
    directory: Path | None = None,
    nats_url: str = "",
    redis_url: str = "",
    nats_port: int | None = None,
    environment: Mapping[str, str] | None = None,
    replicas: Mapping[str, int] | None = None,
    together: bool = False,
    on_line: OnLine = nobody,
    drain_seconds: float = DRAIN_SECONDS,
) -> AsyncIterator[System]:
    """Runs the whole system for as long as the block lasts.

    Args:
        directory: Where servers that are started keep their data; a temporary one that is deleted by default.
        nats_url: A server that runs already; one is started without it.
        redis_url: The same for Redis.
        nats_port: Where a NATS that is started listens if nobody else does; on any free port otherwise.
        environment: Settings of the services, such as `{"PROCESSION_AGENTS": "agents.yaml"}`.
        replicas: How many processes of a service.
        together: The others share one process.
        on_line: Gets what the processes write.
        drain_seconds: How long a stopping process gives work in flight.

    Raises:
        EmbeddedServerError: NATS or Redis did not start.
        StartError: A service did not start.
    """
    async with AsyncExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="procession-")))
        started = await stack.enter_async_context(
            embedded(directory, nats=not nats_url, redis=not redis_url, nats_port=nats_port, on_line=on_line)
        )
        nats_url, redis_url = nats_url or started.nats_url, redis_url or started.redis_url
        settings = {"PROCESSION_NATS_URL": nats_url, "PROCESSION_REDIS_URL": redis_url, **(environment or {})}
        if not {"PROCESSION_CHROMA_URL", "PROCESSION_CHROMA_PATH"} & {*settings, *os.environ}:
            settings["PROCESSION_CHROMA_PATH"] = str(directory / "chroma")
        supervisor = Supervisor(
            settings, replicas=replicas, together=together, on_line=on_line, drain_seconds=drain_seconds
        )
        await stack.enter_async_context(supervisor)
        yield System(nats_url, redis_url, supervisor)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a stream; one that is longer than the limit comes in pieces."""
    while True:
        try:
            line = await stream.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                yield error.partial
            return
        except asyncio.LimitOverrunError as error:
            line = await stream.readexactly(error.consumed)
        yield line


def _is_ready(line: str) -> bool:
    try:
        return "ready" in json.loads(line)
    except (ValueError, TypeError):
        return False


def _ending(code: int) -> str:
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"code {code}"
