"""Plays scenarios on a whole Procession and records what happened.

    python tests/conformance/run.py SCENARIOS_DIR RESULTS_DIR [--only ID[,ID]] [--jobs N] [-v]

Run it from the repository's root with the project's Python. RESULTS_DIR gets one file per scenario in the
format of `expected/`; `compare.py` says where two folders differ. `--only` takes parts of ids. NATS and Redis
are started unless NATS_URL and REDIS_URL name servers.
"""

import argparse
import asyncio
import importlib.metadata
import json
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

if __package__ in (None, ""):
    _ROOT = Path(__file__).resolve().parents[2]
    sys.path[:1] = [str(_ROOT / each) for each in ("", "schemas", "services")]

import nats
import redis
from nats.aio.client import Client

from procession.client import Procession, RunHandle
from procession_schemas import subjects
from procession_schemas.run import RunRequest
from tests.conformance.board import RunnerBoard
from tests.conformance.javascript import without_undefined
from tests.conformance.model_calls import garbled_calls, model_event, playable
from tests.conformance.outcome import generate_record, stream_record
from tests.conformance.plan import AGENT, Plan, seed_messages
from tests.conformance.record import db_of, scrub
from tests.conformance.refs import tool_choice
from tests.conformance.stack import Stack, running_stack
from tests.conformance.wording import recorded_words

__all__ = ["load_scenarios", "main", "run_scenarios"]

MODES: Final = ("stream", "generate")
RUN_SECONDS: Final = 20.0
_SETTLE_SECONDS: Final = 0.06
_API_SECONDS: Final = 5.0


