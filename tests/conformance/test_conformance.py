"""Every recorded scenario, played once on the whole system: as recorded, or different by a named rule."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.check import HERE, check

pytestmark = [pytest.mark.conformance, pytest.mark.slow]

SCENARIOS = sorted(file.stem for file in (HERE / "scenarios").glob("*.json"))


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conformance")
    command = [sys.executable, "tests/conformance/run.py", str(HERE / "scenarios"), str(folder)]
    done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="session")
def complaints(results: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for complaint in check(results):
        found.setdefault(complaint.scenario, []).append(str(complaint))
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str, complaints: dict[str, list[str]]) -> None:
    assert not complaints.get(scenario), "\n".join(complaints[scenario])


def test_nothing_is_listed_for_scenarios_that_are_not_there(complaints: dict[str, list[str]]) -> None:
    assert not complaints.keys() - set(SCENARIOS)
