"""Why a stream has ended early, as its sender is told: always something that can be sent."""

from typing import Any

import orjson
import pytest

from procession.errors import ProcessorError, TripWire
from procession_services.output_processors.endings import ending, given_back
from tests.support.raising import RAISED

SURROGATE = "\ud800"


class Mute(Exception):  # noqa: N818 - the point is what it does not say
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def failed(text: Any, place: Any = "p") -> ProcessorError:
    return ProcessorError(text, processor_id=place, hook="processOutputStream", code="PROCESSOR_TIMEOUT")


def test_a_stream_that_is_given_back_has_not_failed():
    assert given_back("r", ConnectionError("no\nRedis")) == {
        "unknown": True,
        "away": "ConnectionError: no Redis",
    }


def test_an_abort_and_a_failure_say_who_and_why():
    told = ending(TripWire("no", processor_id="p", metadata={"n": 1}))
    assert told == {"tripwire": {"reason": "no", "processorId": "p", "metadata": {"n": 1}}}
    error = ending(failed("late"))["error"]
    assert (error["code"], error["message"], error["processorId"]) == ("PROCESSOR_TIMEOUT", "late", "p")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TripWire("no", processor_id="p", metadata={1}), "tripwire"),
        (TripWire("no", processor_id="p", metadata={"text": SURROGATE}), "tripwire"),
        (TripWire(SURROGATE, processor_id="p"), "tripwire"),
        (TripWire(ValueError("no"), processor_id="p"), "tripwire"),  # type: ignore[arg-type]
        (failed(SURROGATE), "error"),
    ],
)
def test_what_is_no_json_stays_an_abort_or_a_failure_of_whose_it_is(error, kind):
    told = orjson.loads(orjson.dumps(ending(error)))[kind]
    assert told["processorId"] == "p"
    assert told.get("code", "PROCESSOR_TIMEOUT") == "PROCESSOR_TIMEOUT"


@pytest.mark.parametrize(
    "error", [Mute(), failed("x", SURROGATE), failed("x", {1}), *(made() for made in RAISED)]
)
def test_whatever_is_raised_something_can_be_sent(error):
    assert orjson.loads(orjson.dumps(ending(error)))["error"]["message"]


@pytest.mark.parametrize("error", [failed("x" * 5_000_000), ValueError("x" * 5_000_000)])
def test_it_is_never_longer_than_a_message(error):
    assert len(orjson.dumps(ending(error))) < 10_000
