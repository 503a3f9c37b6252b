"""The short form: a few dozen mixed runs, and whatever one fixed seed has happen to them."""

import pytest

from tests.chaos.evidence import keep_evidence
from tests.chaos.suite import chaos
from tests.chaos.world import world

RUNS = 50
SEED = 7


@pytest.mark.integration
@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("mix", ["mixed", "lossy"])
async def test_nothing_is_lost_and_nothing_comes_twice(tmp_path, mix):
    async with world(tmp_path, mix=mix) as made:
        figures = await chaos(made, runs=RUNS, seed=SEED, concurrency=6, pause=(0.5, 2.0))
        some = figures.outcomes[0].run
        await keep_evidence(made.servers.endpoints, some, evidence := tmp_path / "evidence")
    assert {name: count for name, count in figures.wrong.items() if count} == {}, [
        (outcome.run, outcome.kind, outcome.status, outcome.notes)
        for outcome in figures.outcomes
        if outcome.notes
    ]
    assert len(figures.outcomes) >= RUNS
    assert sum(figures.faults.values()) >= 3
    kept = evidence.read_text()
    assert f"run:{some}" in kept
    assert f"{some}.run.finished" in kept
    assert f"chunk.chaos.{some} " in kept
