"""Checks a folder of results: equal to the recordings, or different by a rule that `divergences.toml` names.

    python tests/conformance/check.py RESULTS_DIR [--only ID[,ID]] [--accept]

A section of a mode of a scenario may differ from the recording only where `divergences.toml` names the rule
that demands it. What it then has to be is in `ours/<id>.json`, so a listed scenario is tested as strictly as
any other. What is listed and yet equal is an error too: the list never holds more than the differences.

`--accept` writes `ours/` and the list anew from the results. A difference without a rule gets the rule `?`,
which the check refuses until somebody has found the rule that demands it, or mended the code. The exit status
is 1 when there are complaints.
"""

import argparse
import importlib.util
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

if __package__ in (None, ""):
    sys.path[:1] = [str(Path(__file__).resolve().parents[2])]

from tests.conformance.wording import loosely

__all__ = ["Complaint", "Divergences", "check", "main"]

HERE: Final = Path(__file__).resolve().parent
MODES: Final = ("stream", "generate")
_RULE: Final = re.compile(r"[AD]-\d+")
_HEADER: Final = """\
# Where Procession differs from the recordings, and the rule that demands it: A-n is a reading of the contract
# where its sources contradict each other, D-n a row of docs/differences.md. Nothing else may differ; check.py
# sees to it. What these sections are instead is in ours/.
"""

Rules = list[str]


@dataclass(frozen=True)
class Complaint:
    """What is wrong with a section of a mode of a scenario."""

    scenario: str
    mode: str
    section: str
    what: str

    def __str__(self) -> str:
        return f"{self.scenario} {self.mode} {self.section}: {self.what}"


@dataclass
class Divergences:
    """The list: what each rule says, and scenario -> mode -> section -> rules."""

    rules: dict[str, str]
    scenarios: dict[str, dict[str, dict[str, Rules]]]

    @classmethod
    def load(cls, path: Path) -> "Divergences":
        """Reads the list; raises ValueError where it names a rule that it does not explain."""
        data = tomllib.loads(path.read_text()) if path.exists() else {}
        divergences = cls(data.get("rules", {}), data.get("scenarios", {}))
        used = set(divergences.used())
        if unknown := sorted(rule for rule in used if rule != "?" and rule not in divergences.rules):
            raise ValueError(f"{path.name} uses rules that it does not explain: {', '.join(unknown)}")
        if wrong := [rule for rule in divergences.rules if not _RULE.fullmatch(rule)]:
            raise ValueError(f"{path.name}: not the id of a rule: {', '.join(wrong)}")
        if idle := sorted(divergences.rules.keys() - used):
            raise ValueError(f"{path.name} explains rules that it does not use: {', '.join(idle)}")
        return divergences

    def used(self) -> Iterator[str]:
        """The rules that are named, each time."""
        for modes in self.scenarios.values():
            for sections in modes.values():
                for rules in sections.values():
                    yield from rules

    def of(self, scenario: str, mode: str) -> dict[str, Rules]:
        """The listed sections of a mode of a scenario."""
        return self.scenarios.get(scenario, {}).get(mode, {})

    def write(self, path: Path) -> None:
        """Writes the list, one line for a difference."""
        lines = [_HEADER, "[rules]"]
        used = set(self.used())
        lines += [
            f"{rule} = {json.dumps(self.rules[rule])}"
            for rule in sorted(self.rules, key=_order)
            if rule in used
        ]
        for scenario in sorted(self.scenarios):
            entries = [
                f"{mode}.{section} = {json.dumps(rules)}"
                for mode in MODES
                for section, rules in sorted(self.scenarios[scenario].get(mode, {}).items())
            ]
            if entries:
                lines += ["", f"[scenarios.{scenario}]", *entries]
        path.write_text("\n".join(lines) + "\n")


def _order(rule: str) -> tuple[str, int]:
    letter, _, number = rule.partition("-")
    return letter, int(number)


