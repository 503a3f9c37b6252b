"""How the benchmarks reckon: spreads, percentiles and the line that splits a run into fixed and growing cost."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.machine import Reading, children, cpu_seconds, resident_mb
from benchmarks.protocol import Outcome, Run
from benchmarks.records import line, percentile, record, spread
from benchmarks.sides import Sample, Side


def test_spread_is_the_median_and_the_extremes():
    assert spread([3.0, 1.0, 2.005, 10.0]) == {"median": 2.5, "min": 1.0, "max": 10.0}


def test_percentile_of_one_value_is_that_value():
    assert percentile([7.0], 99) == 7.0


def test_percentile_takes_the_value_from_the_ordered_list():
    assert percentile([float(n) for n in range(100, 0, -1)], 50) == 51.0


def test_a_straight_line_is_found_exactly():
    at_zero, slope = line([(0, 6.0), (10, 6.5), (100, 11.0), (1000, 56.0)])
    assert at_zero == pytest.approx(6.0)
    assert slope == pytest.approx(0.05)


def test_the_line_is_nearest_in_relative_terms():
    at_zero, _ = line([(0, 10.0), (10, 11.0), (1000, 150.0)])
    assert at_zero == pytest.approx(10, rel=0.03)


def test_the_clock_of_another_process_runs_with_its_work():
    work = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    command = [sys.executable, "-c", work]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        assert 0.2 <= cpu_seconds(process.pid) < 1.0
        assert resident_mb(process.pid) > 1
        assert children()[process.pid].startswith("python")
        process.stdin.close()


def test_a_reading_tells_what_a_process_used_since_the_one_before():
    before = Reading.take({"self": os.getpid()})
    sum(range(3_000_000))
    used, foreign = Reading.take({"self": os.getpid()}).since(before)
    assert used["self"] > 0.01
    assert foreign >= 0


def test_each_side_of_ours_is_compared_to_the_peer_with_its_client():
    runs = [Run(wall_ms=8.0, first_ms=4.0, chunks=10, problem=None)]
    outcome = Outcome(runs=runs, seconds=0.5, lags=[], problems=["wrong"])

    def side(name: str, prefix: str, *, own: bool) -> Side:
        client: Any = SimpleNamespace(pid=1)
        return Side(name, prefix, client, {"server": 1 if own else 2}, {}, {})

    def sample(server: float, client: float) -> Sample:
        return Sample(outcome, {"server": server, "client": client, "model": 100.0}, 0.0)

    told = record(
        [
            (side("procession", "", own=False), [sample(0.003, 0.001), sample(0.03, 0.01)]),
            (side("together", "together_", own=False), [sample(0.001, 0.001), sample(0.02, 0.01)]),
            (side("mastra", "peer_", own=True), [sample(0.008, 0.0), sample(0.1, 0.0)]),
        ]
    )
    assert told["cpu_ms_per_run"]["min"] == 3
    assert told["cpu_ms_per_run_with_client"]["min"] == 4
    assert told["peer_cpu_ms_per_run"]["min"] == 8
    assert "peer_cpu_ms_per_run_with_client" not in told
    assert told["ratio_cpu_ms_per_run"] == {"median": 0.45, "min": 0.4, "max": 0.5}
    assert told["together_ratio_cpu_ms_per_run"] == {"median": 0.28, "min": 0.25, "max": 0.3}
    assert told["ratio_first_chunk_ms"]["median"] == 1
    assert told["problems"] == ["wrong"] * 6
