"""Every given vector passes, or the rule that overrides it is named."""

import json
from pathlib import Path

import pytest

from tests.vectors.adapters import adapter_for
from tests.vectors.compare import differences
from tests.vectors.run import judge, main, vectors_of

GIVEN = Path(__file__).parent / "given"
CASES, RECORDED = (
    [(path.name, vector) for path in sorted(folder.glob("*.json")) for vector in vectors_of(path)]
    for folder in (GIVEN, GIVEN.parent / "recorded")
)


@pytest.mark.parametrize(("file", "vector"), CASES, ids=[f"{file[:-5]}:{v['name']}" for file, v in CASES])
async def test_given(file, vector):
    result = await judge(file, vector)
    assert not result.failed, "\n".join(result.differences)


@pytest.mark.parametrize(
    ("file", "vector"), RECORDED, ids=[f"{file[:-5]}:{v['name']}" for file, v in RECORDED]
)
async def test_recorded(file, vector):
    result = await judge(file, vector)
    assert not result.failed, "\n".join(result.differences)


def test_all_files_are_there():
    assert len({file for file, _ in CASES}) == 33
    assert len(CASES) == 796


# --- the comparison ----------------------------------------------------------------------------


def expecting(expected, **more):
    return {"name": "x", "options": {}, "input": {}, "expected": expected, **more}


@pytest.mark.parametrize(
    ("expected", "observed"),
    [
        ({"a": 1, "b": [1.0, "x"]}, {"a": 1.0, "b": [1, "x"]}),
        ({"a": "<undefined>"}, {}),
        ({"a": None}, {"a": "<undefined>"}),
        ({"key": "x:<hash8>:y"}, {"key": "x:0123abcd:y"}),
        (
            {"tripwire": {"reason": "one", "retry": False}},
            {"tripwire": {"reason": "two", "processorId": "p"}},
        ),
        ({"throws": {"name": "Error", "message": "no"}}, {"throws": "another text"}),
        ({"logs": [{"level": "info", "text": "done"}]}, {}),
        ({}, {"logs": [{"level": "warn", "text": "more than expected"}]}),
    ],
)
def test_alike(expected, observed):
    assert differences(expecting(expected), observed) == []


@pytest.mark.parametrize(
    ("expected", "observed"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"a": True}),
        ({"a": 0}, {}),
        ({"a": False}, {}),
        ({"a": ""}, {}),
        ({"a": []}, {}),
        ({}, {"a": 1}),
        ({"a": [1, 2]}, {"a": [1]}),
        ({"key": "<hash8>"}, {"key": "0123abc"}),
        ({"tripwire": {"reason": "one"}}, {}),
        ({}, {"tripwire": {"reason": "one"}}),
        ({"tripwire": {"reason": "one", "retry": True}}, {"tripwire": {"reason": "one"}}),
        (
            {"tripwire": {"reason": "x", "processorId": "a"}},
            {"tripwire": {"reason": "x", "processorId": "b"}},
        ),
        ({"tripwire": {"reason": "x"}}, {"tripwire": {"reason": None}}),
        ({"throws": "no"}, {}),
        ({"logs": [{"level": "warn", "text": "no"}]}, {"logs": []}),
        ({"finish": {"stepResult": {"reason": "stop"}}}, {"finish": {"stepResult": {"reason": "length"}}}),
    ],
)
def test_different(expected, observed):
    assert len(differences(expecting(expected), observed)) == 1


def test_prose_names_the_facts_of_the_vector():
    vector = expecting(
        {"tripwire": {"reason": "Found: email, limit 50 reached"}},
        options={"detectionTypes": ["email", "phone"], "limit": 50},
    )
    assert differences(vector, {"tripwire": {"reason": "E-mail: there was one EMAIL; 50 were allowed"}}) == []
    assert "email" in differences(vector, {"tripwire": {"reason": "Found something, limit 50"}})[0]
    assert "50" in differences(vector, {"tripwire": {"reason": "Found: email"}})[0]


# --- the runner --------------------------------------------------------------------------------


def test_adapters_are_found_by_what_the_stem_contains():
    assert adapter_for("regex-filter", {}) is adapter_for("more-regex_filter-2", {}) is not None
    assert adapter_for("others", {"processor": "regex-filter"}) is adapter_for("regex-filter", {})
    assert adapter_for("nothing-known", {}) is None


def test_a_run_reports_each_vector(tmp_path, capsys):
    given = json.loads((GIVEN / "unicode-normalizer.json").read_text())[:2]
    wrong = {**given[0], "name": "wrong", "expected": {"messages": []}}
    (tmp_path / "unicode-normalizer.json").write_text(json.dumps([*given, wrong]))
    (tmp_path / "unknown.json").write_text(json.dumps([given[0]]))
    (tmp_path / "notes.json").write_text("{}")
    out = tmp_path / "out.txt"
    assert main([str(tmp_path), "--json", str(out)]) == 1
    told = json.loads(out.read_text())
    assert [(r["file"], r["status"]) for r in told] == [
        ("unicode-normalizer.json", "pass"),
        ("unicode-normalizer.json", "pass"),
        ("unicode-normalizer.json", "fail"),
        ("unknown.json", "fail"),
    ]
    assert told[3]["differences"] == ["no adapter"]
    assert set(told[0]) == {"file", "name", "status", "differences"}
    assert "unicode-normalizer.json" in capsys.readouterr().out


def test_a_run_where_all_pass_ends_well(tmp_path):
    (tmp_path / "unicode-normalizer.json").write_text((GIVEN / "unicode-normalizer.json").read_text())
    assert main([str(tmp_path)]) == 0
