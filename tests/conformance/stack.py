"""A whole Procession for the length of a block: NATS, Redis, a model server, and every service."""

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from procession_services.demo_model import Server, serve
from procession_services.demo_model.answers import Answer
from procession_services.demo_model.scripts import ScriptBook
from tests.support.servers import running_servers

__all__ = ["SERVICES", "Stack", "running_stack"]

SERVICES: Final = (
    "orchestrator", "input_processors", "llm_gateway", "output_processors", "error_recovery", "memory",
    "tools",
)  # fmt: skip
ROOT: Final = Path(__file__).resolve().parents[2]
_READY_SECONDS: Final = 240.0
_GRACE_SECONDS: Final = 10.0
_TAIL: Final = 2000


@dataclass(frozen=True)
class Stack:
    """Where everything listens."""

    nats_url: str
    redis_url: str
    models: Server

    @property
    def api_base(self) -> str:
        """Base URL of the model server."""
        return f"http://127.0.0.1:{self.models.port}/v1"


class _SharedScripts(ScriptBook):
    """Scripts that several models share: `script:<id>~<model>` is a call of script `<id>`."""

    def answer(self, script_id: str, body: Mapping[str, Any]) -> Answer:
        return super().answer(script_id.partition("~")[0], body)


@asynccontextmanager
async def running_stack(
    directory: Path, on_request: Callable[[dict[str, Any], str | None], None], *, plugin: str
) -> AsyncIterator[Stack]:
    """Starts everything and stops it at the end; NATS_URL and REDIS_URL name servers that are already there.

    Args:
        directory: Gets the data and the logs, `<service>.log`.
        on_request: Is told of every chat request as it arrives: its body, and the script id.
        plugin: Module that the services load.

    Raises:
        RuntimeError: A service did not become ready; the message has the end of its log.
    """
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(running_servers(directory))
        models = await stack.enter_async_context(await serve(on_request=on_request))
        models.scripts = _SharedScripts()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PROCESSION_")},
            "PROCESSION_NATS_URL": servers.nats_url,
            "PROCESSION_REDIS_URL": servers.redis_url,
            "PROCESSION_PLUGINS": plugin,
            "PROCESSION_API_BASE": f"http://127.0.0.1:{models.port}/v1",
            "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("", "schemas", "services")),
            "OPENAI_API_KEY": "unused",
        }
        processes = [_Process(name, environment, directory / f"{name}.log") for name in SERVICES]
        for process in processes:
            stack.push_async_callback(process.stop)
            await process.start()
        await asyncio.gather(*(process.ready() for process in processes))
        yield Stack(servers.nats_url, servers.redis_url, models)


class _Process:
    """One service."""

    def __init__(self, name: str, environment: dict[str, str], log: Path) -> None:
        self._name = name
        self._environment = environment
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the process; it ends with us, however we end."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "procession_services", "serve", self._name,
                cwd=ROOT, env=self._environment, stdout=asyncio.subprocess.PIPE, stderr=log,
                preexec_fn=_die_with_parent,
            )  # fmt: skip

    async def ready(self) -> None:
        """Returns when the service says that it is ready."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_READY_SECONDS):
                async for line in process.stdout:
                    if b'"ready"' in line and json.loads(line).get("ready"):
                        self._reader = asyncio.create_task(_swallow(process.stdout))
                        return
        except TimeoutError:
            raise RuntimeError(
                f"{self._name} was not ready in {_READY_SECONDS:g} s; {self._tail()}"
            ) from None
        raise RuntimeError(f"{self._name} ended instead of starting; {self._tail()}")

    async def stop(self) -> None:
        """Asks the process to end and kills it when it does not."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), _GRACE_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._reader is not None:
            await self._reader

    def _tail(self) -> str:
        return f"the end of {self._log}:\n{self._log.read_text(errors='replace')[-_TAIL:]}"


async def _swallow(stream: asyncio.StreamReader) -> None:
    while await stream.read(65_536):
        pass


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
