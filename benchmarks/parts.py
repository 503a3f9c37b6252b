"""What is measured. Each repetition asks one side after the other, so that all see the same machine."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.machine import Reading, quiet, resident_mb
from benchmarks.protocol import Command, load, stream
from benchmarks.records import (
    Record,
    Taken,
    added,
    comparable,
    difference,
    line,
    percentiles,
    record,
    spread,
)
from benchmarks.sides import PEER, Sample, Side

__all__ = ["PARTS", "Bench", "Size", "hops"]

_QUIET_CPUS: Final = 0.15
_FEW_CHUNKS: Final = 1000


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured; see `FULL` and `QUICK` in `__main__`."""

    repetitions: int
    single_runs: int
    levels: tuple[int, ...]
    streams: tuple[int, ...]
    seconds: float
    chunks: tuple[int, ...]
    outputs: tuple[int, ...]
    output_chunks: int
    steps: tuple[int, ...]
    first_runs: int
    warm: int
    held_streams: int
    pinned_streams: tuple[int, ...]
    patience: float = 0.0


@dataclass(slots=True)
class Bench:
    """The sides, of which the first is ours with a process for each service, and how much to measure."""

    sides: Sequence[Side]
    size: Size
    say: Callable[[str], None]
    problems: list[str] = field(default_factory=list)

    @property
    def everybody(self) -> Mapping[str, int]:
        """All processes of the benchmark, by the prefix of their side and their name."""
        return self.sides[0].everybody

    async def warm_up(self) -> None:
        """Lets all sides run until what compiles its code at run time has done so: Mastra takes some hundred runs."""
        [taken] = await self.samples([load(100, runs=self.size.first_runs, concurrency=8)], each=1)
        self.told("warm-up", taken)

    async def measure(self, what: str, command: Command) -> Record:
        """Takes all repetitions of a measurement, alternating between the sides."""
        [taken] = await self.samples([command] * self.size.repetitions, each=1)
        return self.told(what, taken)

    async def samples(self, commands: Sequence[Command], *, each: int) -> list[list[Taken]]:
        """Carries out commands on one side after the other, `each` of them at a time.

        Returns:
            For the first, second, ... of each time: the samples of each side.
        """
        taken: list[list[Taken]] = [[(side, []) for side in self.sides] for _ in range(each)]
        for start in range(0, len(commands), each):
            for number, side in enumerate(self.sides):
                for place, command in enumerate(commands[start : start + each]):
                    taken[place][number][1].append(await self.repetition(side, command))
        return taken

    def told(self, what: str, taken: Sequence[Taken]) -> Record:
        """Says what samples say, and keeps their problems."""
        told = record(taken)
        self.problems += [f"{what}: {problem}" for problem in told["problems"]]
        self.say(f"{what}: {_short(told, self.sides)}")
        return told

    async def repetition(self, side: Side, command: Command) -> Sample:
        """Takes one, when others are quiet or we have waited long enough."""
        await quiet(side.everybody, _QUIET_CPUS, self.size.patience)
        return await side.measure(command)


async def single(bench: Bench) -> Record:
    """One run at a time, 100 chunks, no delay, beside a bare request of the same stream."""
    size = bench.size
    command = load(100, runs=size.single_runs, warm=size.warm)
    raw = await bench.measure("raw", command.model_copy(update={"raw": True}))
    told = await bench.measure("single", command)
    for side in bench.sides:
        told |= added(told, raw, side.prefix)
    return {**told, "chunks": 100, "raw": raw}


async def throughput(bench: Bench) -> Record:
    """Runs of 100 chunks, several at a time."""
    levels = []
    for level in bench.size.levels:
        runs = max(2 * bench.size.single_runs, 2 * level)
        command = load(100, runs=runs, concurrency=level, warm=min(level, bench.size.warm))
        told = await bench.measure(f"throughput {level}", command)
        levels.append({"concurrency": level, "chunks": 100, **told})
    return {"levels": levels}


async def paced(bench: Bench) -> Record:
    """Streams of 50 chunks/s; the lag of each chunk from the model server's stamp to the reader."""
    levels = []
    for streams in bench.size.streams:
        told = await bench.measure(f"paced {streams}", stream(streams, bench.size.seconds))
        levels.append({"streams": streams, "offered_chunks_per_s": 50 * streams, **told})
    return {"levels": levels}


async def hops(bench: Bench) -> Record:
    """Where the lag of paced streams comes from: each row is one way of a chunk, from the model server's stamp on."""
    levels = []
    for streams in bench.size.streams:
        command = stream(streams, bench.size.seconds)
        ways = {
            "to a client that asks the model server itself": command.model_copy(update={"raw": True}),
            "through the gateway": command.model_copy(update={"outputs": 0}),
            "through the gateway and three output processors": command.model_copy(update={"stamped": True}),
        }
        level: Record = {"streams": streams}
        for way, asked in ways.items():
            samples = [await bench.repetition(bench.sides[0], asked) for _ in range(bench.size.repetitions)]
            bench.problems += [problem for sample in samples for problem in sample.outcome.problems]
            level[way] = percentiles([lag for sample in samples for lag in sample.outcome.lags])
            inner = [lag for sample in samples for lag in sample.outcome.inner_lags]
            if inner:
                level["... of that to the first output processor"] = percentiles(inner)
        bench.say(f"hops {level}")
        levels.append(level)
    return {"levels": levels}


