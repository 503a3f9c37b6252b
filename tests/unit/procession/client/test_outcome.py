"""What events, in whatever order, make of a run."""

import itertools

import pytest

from procession.client.outcome import Outcome


def accepted(**more):
    return {"type": "run.accepted", **more}


def finished(text="", **more):
    return {"type": "run.finished", "result": result("finished", text=text), **more}


def suspended(fence, *calls):
    payload = {"calls": [{"toolCallId": call} for call in calls]}
    return {"type": "run.suspended", "fence": fence, "result": result("suspended", suspendPayload=payload)}


def resumed(fence):
    return {"type": "run.resumed", "fence": fence}


def rejected(sequence):
    error = {"code": "X", "message": f"refused {sequence}"}
    return {"type": "request.rejected", "runId": "r", "at": "", "error": error, "sequence": sequence}


def result(status, **more):
    return {"runId": "r", "agent": "a", "status": status, "finishReason": "stop", **more}


def told(*events, fingerprint=None):
    outcome = Outcome(streams=True, fingerprint=fingerprint)
    for event in events:
        outcome.hear(event)
    return outcome


def test_a_run_that_was_decided_on_and_ended_has_ended_in_whatever_order_one_hears_of_it():
    events = [accepted(), suspended(2, "c"), resumed(2), finished("done")]
    for order in itertools.permutations(events):
        outcome = told(*order, *order)
        assert outcome.final
        assert outcome.result.text == "done"


def test_a_run_waits_until_all_its_calls_are_decided():
    outcome = told(accepted(), suspended(2, "c", "d"))
    assert outcome.waits
    assert list(outcome.asked) == ["c", "d"]
    outcome.decide("c", 2)
    assert outcome.waits
    assert outcome.result is None
    outcome.decide("d", 2)
    assert not outcome.waits
    assert (outcome.awaited, outcome.rounds) == (2, 1)


def test_a_decision_on_what_it_asked_before_changes_nothing():
    outcome = told(accepted(), suspended(2, "c"), resumed(2), suspended(5, "c"))
    outcome.decide("c", 2)
    assert outcome.waits


@pytest.mark.parametrize("stale", [suspended(2, "c"), resumed(1)])
def test_what_it_said_before_it_went_on_changes_nothing(stale):
    outcome = told(accepted(), suspended(2, "c"), resumed(2), stale)
    assert not outcome.waits
    assert outcome.awaited == 2


def test_its_end_heard_twice_is_no_new_round():
    outcome = told(accepted(), suspended(2, "c"), resumed(2), finished(), finished())
    assert outcome.rounds == 1


def test_a_cancelled_run_does_not_wait():
    outcome = told(accepted())
    outcome.cancel()
    outcome.hear(suspended(2, "c"))
    assert not outcome.waits


@pytest.mark.parametrize("event", [accepted(fingerprint="theirs"), finished(fingerprint="theirs")])
def test_what_another_request_became_is_not_ours(event):
    outcome = told(event, fingerprint="ours")
    assert outcome.disputed
    assert not outcome.accepted
    assert outcome.result is None


def test_a_rejection_counts_for_the_request_that_it_names():
    outcome = told(accepted())
    outcome.request = 3
    outcome.hear(rejected(4))
    outcome.hear(rejected(None))
    assert outcome.refused is None
    outcome.hear(rejected(3))
    assert outcome.refused is not None
    assert outcome.refused.message == "refused 3"


def test_a_run_says_whether_it_sends_chunks():
    assert told(accepted()).streams
    assert not told(accepted(stream=False)).streams
