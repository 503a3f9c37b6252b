"""What a sender knows of its stream."""

from pathlib import Path

import orjson
import pytest

from procession.errors import ProcessorError
from procession.testing.environment import DictStore
from procession_services.processor_host.stream_session import WINDOW, WINDOW_BYTES, Session

PAGE = 4096
MANY = 50_000


async def _lease():
    return {}


@pytest.fixture
async def session():
    return Session("s", [], _lease, DictStore())


def delta(number, text="word"):
    return {"type": "text-delta", "payload": {"id": "t", "text": f"{text} {number}"}}


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


async def test_a_chunk_that_is_kept_takes_little_more_than_its_text(session):
    before = resident()
    for number in range(MANY):
        session.add([delta(number)])
    assert (resident() - before) / MANY < 300


async def test_what_is_kept_is_sent_as_it_is(session):
    chunks = [delta(number) for number in range(5)]
    session.add(chunks)
    assert orjson.loads(orjson.dumps(session.chunks())) == chunks
    assert orjson.loads(orjson.dumps(session.chunks(1, 3))) == chunks[1:3]


async def test_there_is_room_until_so_many_chunks_or_bytes_are_unacknowledged(session):
    session.add([delta(number, "x" * 20) for number in range(WINDOW)])
    session.sent, session.flying = WINDOW - 1, session.size(0, WINDOW - 1)
    assert session.has_room
    session.sent = WINDOW
    assert not session.has_room
    session.acknowledge(1)
    assert session.has_room
    session.flying = WINDOW_BYTES
    assert not session.has_room


async def test_what_is_acknowledged_or_sent_again_is_no_longer_on_its_way(session):
    session.add([delta(number) for number in range(10)])
    session.sent, session.flying = 10, session.size(0, 10)
    session.acknowledge(4)
    assert session.flying == session.size(4, 10)
    session.acknowledge(3)
    assert (session.acked, session.flying) == (4, session.size(4, 10))
    session.send_again(6)
    assert (session.due, session.flying) == (True, session.size(4, 6))


async def test_what_is_acknowledged_before_it_is_sent_again_is_no_longer_due(session):
    """The replica had got all of it before the connection was lost."""
    session.add([delta(number) for number in range(10)])
    session.sent, session.flying = 10, session.size(0, 10)
    session.send_again(1)
    session.acknowledge(10)
    assert (session.sent, session.due, session.flying) == (10, False, 0)
    session.add([delta(10)])
    assert session.due
    assert session.has_room


async def test_the_next_attempt_goes_on_behind_what_clients_have_of_those_before(session):
    assert session.resumed(0) == {}
    session.attempt = 1
    session.left()
    assert session.resumed(0) == {"resume": True, "after": 0, "anew": False, "life": 0}
    session.attempt, session.life = 2, 5
    session.left()
    assert session.resumed(0) == {"resume": True, "after": 2, "anew": False, "life": 5}
    assert session.resumed(1)["anew"]
    session.timed = True
    assert session.resumed(0)["anew"]


async def test_a_chunk_that_is_no_json_fails_by_its_name(session):
    with pytest.raises(ProcessorError, match="Integer exceeds 64-bit range") as failed:
        session.add([delta(1), {"type": "x", "payload": {"n": 2**70}}])
    assert failed.value.code == "CHUNK_NOT_SENDABLE"
    assert not session.raw