async def memory(bench: Bench) -> Record:
    """Runs of 100 chunks without a memory, and in a thread with one of its last ten messages; what that adds."""
    able = [side for side in bench.sides if side.prefix != PEER or "@mastra/memory" in side.versions]
    bench = dataclasses.replace(bench, sides=able)
    size = bench.size
    plain = load(100, runs=size.single_runs, warm=size.warm)
    commands = [
        command
        for repetition in range(size.repetitions)
        for command in (plain, plain.model_copy(update={"thread": f"thread-{repetition}"}))
    ]
    without, using = await bench.samples(commands, each=2)
    told: Record = {
        "chunks": 100,
        "without": bench.told("without memory", without),
        "with": bench.told("with memory", using),
    }
    for (side, less), (_, more) in zip(without, using, strict=True):
        told[f"{side.prefix}added"] = difference(side, less, more)
        bench.say(f"{side.name} added: {told[f'{side.prefix}added']}")
    return told


async def growth(bench: Bench) -> Record:
    """How the cost grows with chunks, output processors and steps; and the memory of each process."""
    size = bench.size
    memory = {"before": _memory(bench)}
    chunks = []
    for count in size.chunks:
        runs = max(1, min(2 * size.single_runs, 8000 // max(1, count)))
        told = await bench.measure(f"{count} chunks", load(count, runs=runs, warm=min(size.warm, runs)))
        chunks.append({"chunks": count, **told})
    outputs = []
    for count in size.outputs:
        command = load(size.output_chunks, runs=min(4, size.single_runs), warm=2, inputs=False, outputs=count)
        told = await bench.measure(f"{count} output processors", command)
        outputs.append({"output_processors": count, "chunks": size.output_chunks, **told})
    steps = []
    for count in size.steps:
        runs = max(min(5, size.single_runs), 2 * size.single_runs // count)
        command = load(20, steps=count, runs=runs, warm=min(size.warm, runs))
        told = await bench.measure(f"{count} steps", command)
        steps.append({"steps": count, "chunks": 20, **told})
    memory["after"] = _memory(bench)
    memory[f"with_{size.held_streams}_streams"] = await _memory_in_use(bench)
    idle = await _idle(bench)
    grown: Record = {"by_chunks": chunks, "by_output_processors": outputs, "by_steps": steps}
    return (
        grown
        | _lines([side.prefix for side in bench.sides], chunks, steps)
        | {"memory_mb": memory, "idle_cpu_percent": idle}
    )


def _lines(prefixes: Iterable[str], chunks: list[Record], steps: list[Record]) -> Record:
    """The CPU of a run that does not depend on its chunks, of a further chunk and of a further step, on each side.

    From straight lines through the sizes; longer runs are there to see whether it stays a line.
    """
    told: Record = {}
    for prefix in prefixes:
        for suffix in ("", "_with_client"):
            key = f"{prefix}cpu_ms_per_run{suffix}"
            if any(key not in one for one in chunks):
                continue
            few = [(one["chunks"], one[key]["median"]) for one in chunks if one["chunks"] <= _FEW_CHUNKS]
            at_zero, per_chunk = line(few)
            _, per_step = line([(one["steps"], one[key]["median"]) for one in steps])
            told[f"{prefix}cpu_ms_per_run_fixed{suffix}"] = round(at_zero, 2)
            told[f"{prefix}cpu_us_per_further_chunk{suffix}"] = round(per_chunk * 1e3, 1)
            told[f"{prefix}cpu_ms_per_further_step{suffix}"] = round(per_step, 2)
    return told


def _memory(bench: Bench) -> Record:
    return {name: round(resident_mb(pid), 1) for name, pid in bench.everybody.items()}


async def _memory_in_use(bench: Bench) -> Record:
    """The memory while streams are open, on one side after the other."""
    found: Record = {}
    command = stream(bench.size.held_streams, bench.size.seconds, chunks_per_second=10)
    for side in bench.sides:
        running = asyncio.create_task(side.measure(command))
        await asyncio.sleep(1.5 + bench.size.seconds / 2)
        used = _memory(bench)
        found |= {name: used[name] for name in (f"{side.prefix}{process}" for process in side.processes)}
        bench.problems += (await running).outcome.problems
    return found


async def _idle(bench: Bench) -> Record:
    """The CPU of all processes while nothing is asked of them, in percent of one CPU."""
    found = []
    for _ in range(bench.size.repetitions):
        before = Reading.take(bench.everybody)
        await asyncio.sleep(bench.size.seconds)
        found.append(Reading.take(bench.everybody).since(before)[0])
    return {
        name: spread([100 * used[name] / bench.size.seconds for used in found])["median"]
        for name in bench.everybody
    }


def _short(told: Record, sides: Sequence[Side]) -> str:
    parts = []
    for key in ("wall_ms", "lag_p50_ms", "lag_p99_ms", "first_chunk_ms", "runs_per_s", "cpu_us_per_chunk"):
        shown = [(side.name, comparable(told, side.prefix, key)) for side in sides]
        if all(value for _, value in shown):
            parts.append(f"{key} " + ", ".join(f"{name} {value['median']}" for name, value in shown))
    return "; ".join(parts)


PARTS: Final[dict[str, Callable[[Bench], Awaitable[Record]]]] = {
    "single": single,
    "throughput": throughput,
    "paced": paced,
    "growth": growth,
    "memory": memory,
}
