"""The measurements of the built-in processors by themselves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import builtins
from benchmarks.tables import tables
from procession.registry import Registry

ROOT = Path(__file__).parents[2]
TINY = builtins.Size(text=200, repetitions=1, pathological=200, part=500)


@pytest.fixture(scope="module")
def told():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "processors", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    return json.loads(done.stdout)


def test_processors_without_a_model_are_measured_hook_by_hook(told):
    costs = told["processors"]["costs"]
    assert {"batch-parts", "regex-filter", "token-limiter", "unicode-normalizer"} <= set(costs)
    assert costs["regex-filter"]["processOutputStream"]["us_per_chunk"] > 0
    assert costs["regex-filter"]["processInput"]["us_per_kb"] > 0
    assert 0 < costs["regex-filter"]["processOutputStream"]["waiting_mean"] < 40
    assert "moderation" in told["processors"]["skipped"]


def test_every_kind_of_expensive_text_is_measured_twice(told):
    growth = told["processors"]["growth"]["regex-filter"]["processOutputStream"]
    assert set(growth) == set(builtins.PATHOLOGICAL)
    assert all(len(measured["us_per_kb"]) == 2 for measured in growth.values())


def test_a_catastrophic_pattern_is_stopped(told):
    stopped = told["processors"]["catastrophic"]
    assert "took more than" in stopped["ended"]
    assert stopped["seconds"] < 5


def test_the_report_has_a_row_for_each(told):
    lines = list(tables(told))
    assert any(line.startswith("| regex-filter | processOutputStream |") for line in lines)


async def test_a_processor_that_cannot_be_built_is_skipped_with_the_reason():
    registry = Registry()
    installed = Registry.load()
    for name in ("regex-filter", "token-cost-control"):
        registry.add_processor(installed.processors[name])
    told = await builtins.processors(TINY, registry)
    assert set(told["costs"]) == {"regex-filter"}
    assert "maxCost" in told["skipped"]["token-cost-control"]
