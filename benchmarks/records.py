"""Turns repetitions into what is reported: medians with their spread, per chunk, per run and per process."""

from collections.abc import Callable, Sequence
from itertools import chain
from statistics import median
from typing import Any, Final

from benchmarks.sides import PEER, Sample, Side

Record = dict[str, Any]
Taken = tuple[Side, list[Sample]]

_COMPARED: Final = (
    "wall_ms",
    "first_chunk_ms",
    "lag_p99_ms",
    "runs_per_s",
    "cpu_us_per_chunk",
    "cpu_ms_per_run",
)


def spread(values: Sequence[float], digits: int = 2) -> Record:
    """The median of repetitions, and between which values they lay."""
    return {
        "median": round(median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def percentiles(values: Sequence[float]) -> Record:
    """The middle of some values, and what the slowest are like."""
    return {f"p{percent}": round(percentile(values, percent), 2) for percent in (50, 90, 99)}


def record(taken: Sequence[Taken]) -> Record:
    """What a measurement says: values of each side under its prefix, and `ratio_...` of ours to the peer's.

    A ratio is of two samples that were taken one after the other, since machines have slow spells; its spread is over
    these pairs. `cpu_...` is of all processes of a side together, broker and Redis included, client and model server
    excluded; `..._with_client` adds the client, and is what compares to the peer, which is its own client.
    """
    told: Record = {}
    for side, samples in taken:
        told |= {f"{side.prefix}{key}": value for key, value in alone(side, samples).items()}
    told["problems"] = list(chain.from_iterable(s.outcome.problems for _, samples in taken for s in samples))
    theirs = [alone(side, [sample]) for side, samples in taken if side.prefix == PEER for sample in samples]
    for side, samples in taken:
        if theirs and side.prefix != PEER:
            pairs = [(alone(side, [sample]), their) for sample, their in zip(samples, theirs, strict=True)]
            told |= {f"{side.prefix}ratio_{key}": spread(ratios) for key, ratios in _ratios(pairs).items()}
    return told


def _ratios(pairs: Sequence[tuple[Record, Record]]) -> dict[str, list[float]]:
    """What ours is of the peer's in each pair, for what was measured on both sides."""
    values = {
        key: [(comparable(our, "", key), comparable(their, "", key)) for our, their in pairs]
        for key in _COMPARED
    }
    return {
        key: [our["median"] / their["median"] for our, their in both]
        for key, both in values.items()
        if all(our and their and their["median"] for our, their in both)
    }


def comparable(told: Record, prefix: str, key: str) -> Any:
    """A side's value that can stand beside another's: of CPU, the one with the client; None where there is none."""
    return told.get(f"{prefix}{key}_with_client", told.get(f"{prefix}{key}"))


def alone(side: Side, samples: list[Sample]) -> Record:
    """What one side's measurement says by itself, without what went wrong; see `record`."""
    told = _told(samples, lambda sample: sum(sample.cpu[name] for name in side.pids))
    if "client" in side.processes:
        with_client = _told(samples, lambda sample: sum(sample.cpu[name] for name in side.processes))
        told |= {f"{key}_with_client": value for key, value in with_client.items() if key.startswith("cpu_")}
    for name, unit, per in (("us_per_chunk", 1e6, _chunks), ("ms_per_run", 1e3, _runs)):
        if all(per(sample) for sample in samples):
            told[f"per_process_cpu_{name}"] = {
                process: round(median(s.cpu[process] / per(s) for s in samples) * unit, 2)
                for process in (*side.processes, "model")
            }
    told["foreign_cpus"] = spread([sample.foreign for sample in samples])
    return told


def added(told: Record, raw: Record, prefix: str) -> Record:
    """How much later the first chunk came, and the end, than in a bare request of the same stream; ms."""
    return {
        f"{prefix}{key}": round(told[f"{prefix}{source}"]["median"] - raw[f"{prefix}{source}"]["median"], 2)
        for key, source in (("first_chunk_added_ms", "first_chunk_ms"), ("wall_added_ms", "wall_ms"))
    }


def difference(side: Side, without: Sequence[Sample], using: Sequence[Sample]) -> Record:
    """What the runs of each second sample took beyond those of the first one; medians over the pairs."""

    def wall(sample: Sample) -> float:
        return median(run.wall_ms for run in sample.outcome.runs)

    def cpu(sample: Sample) -> float:
        return sum(sample.cpu[name] for name in side.processes) / _runs(sample) * 1e3

    pairs = list(zip(without, using, strict=True))
    return {
        "wall_ms": spread([wall(more) - wall(less) for less, more in pairs]),
        "cpu_ms_per_run": spread([cpu(more) - cpu(less) for less, more in pairs]),
    }


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The straight line through (x, y) that is nearest in relative terms; returns its value at 0, and slope."""
    weights = [1 / (y * y) for _, y in points]
    all_of = sum(weights)
    x_mean = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / all_of
    y_mean = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / all_of
    over = sum(w * (x - x_mean) * (y - y_mean) for w, (x, y) in zip(weights, points, strict=True))
    under = sum(w * (x - x_mean) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    return y_mean - over / under * x_mean, over / under


def _told(samples: list[Sample], cpu: Callable[[Sample], float]) -> Record:
    runs = [sample.outcome.runs for sample in samples]
    told: Record = {"wall_ms": spread([median(run.wall_ms for run in some) for some in runs])}
    told["wall_p99_ms"] = spread([percentile([run.wall_ms for run in some], 99) for some in runs])
    firsts = [[run.first_ms for run in some if run.first_ms is not None] for some in runs]
    if all(firsts):
        told["first_chunk_ms"] = spread([median(some) for some in firsts])
    if all(sample.outcome.lags for sample in samples):
        lags = [sample.outcome.lags for sample in samples]
        told["lag_p50_ms"] = spread([percentile(some, 50) for some in lags])
        told["lag_p99_ms"] = spread([percentile(some, 99) for some in lags])
        told["chunks_per_s"] = spread([len(s.outcome.lags) / s.outcome.seconds for s in samples], 0)
        del told["wall_ms"], told["wall_p99_ms"]  # the streams last as long as the model has them last
    else:
        told["runs_per_s"] = spread([len(s.outcome.runs) / s.outcome.seconds for s in samples])
        told["cpu_ms_per_run"] = spread([cpu(sample) / _runs(sample) * 1e3 for sample in samples])
    if all(_chunks(sample) for sample in samples):
        told["cpu_us_per_chunk"] = spread([cpu(sample) / _chunks(sample) * 1e6 for sample in samples], 1)
    told["cpus"] = spread([cpu(sample) / sample.outcome.seconds for sample in samples])
    return told


def _chunks(sample: Sample) -> int:
    """The chunks of text that came in the time of which the CPU is known."""
    return len(sample.outcome.lags) or sum(run.chunks for run in sample.outcome.runs)


def _runs(sample: Sample) -> int:
    return 0 if sample.outcome.lags else len(sample.outcome.runs)
