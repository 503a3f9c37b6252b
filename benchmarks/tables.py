"""`python -m benchmarks.tables FILE`: the results of `python -m benchmarks PART --json FILE` as Markdown."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.records import comparable
from benchmarks.sides import APART, PEER, TOGETHER

_NONE: Final = "-"
_TITLES: Final = {
    "runs_per_s": "runs/s",
    "chunks_per_s": "chunks/s",
    "wall_ms": "wall, ms",
    "lag_p50_ms": "lag p50, ms",
    "lag_p99_ms": "lag p99, ms",
    "cpu_ms_per_run": "CPU ms/run",
    "cpu_us_per_chunk": "CPU µs/chunk",
    "ratio_cpu_us_per_chunk": "of Mastra's CPU",
    "ratio_cpu_ms_per_run": "of Mastra's CPU",
    "cpus": "CPUs",
    "foreign_cpus": "CPUs of others",
}
_AT_ONCE: Final = (
    "runs_per_s",
    "wall_ms",
    "cpu_us_per_chunk",
    "ratio_cpu_us_per_chunk",
    "cpus",
    "foreign_cpus",
)
_PACED: Final = (
    "lag_p50_ms",
    "lag_p99_ms",
    "cpu_us_per_chunk",
    "ratio_cpu_us_per_chunk",
    "cpus",
    "foreign_cpus",
)
_GROWN: Final = ("wall_ms", "cpu_ms_per_run", "ratio_cpu_ms_per_run", "cpu_us_per_chunk")
_SIDES: Final = {TOGETHER: "Procession", APART: "... a process each", PEER: "Mastra"}
"""By the prefix of their values; ours in one process, and with a process for each service."""
_PINNED: Final = {"together": _SIDES[TOGETHER], "procession": _SIDES[APART], "mastra": _SIDES[PEER]}
"""By the names of the sides that streams are counted of."""
_SINGLE: Final = (
    ("wall time of a run, ms", "wall_ms"),
    ("... of Mastra's, in pairs", "ratio_wall_ms"),
    ("99th percentile, ms", "wall_p99_ms"),
    ("time to the first chunk, ms", "first_chunk_ms"),
    ("... of Mastra's, in pairs", "ratio_first_chunk_ms"),
    ("... beyond a bare request, ms", "first_chunk_added_ms"),
    ("CPU per run with the client, ms", "cpu_ms_per_run"),
    ("... of Mastra's, in pairs", "ratio_cpu_ms_per_run"),
    ("CPU per chunk with the client, µs", "cpu_us_per_chunk"),
    ("CPUs used by others meanwhile", "foreign_cpus"),
)


def tables(told: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of the report: the machine, then a table for each measurement."""
    yield from _about(told)
    if "processors" in told:
        yield from _processors(told["processors"])
    if "single" in told:
        yield from _single(told["single"])
    if "throughput" in told:
        yield from ("", "### Several runs at a time (100 chunks; CPU with the client)", "")
        yield from _levels(told["throughput"]["levels"], "concurrency", _AT_ONCE)
    if "paced" in told:
        yield from ("", "### Streams of 50 chunks/s (CPU with the client)", "")
        yield from _levels(told["paced"]["levels"], "streams", _PACED)
    if "pinned" in told:
        yield from _pinned(told["pinned"])
    if "growth" in told:
        yield from _growth(told["growth"])
    if "memory" in told:
        yield from _remembering(told["memory"])