class Session:
    """One scenario in one mode: its own tenant, its own script, its own board."""

    def __init__(self, scenario: dict[str, Any], mode: str, shared: "_Shared") -> None:
        self.key = f"conf-{secrets.token_hex(4)}-{scenario['id']}-{mode}"
        self._scenario = scenario
        self._mode = mode
        self._shared = shared
        self._plan = Plan(scenario, self.key, shared.stack.api_base, stream=mode == "stream")
        self._board = RunnerBoard(shared.redis, self.key)
        self._run: dict[str, Any] = {}
        self._calls = 0
        self._garbled = garbled_calls(scenario["model_script"])

    def on_model(self, body: dict[str, Any]) -> None:
        """Notes a model call, before it is answered."""
        choice = tool_choice((self._run.get("options") or {}).get("toolChoice"))
        self._board.note(model_event(body, self._board.events(), choice, self._calls, self._garbled))
        self._calls += 1

    async def play(self) -> dict[str, Any]:
        """Plays every run and returns the side of the recording."""
        if problems := self._plan.problems():
            threw = f"scenario {self._scenario['id']}: " + "; ".join(problems)
            return {"runs": [{"threw": threw} for _ in self._scenario["runs"]], "trace": [], "modelCalls": 0}
        script = self._scenario["model_script"]
        paced = any("abortAfterTextChunks" in (run.get("options") or {}) for run in self._scenario["runs"])
        self._shared.stack.models.scripts.add(self.key, playable(script, paced=paced))
        memory = self._scenario.get("memory")
        if memory and memory.get("seed"):
            await self._seed(memory)
        runs = []
        async with Procession(self._shared.stack.nats_url, tenant=self.key) as procession:
            for index, run in enumerate(self._scenario["runs"]):
                self._run = run
                self._board.note({"ev": "run", "run": index})
                runs.append(await self._one(procession, index, run))
                await asyncio.sleep(_SETTLE_SECONDS)
        side = {
            "runs": runs,
            "trace": [event for event in self._board.events() if not event["ev"].startswith("_")],
            "modelCalls": self._calls,
        }
        if memory is not None:
            side["persisted"] = await self._persisted(memory)
        self._board.clear()
        return dict(recorded_words(scrub(without_undefined(side)), script))

    async def _one(self, procession: Procession, index: int, run: dict[str, Any]) -> dict[str, Any]:
        handle: RunHandle | None = None
        try:
            async with asyncio.timeout(self._shared.seconds):
                options = run.get("options") or {}
                request = self._plan.request(index) | {"runId": f"{self.key}-{index}"}
                if options.get("abortBeforeStart"):
                    await procession.cancel(request["runId"])
                handle = await procession.start(RunRequest.model_validate(request), agent=AGENT)
                chunks = await self._read(handle, options) if self._mode == "stream" else []
                result = await handle.result()
        except TimeoutError:
            if handle is not None:
                await handle.cancel()
            return {"threw": f"TIMEOUT {self._mode}"}
        except Exception as error:  # noqa: BLE001 - recorded like the reference records what it throws
            return {"threw": str(error)}
        finally:
            if handle is not None:
                await handle.close()
        return stream_record(chunks, result, run) if self._mode == "stream" else generate_record(result, run)

    async def _read(self, handle: RunHandle, options: dict[str, Any]) -> list[dict[str, Any]]:
        chunks, texts = [], 0
        async for chunk in handle:
            chunks.append(chunk)
            texts += chunk["type"] == "text-delta"
            if chunk["type"] == "text-delta" and texts == options.get("abortAfterTextChunks"):
                await handle.cancel()
        return chunks

    async def _seed(self, memory: dict[str, Any]) -> None:
        where = {"thread": memory.get("thread", "thread-1"), "resource": memory.get("resource", "user-1")}
        await self._memory("save", where | {"messages": seed_messages(memory)})

    async def _persisted(self, memory: dict[str, Any]) -> dict[str, Any]:
        resource = memory.get("resource", "user-1")
        threads = (await self._memory("threads", {"resource": resource, "perPage": 1000}))["threads"]
        stored = {}
        for thread in sorted(each["id"] if isinstance(each, dict) else each for each in threads):
            answer = await self._memory("messages", {"thread": thread, "resource": resource, "perPage": 1000})
            stored[thread] = db_of(answer["messages"])
        return stored

    async def _memory(self, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        subject = subjects.api("memory", self.key, operation)
        reply = await self._shared.nats.request(subject, json.dumps(body).encode(), timeout=_API_SECONDS)
        answer = json.loads(reply.data)
        if not isinstance(answer, dict) or answer.get("error"):
            raise RuntimeError(f"memory {operation}: {answer}")
        return answer


class _Shared:
    """What all sessions use: the system, connections to it, and the way from a model call to its session."""

    stack: Stack
    nats: Client
    redis: "redis.Redis"

    def __init__(self, jobs: int, seconds: float) -> None:
        self.turns = asyncio.Semaphore(jobs)
        self.seconds = seconds
        self._sessions: dict[str, Session] = {}

    def on_request(self, body: dict[str, Any], script: str | None) -> None:
        """Hands a model call to its session."""
        session = self._sessions.get((script or "").partition("~")[0])
        if session is not None:
            session.on_model(body)

    async def play(self, scenario: dict[str, Any], mode: str) -> dict[str, Any]:
        """Plays a scenario in a mode."""
        session = Session(scenario, mode, self)
        self._sessions[session.key] = session
        try:
            return await session.play()
        except Exception as error:  # noqa: BLE001 - one scenario must not end the others
            runs = [{"threw": f"{type(error).__name__}: {error}"} for _ in scenario["runs"]]
            return {"runs": runs, "trace": [], "modelCalls": 0}
        finally:
            del self._sessions[session.key]


def load_scenarios(directory: Path, only: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The scenarios of a folder by id; `only` keeps those whose id has one of these parts."""
    wanted = tuple(only)
    loaded = [json.loads(file.read_text()) for file in sorted(directory.glob("*.json"))]
    return [each for each in loaded if not wanted or any(part in each["id"] for part in wanted)]


async def run_scenarios(
    scenarios: list[dict[str, Any]],
    results: Path,
    *,
    jobs: int = 4,
    seconds: float = RUN_SECONDS,
    told: Callable[[str], None] = lambda _line: None,
    logs: Path | None = None,
) -> None:
    """Plays scenarios, several at a time, and writes their results.

    Args:
        scenarios: What to play.
        results: Folder of the results; it is made where it is missing.
        jobs: Scenarios at once.
        seconds: How long one run may take.
        told: Gets a line for every scenario that is done.
        logs: Folder for the servers' data and the services' logs; a temporary one by default.
    """
    shared = _Shared(jobs, seconds)
    with tempfile.TemporaryDirectory(prefix="conformance-") as scratch:
        for folder in (results, directory := logs or Path(scratch)):
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        async with running_stack(directory, shared.on_request, plugin="tests.conformance.scripted") as stack:
            shared.stack = stack
            shared.nats = await nats.connect(stack.nats_url)
            shared.redis = redis.Redis.from_url(stack.redis_url, decode_responses=True)
            try:
                await asyncio.gather(*(_play(each, results, shared, told) for each in scenarios))
            finally:
                shared.redis.close()
                await shared.nats.close()


async def _play(
    scenario: dict[str, Any], results: Path, shared: _Shared, told: Callable[[str], None]
) -> None:
    async with shared.turns:
        started = time.monotonic()
        modes = [mode for mode in MODES if mode == "stream" or mode in scenario.get("modes", MODES)]
        sides = {mode: await shared.play(scenario, mode) for mode in modes}
        peer = {"procession": importlib.metadata.version("procession")}
        text = json.dumps({"id": scenario["id"], "peer": peer, **sides}, ensure_ascii=False, indent=1)
        (results / f"{scenario['id']}.json").write_text(text + "\n")
        endings = " | ".join(_ending(run) for run in sides[modes[0]]["runs"])
        told(f"{scenario['id']}  {(time.monotonic() - started) * 1000:.0f} ms  {endings}")


def _ending(run: dict[str, Any]) -> str:
    if "threw" in run:
        return f"THREW {run['threw']}"
    error = f" error: {run['error'].get('message')}" if run.get("error") else ""
    return f"{run.get('finishReason')}{' tripwire' if run.get('tripwire') else ''}{error}"


async def _main(options: argparse.Namespace) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    scenarios = load_scenarios(options.scenarios, [part for part in options.only.split(",") if part])
    told = (lambda line: print(line, flush=True)) if options.verbose else (lambda _line: None)  # noqa: T201
    await run_scenarios(
        scenarios,
        options.results,
        jobs=options.jobs,
        seconds=options.timeout,
        told=told,
        logs=options.logs,
    )
    print(f"{len(scenarios)} scenarios")  # noqa: T201


def main() -> None:
    """Reads the command line and runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", type=Path, help="folder of the scenarios")
    parser.add_argument("results", type=Path, help="folder for the results")
    parser.add_argument("--only", default="", help="parts of ids, separated by commas")
    parser.add_argument("--jobs", type=int, default=4, help="scenarios at once (%(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=RUN_SECONDS, help="seconds that one run may take (%(default)s)"
    )
    parser.add_argument("--logs", type=Path, help="keep the services' logs in this folder")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every scenario")
    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(_main(parser.parse_args()))
        return
    sys.exit(130)


if __name__ == "__main__":
    main()
