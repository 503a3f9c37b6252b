"""Whom a question goes to while nobody says anything to it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from procession_schemas import subjects
from procession_services.bus import RequestTimeoutError, alive
from procession_services.bus.alive import first_answer

AT = ("input_processors", "acme", "guard")


class Silent:
    """A place where nothing is heard until somebody has been asked so often."""

    address = "here"
    has_heard = False

    def __init__(self, until: int) -> None:
        self.asked: list[str] = []
        self._until = until

    async def ask(self, subject: str, _body: bytes) -> None:
        self.asked.append(subject)

    async def heard(self, _seconds: float) -> bytes:
        if len(self.asked) < self._until:
            raise RequestTimeoutError(self.address)
        return b"yes"


@pytest.fixture
def living() -> Any:
    """A bus on which one replica lives."""

    async def request(subject: str, _body: bytes, _seconds: float) -> bytes:
        assert subject == subjects.offer("input_processors")
        return b'{"replica": "one"}'

    return SimpleNamespace(request=request)


async def test_the_first_is_anybody_and_the_others_are_replicas_that_live(living, monkeypatch):
    monkeypatch.setattr(alive, "random", lambda: 0.0)
    inbox: Any = Silent(until=3)
    assert await first_answer(living, inbox, AT, lambda: b"?") == b"yes"
    assert inbox.asked == [subjects.api(*AT), *[subjects.api(*AT, "one")] * 2]


async def test_questions_that_have_lost_the_same_two_replicas_part(living, monkeypatch):
    """One of them may end whoever is asked, and the others with him."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(alive, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    for _ in range(2):
        inbox: Any = Silent(until=3)
        await first_answer(living, inbox, AT, lambda: b"?")
    one, other = pauses
    assert one != other
