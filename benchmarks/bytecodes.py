"""`python -m benchmarks.bytecodes`: how many bytecodes Python executes in each process.

They are told for a run, a further chunk, and a further step of a loop of tools.

Times differ from start to start by a tenth; these counts do not, apart from what happens now and then.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.counting import DIRECTORY
from benchmarks.protocol import Command, load
from benchmarks.sides import Side, model_server, our_side

__all__ = ["measure"]

_PATIENCE_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.01
_CHUNKS: Final = 100
_STEPS: Final = 10
Counts = Mapping[str, float]
"""Bytecodes in a run, by function: `module.py:line name`."""


class Executed(NamedTuple):
    """What one process executes."""

    run: Counts
    """In a run of one chunk."""

    chunk: Counts
    """For a further chunk."""

    step: Counts
    """For a further step, which calls a tool."""


async def measure(*, runs: int, together: bool, different: bool = False) -> dict[str, Executed]:
    """What each process executes.

    With `different`, each bytecode counts once, however often it is executed.
    """
    with tempfile.TemporaryDirectory(prefix="procession-bytecodes-") as directory:
        os.environ[DIRECTORY] = directory
        async with (
            model_server() as (api, model),
            our_side(api, {"model": model}, together=together) as side,
        ):
            await side.measure(load(1, runs=runs, steps=2))
            one, chunks, steps = [
                await _counted(side, Path(directory), work, different=different)
                for work in (
                    load(1, runs=runs),
                    load(1 + _CHUNKS, runs=runs),
                    load(1, runs=runs, steps=1 + _STEPS),
                )
            ]
    return {
        process: Executed(
            counts, _further(counts, chunks[process], _CHUNKS), _further(counts, steps[process], _STEPS)
        )
        for process, counts in one.items()
    }


def _further(one: Counts, more: Counts, times: int) -> Counts:
    return {name: (count - one.get(name, 0)) / times for name, count in more.items()}


async def _counted(side: Side, directory: Path, work: Command, *, different: bool) -> dict[str, Counts]:
    pids = {name: pid for name, pid in side.pids.items() if not name.endswith("-server")}
    pids["client"] = side.client.pid
    for pid in pids.values():
        os.kill(pid, signal.SIGUSR1)
    sample = await side.measure(work)
    if sample.outcome.problems:
        raise RuntimeError(sample.outcome.problems[0])
    for pid in pids.values():
        os.kill(pid, signal.SIGUSR2)
    told = {name: await asyncio.to_thread(_told, directory / f"{pid}.json") for name, pid in pids.items()}
    return {
        process: {name: once if different else times / work.runs for name, (times, once) in counts.items()}
        for process, counts in told.items()
    }


def _told(file: Path) -> dict[str, tuple[int, int]]:
    until = time.monotonic() + _PATIENCE_SECONDS
    while not file.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"nothing was counted within {_PATIENCE_SECONDS:g} s: {file}")
        time.sleep(_LOOK_SECONDS)
    told: dict[str, tuple[int, int]] = json.loads(file.read_text())
    file.unlink()
    return told


def main() -> None:
    """Counts, and writes a table of processes and of the functions that execute most."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bytecodes", description=__doc__)
    parser.add_argument("--runs", type=int, default=50, metavar="N", help="of which the mean is told (50)")
    parser.add_argument("--together", action="store_true", help="all services in one process")
    parser.add_argument(
        "--different", action="store_true", help="count each bytecode once (what it fetches from memory)"
    )
    parser.add_argument("--top", type=int, default=10, metavar="N", help="functions of each process (10)")
    options = parser.parse_args()
    counted = asyncio.run(measure(runs=options.runs, together=options.together, different=options.different))
    for process, told in counted.items():
        run, chunk, step = (sum(counts.values()) for counts in told)
        sys.stdout.write(
            f"{process}: {run:.0f} for a run, {chunk:.0f} for a further chunk, {step:.0f} for a further step\n"
        )
        for what, counts in zip(("a run", "a chunk", "a step"), told, strict=True):
            most = sorted(counts.items(), key=lambda item: -item[1])[: options.top]
            sys.stdout.writelines(f"  {count:8.1f} {what:7} {name}\n" for name, count in most if count >= 1)


if __name__ == "__main__":
    main()
