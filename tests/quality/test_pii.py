"""The local stage of `pii-detector` on the labelled set: no worse than what was measured."""

from benchmarks.quality.pii import evaluate, labelled, report
from procession_services.processors.core.pii.scanner import LOCAL_TYPES, LocalScanner

MISSED = {"phone": 1, "crypto-wallet": 1, "national-id": 2}
WRONG = {"phone": 1}


def test_the_set_is_what_it_is_said_to_be():
    cases = labelled()
    assert len(cases) >= 500
    assert len({case.language for case in cases}) >= 15
    assert sum(not case.places for case in cases) >= 200
    assert {kind for case in cases for kind, _, _ in case.places} == set(LOCAL_TYPES)
    assert len({case.text for case in cases}) == len(cases)


def test_precision_and_recall_are_those_that_were_measured():
    result = evaluate(labelled(), LocalScanner(LOCAL_TYPES).find)
    assert {kind: score.missed for kind, score in result.scores.items() if score.missed} == MISSED, (
        result.errors
    )
    assert {kind: score.wrong for kind, score in result.scores.items() if score.wrong} == WRONG, result.errors
    assert result.uncovered == 4
    assert result.total.right == 311


def test_the_report_tells_every_type():
    told = report()
    assert all(kind in told for kind in (*LOCAL_TYPES, "precision", "recall", "all"))
