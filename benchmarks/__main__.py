"""`python -m benchmarks PART [--json FILE] [--quick] [--peer DIR]`; `--help` names the parts."""

import argparse
import asyncio
import dataclasses
import json
import sys
from contextlib import AsyncExitStack, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks import builtins, fairness, guards, replay
from benchmarks.machine import facts
from benchmarks.parts import PARTS, Bench, Size, hops
from benchmarks.pinned import one_core_each, pinned
from benchmarks.sides import model_server, our_side, peer_modules, peer_side

FULL: Final = Size(
    repetitions=5,
    single_runs=25,
    levels=(1, 8, 32, 128),
    streams=(10, 25, 50, 75, 100),
    seconds=3.0,
    chunks=(0, 10, 100, 1000, 10_000),
    outputs=(0, 1, 3, 10),
    output_chunks=1000,
    steps=(1, 3, 10, 20),
    first_runs=400,
    warm=30,
    held_streams=100,
    pinned_streams=(25, 50, 75, 100, 125, 150, 175, 200, 250, 300),
)
QUICK: Final = Size(
    repetitions=1,
    single_runs=2,
    levels=(1, 4),
    streams=(3,),
    seconds=0.3,
    chunks=(0, 10, 50),
    outputs=(0, 3),
    output_chunks=20,
    steps=(1, 3),
    first_runs=2,
    warm=1,
    held_streams=3,
    pinned_streams=(3,),
)

_EVERY_PART: Final = {**PARTS, "pinned": pinned, "hops": hops}
"""`all` are those of PARTS: where processes are pinned, the others would tell something else."""
_ALONE: Final = ("processors", "guards", "replay", "fairness")
"""They start what they need by themselves."""


async def benchmark(names: list[str], size: Size, peer: Path | None, *, on_one_core: bool) -> dict[str, Any]:
    """Starts all sides, takes the measurements and stops everything.

    Returns:
        What is written as JSON: `machine`, `peer` (versions, or None), one entry for each name, `problems`.
    """
    async with AsyncExitStack() as stack:
        api, model = await stack.enter_async_context(model_server())
        everybody = {"model": model}
        ours = await stack.enter_async_context(our_side(api, everybody))
        together = await stack.enter_async_context(our_side(api, everybody, together=True))
        other = await stack.enter_async_context(peer_side(peer, api, everybody)) if peer else None
        bench = Bench([ours, together, *([other] if other else [])], size, say=_say)
        told: dict[str, Any] = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": facts(),
            "peer": {"name": other.name, "versions": dict(other.versions)} if other else None,
            "size": dataclasses.asdict(size),
            "one_core_each": on_one_core,
        }
        with one_core_each(bench) if on_one_core else nullcontext():
            await bench.warm_up()
            for name in names:
                told[name] = await _EVERY_PART[name](bench)
        return {**told, "problems": bench.problems}


def alone(size: builtins.Size) -> dict[str, Any]:
    """Measures the built-in processors without anything around them; the result has the form of `benchmark`'s."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": facts(),
        "peer": None,
        "size": dataclasses.asdict(size),
        "processors": builtins.measure(size),
        "problems": [],
    }


def main() -> int:
    """Reads the command line, measures, and returns 1 when a run did not end with the right text."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What Procession costs.")
    parser.add_argument("part", choices=[*_ALONE, *_EVERY_PART, "all"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the results")
    parser.add_argument("--quick", action="store_true", help="small numbers, only to show that it works")
    parser.add_argument("--peer", type=Path, metavar="DIR", help="where Mastra was installed with npm")
    parser.add_argument("--no-peer", action="store_true", help="measure ours only")
    parser.add_argument(
        "--repetitions", type=int, metavar="N", help=f"how often to measure (default: {FULL.repetitions})"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=0,
        metavar="S",
        help="seconds to wait at most, before each measurement, until other processes are quiet",
    )
    parser.add_argument("--pinned", action="store_true", help="one core for each side, another for the model")
    options = parser.parse_args()
    size = dataclasses.replace(QUICK if options.quick else FULL, patience=options.patience)
    if options.repetitions:
        size = dataclasses.replace(size, repetitions=options.repetitions)
    peer = None if options.no_peer else peer_modules(options.peer)
    if options.peer and not peer:
        parser.error(f"{options.peer} has no node_modules/@mastra/core: see docs/performance.md")
    names = list(PARTS) if options.part == "all" else [options.part]
    if options.part == "processors":
        told = alone(builtins.QUICK if options.quick else builtins.Size())
    elif options.part == "guards":
        told = asyncio.run(guards.measure(guards.QUICK if options.quick else guards.FULL))
    elif options.part == "replay":
        told = asyncio.run(replay.measure(replay.QUICK if options.quick else replay.FULL))
    elif options.part == "fairness":
        told = asyncio.run(fairness.measure(fairness.QUICK if options.quick else fairness.FULL))
    else:
        told = asyncio.run(benchmark(names, size, peer, on_one_core=options.pinned))
    text = json.dumps(told, indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    else:
        sys.stdout.write(text + "\n")
    for problem in told["problems"]:
        _say(f"WRONG: {problem}")
    return 1 if told["problems"] else 0


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
