"""One core for what serves, another for the model and the clients: a run alone, and how many paced streams it carries.

The peer is one process, its client included, and has the first core for itself. More and more streams, on all sides
in turn, until the p99 of the lag passes `LIMIT_MS`.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks.parts import Bench, single
from benchmarks.protocol import load, stream
from benchmarks.records import Record, alone
from benchmarks.sides import Sample, Side

__all__ = ["LIMIT_MS", "pinned"]

LIMIT_MS: Final = 50.0


async def pinned(bench: Bench) -> Record:
    """Pins everybody, measures runs alone, and raises the number of streams until each side has passed the limit."""
    cores = sorted(os.sched_getaffinity(0))
    serving, asking = cores[0], cores[-1]
    _pin(bench, [serving], [asking])
    found: dict[str, Record] = {}
    levels: list[Record] = []
    try:
        for side in bench.sides:
            found[side.name] = {"most_streams": 0, "limit_ms": LIMIT_MS}
            bench.problems += (await side.measure(load(100, runs=200, concurrency=8))).outcome.problems
        told = await single(bench)
        left = list(bench.sides)
        for streams in bench.size.pinned_streams:
            level = await _level(bench, left, streams)
            levels.append(level)
            left = [side for side in left if level[side.name]["lag_p99_ms"]["median"] <= LIMIT_MS]
            for side in left:
                found[side.name]["most_streams"] = streams
            if not left:
                break
    finally:
        _pin(bench, cores, cores)
    return {"serving_core": serving, "asking_core": asking, "single": told, "levels": levels, "found": found}


async def _level(bench: Bench, sides: Iterable[Side], streams: int) -> Record:
    told: Record = {"streams": streams}
    command = stream(streams, bench.size.seconds)
    samples: dict[str, list[Sample]] = {side.name: [] for side in sides}
    for _ in range(bench.size.repetitions):
        for side in sides:
            samples[side.name].append(await bench.repetition(side, command))
    for side in sides:
        told[side.name] = alone(side, samples[side.name])
        bench.problems += [problem for sample in samples[side.name] for problem in sample.outcome.problems]
        bench.say(f"{side.name}: {streams} streams, p99 {told[side.name]['lag_p99_ms']['median']} ms")
    return told


def _pin(bench: Bench, serving: list[int], asking: list[int]) -> None:
    """Lets the model, the clients and this process run on `asking`, everybody else on `serving`."""
    ask = {"model", "harness", *(f"{side.prefix}client" for side in bench.sides)}
    for name, pid in {**bench.everybody, "harness": os.getpid()}.items():
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), asking if name in ask else serving)