def _compare() -> Any:
    """The reference's own comparison, which says what the sections of a recording are."""
    spec = importlib.util.spec_from_file_location("conformance_compare", HERE / "compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _sections(side: dict[str, Any]) -> dict[str, Any]:
    sections = _compare().sections(side)
    return dict(loosely(json.loads(json.dumps(sections))))


def check(
    results: Path, *, only: Iterable[str] = (), accept: bool = False, here: Path = HERE
) -> list[Complaint]:
    """Compares results with recordings and list; returns the complaints.

    Args:
        results: Folder of the results.
        only: Parts of the ids to look at; none means all.
        accept: Take the results as ours: rewrite `ours/` and the list for the scenarios looked at.
        here: Folder of `expected/`, `ours/` and the list.
    """
    parts = tuple(only)
    divergences = Divergences.load(here / "divergences.toml")
    complaints = []
    known = sorted(file.stem for file in (here / "expected").glob("*.json"))
    for scenario in (name for name in known if not parts or any(part in name for part in parts)):
        expected = json.loads((here / "expected" / f"{scenario}.json").read_text())
        file = results / f"{scenario}.json"
        got = json.loads(file.read_text()) if file.exists() else {}
        if accept:
            _accept(scenario, expected, got, divergences, here / "ours")
        ours_file = here / "ours" / f"{scenario}.json"
        ours = json.loads(ours_file.read_text()) if ours_file.exists() else {}
        for mode in MODES:
            if mode in expected:
                listed = divergences.of(scenario, mode)
                wrong = _compare_mode(expected[mode], got.get(mode), ours.get(mode, {}), listed)
                complaints += [Complaint(scenario, mode, section, what) for section, what in wrong]
    for scenario in divergences.scenarios:
        if scenario not in known:
            complaints.append(Complaint(scenario, "", "", "is listed, but there is no such recording"))
    if accept:
        divergences.write(here / "divergences.toml")
    return complaints


def _compare_mode(
    expected: dict[str, Any], got: dict[str, Any] | None, ours: dict[str, Any], listed: dict[str, Rules]
) -> Iterator[tuple[str, str]]:
    if got is None:
        yield "", "there is no result"
        return
    theirs, mine = _sections(expected), _sections(got)
    for section in sorted(theirs.keys() | mine.keys() | listed.keys()):
        recorded, actual = theirs.get(section), mine.get(section)
        rules = listed.get(section)
        if rules is None:
            if recorded != actual:
                yield section, "differs from the recording" + _where(recorded, actual)
        elif recorded == actual:
            yield section, f"is listed ({', '.join(rules)}) but equals the recording: take it off the list"
        elif "?" in rules:
            yield section, "differs from the recording, and no rule is named" + _where(recorded, actual)
        elif ours.get(section) != actual:
            yield (
                section,
                f"differs from what {', '.join(rules)} demands (ours/)" + _where(ours.get(section), actual),
            )


def _where(wanted: Any, actual: Any) -> str:
    compare = _compare()
    where, one, other = compare.first_diff(wanted, actual)
    wanted, got = compare.short(one), compare.short(other)
    return f"\n    at {where or 'the whole'}\n      wanted {wanted}\n      got    {got}"


def _accept(
    scenario: str, expected: dict[str, Any], got: dict[str, Any], divergences: Divergences, folder: Path
) -> None:
    kept: dict[str, dict[str, Any]] = {}
    rules: dict[str, dict[str, Rules]] = {}
    for mode in (mode for mode in MODES if mode in expected and mode in got):
        theirs, mine = _sections(expected[mode]), _sections(got[mode])
        for section in sorted(theirs.keys() | mine.keys()):
            if theirs.get(section) != mine.get(section):
                kept.setdefault(mode, {})[section] = mine.get(section)
                known = divergences.of(scenario, mode).get(section)
                rules.setdefault(mode, {})[section] = known or _proposal(mode, section, got, rules)
    file = folder / f"{scenario}.json"
    if kept:
        folder.mkdir(exist_ok=True)
        file.write_text(json.dumps(kept, ensure_ascii=False, indent=1) + "\n")
        divergences.scenarios[scenario] = rules
    else:
        file.unlink(missing_ok=True)
        divergences.scenarios.pop(scenario, None)


def _proposal(mode: str, section: str, got: dict[str, Any], rules: dict[str, dict[str, Rules]]) -> Rules:
    """The rules to begin with: D-37 where the run that is only waited for did the same as the streamed one."""
    if mode == "generate" and section in ("hooks", "order", "tools", "prompts", "modelCalls", "persisted"):
        streamed, whole = _sections(got["stream"]), _sections(got["generate"])
        if streamed.get(section) == whole.get(section):
            return sorted({*rules.get("stream", {}).get(section, []), "D-37"} - {"?"}, key=_order)
    return ["?"]


def main() -> None:
    """Reads the command line, checks, and says what is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="folder that run.py wrote")
    parser.add_argument("--only", default="", help="parts of ids, separated by commas")
    parser.add_argument("--accept", action="store_true", help="take the results as ours")
    options = parser.parse_args()
    only = [part for part in options.only.split(",") if part]
    complaints = check(options.results, only=only, accept=options.accept)
    for complaint in complaints:
        print(complaint)  # noqa: T201
    print(f"{len(complaints)} complaints")  # noqa: T201
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
