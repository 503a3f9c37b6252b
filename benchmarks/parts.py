"""What is measured. Each repetition asks our side and then the peer, so that both see the same machine."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.machine import Reading, quiet, resident_mb
from benchmarks.protocol import Command, load, stream
from benchmarks.records import Record, added, difference, line, percentiles, record, spread
from benchmarks.sides import Sample, Side

__all__ = ["PARTS", "Bench", "Size", "hops"]

_QUIET_CPUS: Final = 0.15


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
    warm: int
    held_streams: int
    pinned_streams: tuple[int, ...]
    patience: float = 0.0


@dataclass(slots=True)
class Bench:
    """Our side, the peer where there is one, and how much to measure."""

    ours: Side
    peer: Side | None
    size: Size
    say: Callable[[str], None]
    problems: list[str] = field(default_factory=list)

    async def measure(self, what: str, command: Command) -> Record:
        """Takes all repetitions of a measurement, alternating between the sides."""
        [(ours, theirs)] = await self.samples([command] * self.size.repetitions, each=1)
        return self.told(what, ours, theirs)

    async def samples(
        self, commands: Sequence[Command], *, each: int
    ) -> list[tuple[list[Sample], list[Sample]]]:
        """Carries out commands on our side and then on the peer's, `each` of them at a time.

        Returns:
            For the first, second, ... of each time: the samples of our side, and those of the peer.
        """
        taken: list[tuple[list[Sample], list[Sample]]] = [([], []) for _ in range(each)]
        for start in range(0, len(commands), each):
            for number, side in enumerate((self.ours, self.peer)):
                for place, command in enumerate(commands[start : start + each] if side else ()):
                    assert side is not None
                    taken[place][number].append(await self.repetition(side, command))
        return taken

    def told(self, what: str, ours: list[Sample], theirs: list[Sample]) -> Record:
        """Says what samples say, and keeps their problems."""
        told = record((self.ours, ours), (self.peer, theirs) if self.peer else None)
        self.problems += [f"{what}: {problem}" for problem in told["problems"]]
        self.say(f"{what}: {_short(told)}")
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
    told |= added(told, raw) | (added(told, raw, "peer_") if bench.peer else {})
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
    await bench.measure("warm-up", load(50, runs=bench.size.warm, warm=0))
    levels = []
    for streams in bench.size.streams:
        told = await bench.measure(f"paced {streams}", stream(streams, bench.size.seconds))
        levels.append({"streams": streams, "offered_chunks_per_s": 50 * streams, **told})
    return {"levels": levels}


async def hops(bench: Bench) -> Record:
    """Where the lag of paced streams comes from: each row is one way of a chunk, from the model server's stamp on."""
    await bench.measure("warm-up", load(50, runs=bench.size.warm, warm=0))
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
            samples = [await bench.repetition(bench.ours, asked) for _ in range(bench.size.repetitions)]
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
    if bench.peer is not None and "@mastra/memory" not in bench.peer.versions:
        bench = dataclasses.replace(bench, peer=None)
    size = bench.size
    plain = load(100, runs=size.single_runs, warm=size.warm)
    commands = [
        command
        for repetition in range(size.repetitions)
        for command in (plain, plain.model_copy(update={"thread": f"thread-{repetition}"}))
    ]
    (ours, theirs), (our_memory, their_memory) = await bench.samples(commands, each=2)
    told: Record = {
        "chunks": 100,
        "without": bench.told("without memory", ours, theirs),
        "with": bench.told("with memory", our_memory, their_memory),
        "added": difference(ours, our_memory, (*bench.ours.pids, "client")),
    }
    if bench.peer is not None:
        told["peer_added"] = difference(theirs, their_memory, ("peer",))
    bench.say(f"added: {told['added']}, peer: {told.get('peer_added')}")
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
        runs = max(1, 2 * size.single_runs // count)
        told = await bench.measure(f"{count} steps", load(20, steps=count, runs=runs, warm=min(3, runs)))
        told["ms_per_step"] = round(told["wall_ms"]["median"] / count, 2)
        steps.append({"steps": count, "chunks": 20, **told})
    memory["after"] = _memory(bench)
    memory[f"with_{size.held_streams}_streams"] = await _memory_in_use(bench)
    idle = await _idle(bench)
    grown: Record = {"by_chunks": chunks, "by_output_processors": outputs, "by_steps": steps}
    return grown | _fixed(chunks) | {"memory_mb": memory, "idle_cpu_percent": idle}


def _fixed(chunks: list[Record]) -> Record:
    """The share of a run that does not depend on its chunks, and of a chunk: a line through the sizes."""
    told: Record = {}
    for name, key in (
        ("", "cpu_ms_per_run"),
        ("_with_client", "cpu_ms_per_run_with_client"),
        ("peer_", "peer_cpu_ms_per_run"),
    ):
        if all(key in one for one in chunks):
            # Runs of 10,000 chunks are there to see whether it stays a line.
            points = [(one["chunks"], one[key]["median"]) for one in chunks if one["chunks"] <= 1000]  # noqa: PLR2004
            at_zero, slope = line(points)
            prefix, suffix = (name, "") if name == "peer_" else ("", name)
            told[f"{prefix}cpu_ms_per_run_fixed{suffix}"] = round(at_zero, 2)
            told[f"{prefix}cpu_us_per_further_chunk{suffix}"] = round(slope * 1e3, 1)
    return told


def _memory(bench: Bench) -> Record:
    return {name: round(resident_mb(pid), 1) for name, pid in bench.ours.everybody.items()}


async def _memory_in_use(bench: Bench) -> Record:
    """The memory while streams are open, on both sides one after the other."""
    found: Record = {}
    command = stream(bench.size.held_streams, bench.size.seconds, chunks_per_second=10)
    for side in filter(None, (bench.ours, bench.peer)):
        running = asyncio.create_task(side.measure(command))
        await asyncio.sleep(1.5 + bench.size.seconds / 2)
        used = _memory(bench)
        found |= {name: used[name] for name in (*side.pids, *(["client"] if side is bench.ours else []))}
        bench.problems += (await running).outcome.problems
    return found


async def _idle(bench: Bench) -> Record:
    """The CPU of our processes while nothing is asked of them, in percent of one CPU."""
    found = []
    for _ in range(bench.size.repetitions):
        before = Reading.take(bench.ours.pids)
        await asyncio.sleep(bench.size.seconds)
        found.append(Reading.take(bench.ours.pids).since(before)[0])
    return {
        name: spread([100 * used[name] / bench.size.seconds for used in found])["median"]
        for name in bench.ours.pids
    }


def _short(told: Record) -> str:
    keys = (
        "wall_ms",
        "lag_p50_ms",
        "lag_p99_ms",
        "first_chunk_ms",
        "runs_per_s",
        "cpu_us_per_chunk_with_client",
    )
    parts = []
    for key in keys:
        if key in told:
            theirs = told.get(f"peer_{key.removesuffix('_with_client')}")
            beside = f" (peer {theirs['median']})" if theirs else ""
            parts.append(f"{key} {told[key]['median']}{beside}")
    return ", ".join(parts)


PARTS: Final[dict[str, Callable[[Bench], Awaitable[Record]]]] = {
    "single": single,
    "throughput": throughput,
    "paced": paced,
    "growth": growth,
    "memory": memory,
}
