"""`procession demo`: the whole system on this machine, one request, and what happened on the way."""

import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from procession.client import Procession
from procession_schemas.run import RunResult
from procession_services.demo import agents
from procession_services.demo.rendering import chunk_text, summary
from procession_services.runtime.secrets import NO_KEY
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


async def demo(question: str = QUESTION) -> RunResult:
    """Starts the system, asks, shows the answer as it streams and a summary, and stops everything.

    With `PROCESSION_MODEL` set the question goes to that provider, else to the demo model.

    Raises:
        StartError, EmbeddedServerError: A part did not start, or fell silent.
    """
    model = os.environ.get("PROCESSION_MODEL", DEMO_MODEL)
    note = "demo model: deterministic, no provider is called" if model == DEMO_MODEL else model
    tail: deque[str] = deque(maxlen=_TAIL)
    async with demo_environment(model) as environment:
        with _step("starting NATS, Redis and seven services"):
            started = system(environment=environment, on_line=lambda n, line: tail.append(f"[{n}] {line}"))
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
            raise StartError(f"nothing came for {_IDLE_SECONDS:g} s; the services said:\n{said}") from error
        finally:
            with _step("\nstopping everything"):
                await started.__aexit__(None, None, None)
    _say(f"\n{summary(result)}")
    return result


@asynccontextmanager
async def demo_environment(model: str = DEMO_MODEL) -> AsyncIterator[dict[str, str]]:
    """Settings for services that know the agent `demo`, and the demo model server when they need it."""
    environment = {
        "PROCESSION_AGENTS": str(Path(agents.__file__)),
        "PROCESSION_PLUGINS": "procession_services.demo.processors",
        "PROCESSION_MODEL": model,
    }
    if model != DEMO_MODEL:
        yield environment
        return
    async with model_server() as url:
        yield {**environment, "PROCESSION_API_BASE": url, "OPENAI_API_KEY": NO_KEY}


@asynccontextmanager
async def model_server() -> AsyncIterator[str]:
    """The demo model in a process of its own; yields the base URL of its API.

    Raises:
        StartError: It ended at once.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "procession_services", "model", "--port", "0", "--parent", str(os.getpid())),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            raise StartError(f"the demo model server ended with code {await process.wait()}")
        yield f"http://127.0.0.1:{json.loads(line)['port']}/v1"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@contextmanager
def _step(what: str) -> Iterator[None]:
    """Says what is being done, and how long it took."""
    _say(f"{what} ... ")
    started = time.perf_counter()
    yield
    _say(f"{time.perf_counter() - started:.1f} s\n")


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
