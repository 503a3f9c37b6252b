"""`procession demo`: the whole system on this machine, one request, and what happened on the way."""

import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from procession.client import Procession
from procession_schemas.run import RunResult
from procession_services.demo import agents
from procession_services.demo.rendering import chunk_text, summary
from procession_services.runtime.embedded import OnLine, nobody
from procession_services.runtime.secrets import DEMO_KEY
from procession_services.runtime.tasks import meanwhile, repeated
from procession_services.supervisor import StartError, system

__all__ = ["DEMO_MODEL", "QUESTION", "demo", "demo_environment", "model_server"]

QUESTION: Final = (
    "What is the weather in Paris, and whom can I write to about it?  "
    "My connection is flaky, so ｐｌｅａｓｅ try again if something fails."  # noqa: RUF001 - to be normalized
)
"""Exercises everything: letters to normalize, a tool, an address to redact, a first call that fails."""
DEMO_MODEL: Final = "openai/demo"
_TAIL: Final = 30
_IDLE_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5


async def demo(question: str = QUESTION) -> RunResult:
    """Starts the system, asks, shows the answer as it streams and a summary, and stops everything.

    With `PROCESSION_MODEL` set the question goes to that provider, else to the demo model.

    Raises:
        StartError, EmbeddedServerError: A part did not start, or fell silent.
    """
    model = os.environ.get("PROCESSION_MODEL", DEMO_MODEL)
    note = "demo model: deterministic, no provider is called" if model == DEMO_MODEL else model
    tail: deque[str] = deque(maxlen=_TAIL)

    def hear(name: str, line: str) -> None:
        tail.append(f"[{name}] {line}")

    async with demo_environment(model, hear) as environment:
        with _step("starting NATS, Redis and seven services"):
            started = system(environment=environment, on_line=hear)
            running = await started.__aenter__()
        try:
            async with Procession(running.nats_url) as procession:
                _say(f"\nquestion: {question}\nanswer ({note}):\n\n")
                handle = await procession.start(question, agent="demo")
                async for chunk in handle.chunks(idle_timeout=_IDLE_SECONDS):
                    sys.stdout.write(chunk_text(chunk))
                    sys.stdout.flush()
                result = await handle.result(timeout=_IDLE_SECONDS)
        except TimeoutError as error:
            said = "\n".join(tail) or "(nothing)"
            raise StartError(f"no answer for {_IDLE_SECONDS:g} s; the services logged:\n{said}") from error
        finally:
            with _step("\nstopping everything"):
                await started.__aexit__(None, None, None)
    _say(f"\n{summary(result)}")
    return result


@asynccontextmanager
async def demo_environment(
    model: str = DEMO_MODEL, on_line: OnLine = nobody, plugins: Sequence[str] = ()
) -> AsyncIterator[dict[str, str]]:
    """Settings for services that know the agent `demo`, and the demo model server when they need it.

    Args:
        model: What the agent asks.
        on_line: Gets the name of a demo model server that has ended, and a line about it.
        plugins: What is installed besides the processors of the demonstration.
    """
    environment = {
        "PROCESSION_AGENTS": str(Path(agents.__file__)),
        "PROCESSION_PLUGINS": ",".join(["procession_services.demo.processors", *plugins]),
        "PROCESSION_MODEL": model,
    }
    if model != DEMO_MODEL:
        yield environment
        return
    async with model_server(on_line) as url:
        yield {**environment, "PROCESSION_API_BASE": url, "OPENAI_API_KEY": DEMO_KEY}


@asynccontextmanager
async def model_server(on_line: OnLine = nobody) -> AsyncIterator[str]:
    """The demo model in a process of its own, started again where it was when it ends; yields the base URL of its API.

    Raises:
        StartError: It ended at once.
    """
    model = _Model()
    try:
        await model.start()
        async with meanwhile(model.keep(on_line)):
            yield f"http://127.0.0.1:{model.port}/v1"
    finally:
        await model.stop()


class _Model:
    """The process of the demo model; keeps its port from start to start."""

    def __init__(self) -> None:
        self.port = 0
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts it and returns when it listens; raises StartError."""
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "procession_services", "model", "--port", str(self.port), "--parent", str(os.getpid())),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            raise StartError(f"the demo model server ended with code {await process.wait()}")
        self.port = json.loads(line)["port"]

    async def keep(self, on_line: OnLine) -> None:
        """Starts it again when it has ended, until it is cancelled."""

        async def look() -> None:
            if self._process and (code := self._process.returncode) is not None:
                on_line("model", f"ended with code {code}; restarting")
                await self.start()
                on_line("model", "is ready again")

        await repeated("restarting the demo model", _LOOK_SECONDS, look)

    async def stop(self) -> None:
        """Ends it."""
        if self._process:
            if self._process.returncode is None:
                self._process.terminate()
            await self._process.wait()


@contextmanager
def _step(what: str) -> Iterator[None]:
    """Says what is being done, and how long it took."""
    _say(f"{what} ... ")
    started = time.perf_counter()
    yield
    _say(f"{time.perf_counter() - started:.1f} s\n")


def _say(text: str) -> None:
    with suppress(OSError):  # of a terminal that was closed: everything is still stopped
        sys.stderr.write(text)
        sys.stderr.flush()
