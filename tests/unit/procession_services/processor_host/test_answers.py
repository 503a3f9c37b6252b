"""Taking a model's answer into its run."""

import pytest

from procession.response import ResponseCollector
from procession_services.processor_host.answers import take_response
from tests.unit.procession.making import context


@pytest.mark.parametrize(
    ("cached", "kept"),
    [
        (None, {"fromCache": False, "warnings": []}),
        ({"chunks": []}, {"fromCache": True, "warnings": []}),
        (
            {"chunks": [], "warnings": None, "request": None, "rawResponse": None},
            {"fromCache": True, "warnings": []},
        ),
        (
            {"chunks": [], "warnings": ["w"], "request": {"body": "b"}, "rawResponse": {"id": "r"}},
            {"fromCache": True, "warnings": ["w"], "request": {"body": "b"}, "rawResponse": {"id": "r"}},
        ),
    ],
)
def test_a_cached_response_says_what_its_call_was(cached, kept):
    """R-CA-1, R-RS-5."""
    ctx = context()
    ctx.cached = cached
    take_response(ctx, ResponseCollector().to_dict(), [])
    assert ctx.response is not None
    names = ("fromCache", "warnings", "request", "rawResponse")
    assert {name: ctx.response[name] for name in names if name in ctx.response} == kept
