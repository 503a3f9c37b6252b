"""The benchmarks run from one end to the other, and what they report has the shape that docs/performance.md reads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = {
    "orchestrator",
    "input_processors",
    "llm_gateway",
    "output_processors",
    "error_recovery",
    "memory",
    "tools",
    "nats-server",
    "redis-server",
}
TOGETHER = {"together", "nats-server", "redis-server"}
EVERYBODY = {*SERVICES, "client", "model", *(f"together_{process}" for process in (*TOGETHER, "client"))}
SPREADS = ("wall_ms", "first_chunk_ms", "cpu_us_per_chunk", "cpu_us_per_chunk_with_client", "cpu_ms_per_run")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    file = tmp_path_factory.mktemp("benchmarks") / "told.json"
    command = [sys.executable, "-m", "benchmarks", "all", "--quick", "--no-peer", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())


pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_every_run_ended_with_the_right_text(told):
    assert told["problems"] == []


def test_a_measurement_has_times_and_the_cpu_of_every_process(told):
    single = told["single"]
    for key in SPREADS:
        assert set(single[key]) == {"median", "min", "max"}
        assert single[key]["min"] > 0
    assert set(single["per_process_cpu_us_per_chunk"]) == SERVICES | {"client", "model"}
    assert set(single["together_per_process_cpu_us_per_chunk"]) == TOGETHER | {"client", "model"}
    assert {"first_chunk_added_ms", "together_wall_added_ms", "foreign_cpus"} <= single.keys()
    assert not [key for key in single if key.startswith("peer_")]


def test_our_processes_add_up_to_what_is_reported(told):
    single = told["single"]
    for prefix, names in (("", SERVICES), ("together_", TOGETHER)):
        parts = single[f"{prefix}per_process_cpu_us_per_chunk"]
        ours = sum(parts[name] for name in names)
        assert single[f"{prefix}cpu_us_per_chunk"]["median"] == pytest.approx(ours, abs=1)
        with_client = single[f"{prefix}cpu_us_per_chunk_with_client"]["median"]
        assert with_client == pytest.approx(ours + parts["client"], abs=1)


def test_streams_tell_how_late_chunks_came(told):
    (level,) = told["paced"]["levels"]
    assert level["streams"] == 3
    assert 0 < level["lag_p50_ms"]["median"] <= level["lag_p99_ms"]["median"]
    assert level["chunks_per_s"]["median"] > 0


def test_throughput_counts_runs(told):
    assert [level["concurrency"] for level in told["throughput"]["levels"]] == [1, 4]
    assert all(level["runs_per_s"]["median"] > 0 for level in told["throughput"]["levels"])


def test_growth_covers_chunks_processors_steps_and_memory(told):
    growth = told["growth"]
    assert [one["chunks"] for one in growth["by_chunks"]] == [0, 10, 50]
    assert "cpu_us_per_chunk" not in growth["by_chunks"][0]
    assert [one["output_processors"] for one in growth["by_output_processors"]] == [0, 3]
    assert [one["steps"] for one in growth["by_steps"]] == [1, 3]
    for key in ("cpu_ms_per_run_fixed", "cpu_us_per_further_chunk", "cpu_ms_per_further_step"):
        assert {key, f"{key}_with_client", f"together_{key}"} <= growth.keys()
    assert set(growth["memory_mb"]["after"]) == EVERYBODY
    assert set(growth["idle_cpu_percent"]) == EVERYBODY


def test_memory_tells_what_it_adds(told):
    memory = told["memory"]
    of_service = [memory[part]["per_process_cpu_ms_per_run"]["memory"] for part in ("without", "with")]
    assert of_service[1] > 2 * of_service[0], "the runs of the second kind were remembered"
    assert set(memory["added"]) == {"wall_ms", "cpu_ms_per_run"}


def test_the_tables_can_be_made_of_it(told, tmp_path):
    file = tmp_path / "told.json"
    file.write_text(json.dumps(told))
    command = [sys.executable, "-m", "benchmarks.tables", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert "| output processors |" in done.stdout
    assert "| added wall time, ms |" in done.stdout
    assert "| 3 | ... a process each |" in done.stdout