def _about(told: dict[str, Any]) -> Iterator[str]:
    machine = told["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    yield f"{told['when']}: {machine['cpus']} CPUs ({machine['cpu']}), {machine['memory_gb']} GB, "
    yield f"Linux {machine['kernel']}, Python {machine['python']}, {versions}."
    if told["peer"]:
        theirs = ", ".join(f"{name} {version}" for name, version in told["peer"]["versions"].items())
        yield f"The peer: {theirs}."
    yield f"Medians of {told['size']['repetitions']} repetitions, [smallest - largest]."
    if told.get("one_core_each"):
        yield "One core for each side, another for the model and our client."


def _single(single: dict[str, Any], where: str = "") -> Iterator[str]:
    yield from ("", f"### One run at a time{where} (100 chunks)", "")
    sides = _sides(single, "wall_ms")
    rows = [[title, *(_cell(comparable(single, side, key)) for side in sides)] for title, key in _SINGLE]
    yield from _table(["", *sides.values()], rows)
    yield from ("", "Where the CPU time goes, µs per chunk:", "")
    for side in sides:
        parts = sorted(single[f"{side}per_process_cpu_us_per_chunk"].items(), key=lambda item: -item[1])
        yield f"* {sides[side]}: {', '.join(f'{name} {used:g}' for name, used in parts)}"


def _pinned(pinned: dict[str, Any]) -> Iterator[str]:
    columns = ("lag_p50_ms", "lag_p99_ms", "cpus", "foreign_cpus")
    yield from _single(pinned["single"], " on one core")
    yield from ("", "### Streams of 50 chunks/s that one core carries", "")
    rows = [
        [str(level["streams"]), name, *(_cell(level[side][key]) for key in columns)]
        for level in pinned["levels"]
        for side, name in _PINNED.items()
        if side in level
    ]
    yield from _table(["streams", "", *(_TITLES[key] for key in columns)], rows)
    most = ", ".join(
        f"{name} {pinned['found'][side]['most_streams']}"
        for side, name in _PINNED.items()
        if side in pinned["found"]
    )
    limit = max(found["limit_ms"] for found in pinned["found"].values())
    yield from ("", f"Most streams before p99 passed {limit:g} ms: {most}.")


def _processors(told: dict[str, Any]) -> Iterator[str]:
    yield from ("", "### Built-in processors that need no model", "")
    rows = []
    for name, costs in told["costs"].items():
        for hook, cost in costs.items():
            waiting = (cost.get("waiting_mean"), cost.get("waiting_max"))
            shown = (cost.get("us_per_chunk"), cost["us_per_kb"], told["part"][name][hook] * 1e3, *waiting)
            rows.append([name, hook, *(_cell(_rounded(value)) for value in shown)])
    waits = ("characters waiting, mean", "at most")
    yield from _table(["processor", "hook", "µs per chunk", "µs per kilobyte", "huge part, ms", *waits], rows)
    yield from (
        "",
        "Input that is meant to be expensive, µs per kilobyte, for a certain amount and for four times as much:",
        "",
    )
    kinds = list(next(kinds for hooks in told["growth"].values() for kinds in hooks.values()))
    rows = [
        [name, hook, *(_pair(kinds_of[kind]) for kind in kinds)]
        for name, hooks in told["growth"].items()
        for hook, kinds_of in hooks.items()
    ]
    yield from _table(["processor", "hook", *kinds], rows)
    stopped = told["catastrophic"]
    yield from ("", f"A catastrophic regular expression is stopped after {stopped['seconds']:.2f} s.")


def _pair(measured: dict[str, Any]) -> str:
    told = ", ".join(_cell(_rounded(cost)) for cost in measured["us_per_kb"])
    return f"{told} (stopped)" if measured["ended"] else told


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def _remembering(told: dict[str, Any]) -> Iterator[str]:
    yield from ("", "### Memory of the last ten messages (100 chunks, one run at a time)", "")
    rows = []
    sides = _sides(told["with"], "wall_ms")
    for title, key, part in (
        ("wall time without, ms", "wall_ms", "without"),
        ("wall time with, ms", "wall_ms", "with"),
        ("added wall time, ms", "wall_ms", "added"),
        ("CPU per run without, with the client, ms", "cpu_ms_per_run", "without"),
        ("CPU per run with, with the client, ms", "cpu_ms_per_run", "with"),
        ("added CPU per run, ms", "cpu_ms_per_run", "added"),
        ("CPUs used by others meanwhile", "foreign_cpus", "with"),
    ):
        shown = [
            told[f"{side}added"][key] if part == "added" else comparable(told[part], side, key)
            for side in sides
        ]
        rows.append([title, *map(_cell, shown)])
    yield from _table(["", *sides.values()], rows)


def _growth(growth: dict[str, Any]) -> Iterator[str]:
    for title, key, first in (
        ("Chunks in a run (three input and three output processors)", "by_chunks", "chunks"),
        ("Output processors (no input processors)", "by_output_processors", "output_processors"),
        ("Steps in a tool loop (then 20 chunks)", "by_steps", "steps"),
    ):
        yield from ("", f"### {title}", "")
        yield from _levels(growth[key], first, _GROWN)
    yield from ("", "Lines through the sizes, up to 1000 chunks, CPU with the client and [without it]:", "")
    lines = {
        "ms per run": "cpu_ms_per_run_fixed",
        "µs per further chunk": "cpu_us_per_further_chunk",
        "ms per further step": "cpu_ms_per_further_step",
    }
    rows = [
        [name, *(f"{comparable(growth, side, key):g} [{growth[side + key]:g}]" for key in lines.values())]
        for side, name in _sides(growth, "cpu_ms_per_run_fixed").items()
    ]
    yield from _table(["", *lines], rows)
    nothing = growth["by_chunks"][0].get("per_process_cpu_ms_per_run", {})
    parts = sorted(nothing.items(), key=lambda item: -item[1])
    yield from (
        "",
        f"CPU of a run without chunks, ms: {', '.join(f'{name} {used:g}' for name, used in parts)}",
    )
    yield from ("", "### Memory (resident MB) and idle CPU", "")
    memory = growth["memory_mb"]
    rows = [
        [
            name,
            *(str(of.get(name, _NONE)) for of in memory.values()),
            str(growth["idle_cpu_percent"].get(name, _NONE)),
        ]
        for name in memory["before"]
    ]
    yield from _table(["process", *(key.replace("_", " ") for key in memory), "idle CPU, % of one"], rows)


def _levels(levels: list[dict[str, Any]], first: str, columns: Sequence[str]) -> Iterator[str]:
    """A row for each side of a level."""
    sides = _sides(levels[0], columns[0])
    rows = [
        [str(level[first]), name, *(_cell(comparable(level, side, key)) for key in columns)]
        for level in levels
        for side, name in sides.items()
    ]
    yield from _table([first.replace("_", " "), "", *(_TITLES[key] for key in columns)], rows)


def _sides(told: dict[str, Any], key: str) -> dict[str, str]:
    """The sides that were measured."""
    return {side: name for side, name in _SIDES.items() if f"{side}{key}" in told}


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['median']:g} [{value['min']:g} - {value['max']:g}]"
    return _NONE if value is None else f"{value:g}"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{' --- |' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    print("\n".join(tables(json.loads(Path(sys.argv[1]).read_text()))))  # noqa: T201 - what it is for
