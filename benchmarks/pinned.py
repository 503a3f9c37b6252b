"""One core for what serves, another for the model and the clients, as `shared/bench` measures its peers.

The peer is one process, its client included, and has the first core for itself.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.parts import Bench, single
from benchmarks.protocol import stream
from benchmarks.records import Record, alone
from benchmarks.sides import Sample, Side

__all__ = ["LIMIT_MS", "one_core_each", "pinned"]

LIMIT_MS: Final = 50.0


async def pinned(bench: Bench) -> Record:
    """A run alone, and more and more paced streams, until the p99 of each side's lag has passed `LIMIT_MS`."""
    found: dict[str, Record] = {}
    levels: list[Record] = []
    with one_core_each(bench):
        for side in bench.sides:
            found[side.name] = {"most_streams": 0, "limit_ms": LIMIT_MS}
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
    return {"single": told, "levels": levels, "found": found}


@contextmanager
def one_core_each(bench: Bench) -> Iterator[None]:
    """Gives the first core to all that serves, the last one to the model, the clients and this process."""
    cores = sorted(os.sched_getaffinity(0))
    _pin(bench, cores[:1], cores[-1:])
    try:
        yield
    finally:
        _pin(bench, cores, cores)


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
    ask = {"model", "harness", *(f"{side.prefix}client" for side in bench.sides)}
    for name, pid in {**bench.everybody, "harness": os.getpid()}.items():
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), asking if name in ask else serving)
