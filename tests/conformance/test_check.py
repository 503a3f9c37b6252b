"""The check finds what differs without a rule, what is listed in vain, and what rots behind a rule."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.check import Complaint, Divergences, check

LIST = '[rules]\nA-7 = "why"\n\n[scenarios.s]\nstream.text = ["A-7"]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("expected", "ours", "results"):
        (tmp_path / name).mkdir()
    (tmp_path / "expected" / "s.json").write_text(json.dumps(recording("theirs")))
    return tmp_path


def recording(text: str, reason: str = "stop") -> dict[str, Any]:
    return {"stream": {"runs": [{"text": text, "finishReason": reason}], "trace": [], "modelCalls": 1}}


def complaints(
    folder: Path, result: dict[str, Any], *, listed: str = "", ours: str | None = None
) -> list[Complaint]:
    (folder / "results" / "s.json").write_text(json.dumps(result))
    (folder / "divergences.toml").write_text(listed)
    if ours is not None:
        (folder / "ours" / "s.json").write_text(json.dumps({"stream": {"text": [ours]}}))
    return check(folder / "results", here=folder)


def test_what_equals_the_recording_passes(folder: Path) -> None:
    assert complaints(folder, recording("theirs")) == []


def test_a_difference_that_no_rule_demands_is_found(folder: Path) -> None:
    (complaint,) = complaints(folder, recording("mine"))

    assert (complaint.mode, complaint.section) == ("stream", "text")
    assert "differs from the recording" in complaint.what


def test_a_listed_difference_must_be_what_ours_says(folder: Path) -> None:
    assert complaints(folder, recording("mine"), listed=LIST, ours="mine") == []
    (complaint,) = complaints(folder, recording("rotten"), listed=LIST, ours="mine")
    assert "A-7 demands" in complaint.what


def test_the_other_sections_of_a_listed_scenario_are_still_compared(folder: Path) -> None:
    (complaint,) = complaints(folder, recording("mine", "length"), listed=LIST, ours="mine")

    assert complaint.section == "finishReason"


def test_what_is_listed_but_equal_is_stale(folder: Path) -> None:
    (complaint,) = complaints(folder, recording("theirs"), listed=LIST, ours="mine")

    assert "take it off the list" in complaint.what


def test_a_difference_without_a_named_rule_is_refused(folder: Path) -> None:
    listed = LIST.replace('["A-7"]', '["A-7", "?"]')

    (complaint,) = complaints(folder, recording("mine"), listed=listed, ours="mine")

    assert "no rule is named" in complaint.what


def test_a_missing_result_is_a_complaint(folder: Path) -> None:
    (folder / "divergences.toml").write_text("")

    (complaint,) = check(folder / "results", here=folder)

    assert complaint.what == "there is no result"


def test_accepting_keeps_known_rules_and_asks_for_the_others(folder: Path) -> None:
    (folder / "results" / "s.json").write_text(json.dumps(recording("mine", "length")))
    (folder / "divergences.toml").write_text(LIST)

    found = check(folder / "results", here=folder, accept=True)

    divergences = Divergences.load(folder / "divergences.toml")
    assert divergences.of("s", "stream") == {"text": ["A-7"], "finishReason": ["?"]}
    assert json.loads((folder / "ours" / "s.json").read_text()) == {
        "stream": {"text": ["mine"], "finishReason": ["length"]}
    }
    assert [complaint.section for complaint in found] == ["finishReason"]


@pytest.mark.parametrize(
    "listed", [LIST.replace("A-7 =", "A-8 ="), LIST + 'stream.error = ["D-1"]\n', '[rules]\nA-7 = "x"\n']
)
def test_every_rule_is_explained_and_used(folder: Path, listed: str) -> None:
    (folder / "divergences.toml").write_text(listed)

    with pytest.raises(ValueError, match=r"divergences\.toml"):
        check(folder / "results", here=folder)
