"""The long form: `python -m tests.chaos --runs 2000 --seed 1`; ends with one line of figures, and 1 if one is not 0."""

import argparse
import asyncio
import math
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.faults import MIXES
from tests.chaos.kinds import ENDING, KINDS, ORDINARY
from tests.chaos.runs import Outcome
from tests.chaos.suite import Figures, chaos
from tests.chaos.world import APART, TOGETHER, world

_FEW = 5
"""Deliveries where processes are to end by themselves: a client's patience has to be more than what those take."""
_SLOWEST = 5
"""How many runs are named whose pauses somebody might look at."""


async def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--concurrency", type=int, default=12)
    parser.add_argument("--kills", type=int, default=12, help="rounds of the gap measurement with kill -9")
    parser.add_argument("--stops", type=int, default=6, help="rounds of the gap measurement with SIGSTOP")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no run after that time")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=KINDS,
        metavar="KIND",
        help=f"kinds of runs: {', '.join(KINDS)}",
    )
    mixes = parser.add_mutually_exclusive_group()
    for name, mix in MIXES.items():
        mixes.add_argument(
            f"--{name}", dest="mix", action="store_const", const=name, default="mixed", help=mix.what
        )
    parser.add_argument(
        "--ending", action="store_true", help="one run in four has a processor or tool that ends its process"
    )
    parser.add_argument(
        "--together", action="store_true", help="each process has all services; no gaps are measured"
    )
    parser.add_argument(
        "--logs",
        type=Path,
        help="directory for logs and data that stays, as it does anyway if something is wrong",
    )
    asked = parser.parse_args()
    logs = asked.logs or Path(tempfile.mkdtemp(prefix="chaos-"))
    logs.mkdir(parents=True, exist_ok=True)
    rounds = {} if asked.together else {"kills": asked.kills, "stops": asked.stops}
    layout = TOGETHER if asked.together else APART
    few = {"max_deliver": _FEW} if asked.ending else {}
    kinds = asked.only or (ENDING if asked.ending else ORDINARY)
    async with world(logs, layout, mix=asked.mix, **few) as made:
        figures = await chaos(
            made, runs=asked.runs, seed=asked.seed, concurrency=asked.concurrency, **rounds,
            seconds=asked.seconds, on_progress=progress, run_kinds=kinds,
        )  # fmt: skip
    wrong = any(figures.wrong.values())
    if not (wrong or asked.logs):
        shutil.rmtree(logs)
    elif wrong:
        sys.stderr.write(f"logs and data are in {logs}\n")
    tell(figures)
    return int(wrong)


def progress(count: int, ended: list[Outcome]) -> None:
    """Writes what is wrong at once, and now and then how far it is."""
    for outcome in ended:
        complain(outcome)
    if count % 100 == 0:
        sys.stderr.write(f"{count} runs\n")


def complain(outcome: Outcome) -> None:
    """Writes what is wrong with a run."""
    sys.stderr.write(f"{outcome.run} ({outcome.kind}, {outcome.seconds:.1f} s, {outcome.status}): ")
    sys.stderr.write("; ".join(map(_both_ends, outcome.notes)) + "\n")


def _both_ends(note: str) -> str:
    return note if len(note) < 2500 else f"{note[:1500]} … {note[-900:]}"


def tell(figures: Figures) -> None:
    """Writes what went wrong, what had happened, and the line of figures."""
    for outcome in figures.outcomes:
        if outcome.model_extra or outcome.tool_wrong:
            complain(outcome)
    if figures.left:
        sys.stderr.write(f"left behind: {figures.left}\n")
    for what in figures.crashed:
        sys.stderr.write(f"{what} of which no run is to blame\n")
    for name in figures.hung:
        sys.stderr.write(f"{name} hears nothing any more\n")
    happened = ", ".join(f"{count} x {name}" for name, count in sorted(figures.faults.items()))
    slowest = sorted(figures.outcomes, key=lambda outcome: -outcome.seconds)
    resets = sum(outcome.resets for outcome in figures.outcomes)
    moved = sum(outcome.hosts > 1 for outcome in figures.outcomes)
    sys.stderr.write(
        f"{figures.seconds:.0f} s; {happened}; resets {resets}; streams that moved {moved}; "
        f"median run {slowest[len(slowest) // 2].seconds if slowest else 0:.1f} s, slowest "
        + ", ".join(f"{each.run} ({each.kind}) {each.seconds:.1f} s" for each in slowest[:_SLOWEST])
        + "\n"
    )
    sys.stdout.write(figures.line() + "\n")


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith("PROCESSION_")]:
        del os.environ[name]
    sys.exit(asyncio.run(main()))
