"""The short form: a few dozen mixed runs, and whatever one fixed seed has happen to them."""

import pytest

from tests.chaos.ending import deaths_of
from tests.chaos.evidence import keep_evidence
from tests.chaos.kinds import ENDING, KINDS
from tests.chaos.suite import chaos
from tests.chaos.world import world

RUNS = 50
ENDING_RUNS = 32
SEED = 7


pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow]


def nothing_is_wrong(figures):
    assert {name: count for name, count in figures.wrong.items() if count} == {}, [
        (outcome.run, outcome.kind, outcome.status, outcome.notes)
        for outcome in figures.outcomes
        if outcome.notes
    ]


@pytest.mark.parametrize("mix", ["mixed", "lossy"])
async def test_nothing_is_lost_and_nothing_comes_twice(tmp_path, mix):
    async with world(tmp_path, mix=mix) as made:
        figures = await chaos(made, runs=RUNS, seed=SEED, concurrency=6, pause=(0.5, 2.0))
        some = figures.outcomes[0].run
        await keep_evidence(made.servers.endpoints, some, evidence := tmp_path / "evidence")
    nothing_is_wrong(figures)
    assert len(figures.outcomes) >= RUNS
    assert sum(figures.faults.values()) >= 3
    kept = evidence.read_text()
    assert f"run:{some}" in kept
    assert f"{some}.run.finished" in kept
    assert f"chunk.chaos.{some} " in kept


async def test_processors_and_tools_that_end_their_process_take_no_other_run_along(tmp_path):
    async with world(tmp_path, mix="calm", max_deliver=5) as made:
        figures = await chaos(made, runs=ENDING_RUNS, seed=SEED, concurrency=6, run_kinds=ENDING)
    nothing_is_wrong(figures)
    ended = [each for each in figures.outcomes if KINDS[each.kind].deaths]
    assert {each.kind for each in ended} == {"ending", "deadly", "unmade"}
    assert all(deaths_of(made.trace(each.run)).exists() for each in ended)
    assert {fault.kind for fault in made.faults} == {"crash"}
