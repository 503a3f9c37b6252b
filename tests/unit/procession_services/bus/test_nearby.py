import asyncio
from contextvars import ContextVar

import pytest

from procession_services.bus import Nearby, RequestTimeoutError


@pytest.fixture
def nearby():
    return Nearby()


@pytest.fixture
def heard(nearby):
    """What is told on `here`, on `here.*` and on `here.*.*`."""
    told = []
    for stars in ("", ".*", ".*.*"):
        nearby.add(f"here{stars}", lambda *message, at=stars: told.append((at, *message)), "us")
    return told


async def turn():
    await asyncio.sleep(0)


async def test_messages_are_heard_in_their_order_and_not_before_who_tells_has_gone_on(nearby, heard):
    assert nearby.tell("here", b"1", "reply")
    assert nearby.tell("here", b"2", "")
    assert heard == []
    await turn()
    assert heard == [("", "here", b"1", "reply"), ("", "here", b"2", "")]


@pytest.mark.parametrize(("subject", "stars"), [("here.a", ".*"), ("here.a.b", ".*.*")])
async def test_one_or_two_last_tokens_may_be_any(nearby, heard, subject, stars):
    assert nearby.tell(subject, b"", "")
    await turn()
    assert heard == [(stars, subject, b"", "")]


@pytest.mark.parametrize("subject", ["there", "here.a.b.c", "her", "a.here"])
async def test_nobody_hears_what_nobody_listens_to(nearby, heard, subject):
    assert not nearby.has(subject)
    assert not nearby.tell(subject, b"", "")
    await turn()
    assert heard == []


async def test_who_is_gone_hears_only_what_was_told_before(nearby, heard):
    nearby.tell("here", b"before", "")
    nearby.remove("here", "somebody else")
    assert nearby.has("here")
    nearby.leave("us")
    assert not nearby.tell("here", b"after", "")
    await turn()
    assert [body for *_, body, _ in heard] == [b"before"]


async def test_a_listener_that_fails_keeps_nobody_from_hearing(nearby, heard, caplog):
    nearby.add("broken", lambda *_: 1 / 0, "us")
    nearby.tell("broken", b"", "")
    nearby.tell("here", b"", "")
    await turn()
    assert len(heard) == 1
    assert "failed to handle a message on broken" in caplog.text


async def test_an_answer_comes_back(nearby):
    nearby.add("ask", lambda _subject, body, reply: nearby.tell(reply, body.upper(), ""), "us")
    assert await nearby.ask("ask", b"what", 5) == b"WHAT"
    assert await asyncio.gather(*(nearby.ask("ask", b"%d" % n, 5) for n in range(3))) == [b"0", b"1", b"2"]


async def test_who_waits_long_enough_for_an_answer_is_told_so_and_a_late_one_goes_nowhere(nearby):
    replies = []
    nearby.add("ask", lambda _subject, _body, reply: replies.append(reply), "us")
    with pytest.raises(RequestTimeoutError):
        await nearby.ask("ask", b"", 0.01)
    assert not nearby.has(replies[0])
    assert nearby.tell(replies[0], b"late", "")  # NATS knows nobody there


async def test_only_who_answers_knows_what_who_asks_knows(nearby):
    known: ContextVar[str] = ContextVar("known", default="nothing")
    found = []

    def look(_subject, _body, reply):
        found.append(known.get())
        nearby.tell(reply or "elsewhere", b"", "")

    nearby.add("ask", look, "us")
    known.set("a trace")
    nearby.tell("ask", b"", "")
    await nearby.ask("ask", b"", 5)
    assert found == ["nothing", "a trace"]


async def test_the_first_answer_counts(nearby):
    def twice(_subject, _body, reply):
        nearby.tell(reply, b"first", "")
        nearby.tell(reply, b"second", "")

    nearby.add("ask", twice, "us")
    assert await nearby.ask("ask", b"", 5) == b"first"
    await turn()
