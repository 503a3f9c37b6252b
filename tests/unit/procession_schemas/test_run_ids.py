"""Which run a request is about."""

import pytest

from procession_schemas.run_ids import asked_id, derived_id


@pytest.mark.parametrize(
    ("body", "run_id"),
    [
        (b'{"runId": "r1"}', "r1"),
        (b'{"run_id": "r1", "input": 5}', "r1"),
        (b'{"runId": "r1", "timeout": NaN}', "r1"),
        (rb'{"input": "cut in two: \ud83d", "runId": "r1"}', "r1"),
        (b'{"runId": "r1", "input": "two\nlines"}', "r1"),
        (b'\xef\xbb\xbf{"runId": "r1"}', "r1"),
        (b'{"runId": "r1", "context": %s%s}' % (b"[" * 250, b"]" * 250), "r1"),
        (b'{"runId": "r1", "context": %s' % (b"[" * 100_000), None),
        (b'{"runId": "r1", "input": "\xe9"}', None),
        (b'{"runId": "%s"}' % (b"r" * 128), "r" * 128),
        (b'{"runId": "%s"}' % (b"r" * 129), None),
        (b'{"runId": "a b"}', None),
        (b'{"runId": 5}', None),
        (b"{}", None),
        (b"[]", None),
        (b"{", None),
    ],
)
def test_the_id_that_a_wrong_request_asks_for_is_found_where_there_is_one(body, run_id):
    assert asked_id(body) == run_id


@pytest.mark.parametrize(
    ("message_id", "run_id"),
    [
        ("order-17", "order-17"),
        ("o" * 128, "o" * 128),
        ("o" * 129, "run-5"),
        ("order 17", "run-5"),
        ("", "run-5"),
        (None, "run-5"),
    ],
)
def test_a_run_without_an_id_is_called_like_its_message_or_else_by_its_place(message_id, run_id):
    assert derived_id(message_id, 5) == run_id
