"""Whom a question goes to while nobody says anything to it."""

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
        self.patience: list[float] = []
        self._until = until

    async def ask(self, subject: str, _body: bytes) -> None:
        self.asked.append(subject)

    async def heard(self, seconds: float) -> bytes:
        self.patience.append(seconds)
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


async def test_the_first_is_anybody_and_the_others_are_replicas_that_live(living):
    inbox: Any = Silent(until=3)
    assert await first_answer(living, inbox, AT, lambda: b"?") == b"yes"
    assert inbox.asked == [subjects.api(*AT), *[subjects.api(*AT, "one")] * 2]


async def test_questions_that_have_lost_the_same_replica_part(living):
    """One of them may end whoever is asked, and the others with him."""
    inboxes: list[Any] = [Silent(until=3), Silent(until=3)]
    for inbox in inboxes:
        await first_answer(living, inbox, AT, lambda: b"?")
    one, other = (inbox.patience for inbox in inboxes)
    assert one[0] == other[0] == alive._SILENT_SECONDS
    assert alive._SILENT_SECONDS < one[1] != other[1] > alive._SILENT_SECONDS
