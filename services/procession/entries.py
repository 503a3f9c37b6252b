"""The messages of a conversation with where they came from, by the time at which they were made (R-ML-5)."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from procession.merging import keep_outcomes, may_merge, merge
from procession.messages import refresh_flat, timestamp
from procession.parts import MAPPINGS
from procession_schemas.messages import Message, Source

_TICK: Final = timedelta(milliseconds=1)


class Entry(Struct, eq=False):
    """A stored message; `saved` once it was drained."""

    message: Message
    source: Source
    saved: bool = False

    @property
    def time(self) -> str:
        """When it was made, as far as it says."""
        return self.message["createdAt"]

    def may_take(self, message: Message, source: Source) -> bool:
        """Whether a message behind it may become part of it."""
        joins = source != "memory" and message["role"] == "assistant"
        return joins and may_merge(self.message, message)

    def take(self, message: Message, source: Source) -> None:
        """Merges a message; what has to be saved stays so, whatever context comes to it."""
        merge(self.message, message)
        if source != "context" or self.source == "memory":
            self.source = source
        self.saved = False

    def replace(self, message: Message, source: Source) -> None:
        """Puts a message in the place of the stored one with its id (R-ML-8, D-18)."""
        stored = self.message
        if source == "memory" and self.source != "memory":
            keep_outcomes(stored, message)
            return
        if source != "memory" and self.source == "memory":
            keep_outcomes(message, stored)
        if stored["role"] != message["role"] or stored["content"] != message["content"]:
            self.message, self.source, self.saved = message, source, False


class Entries:
    """The entries of a conversation, and the last time that was given to one; `now` tells the time."""

    def __init__(self, now: Callable[[], str]) -> None:
        self.all: list[Entry] = []
        self.last_stamp = ""
        self._now = now

    def ordered(self) -> list[Entry]:
        """The entries by `createdAt`, stable; an edit in place may have changed it."""
        self.all.sort(key=_time)
        return self.all

    def fresh(self) -> list[Entry]:
        """The same for readers: flat copies follow what was edited in place."""
        for entry in self.ordered():
            refresh_flat(entry.message)
        return self.all

    def newest(self) -> Entry | None:
        """The newest entry, behind which the next timestamps are."""
        newest = self.ordered()[-1] if self.all else None
        if newest:
            self.stamped(newest.time)
        return newest

    def index(self) -> dict[str, Entry]:
        """The entries by the ids of their messages."""
        return {entry.message["id"]: entry for entry in self.all}

    def find(self, message_id: str | None) -> Entry | None:
        """The entry of a message; the last one where several have its id."""
        for entry in reversed(self.all):
            if entry.message["id"] == message_id:
                return entry
        return None

    def remove(self, doomed: Callable[[Entry], bool]) -> list[Message]:
        """Removes entries, and gives their messages."""
        gone = [entry.message for entry in self.fresh() if doomed(entry)]
        self.all = [entry for entry in self.all if not doomed(entry)]
        return gone

    def stamp(self) -> str:
        """A timestamp after every one so far."""
        now, latest = self._now(), self.last_stamp
        self.last_stamp = now if now > latest else timestamp(datetime.fromisoformat(latest) + _TICK)
        return self.last_stamp

    def stamped(self, time: str) -> None:
        """Notes that a message has that time."""
        self.last_stamp = max(self.last_stamp, time)


def known(like: Any, index: Mapping[str, Entry]) -> Entry | None:
    """The entry of which something that is like a message has the id."""
    message_id = like.get("id") if isinstance(like, MAPPINGS) else None
    return index.get(message_id) if isinstance(message_id, str) else None


def _time(entry: Entry) -> str:
    return entry.message["createdAt"]
