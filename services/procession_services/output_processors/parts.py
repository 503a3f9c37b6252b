"""`streamParts` of every run that this replica works for (R-OS-6).

They stay in memory and never travel; what one stream added is appended to a log in Redis, from which another replica
catches up by reading the entries that it lacks. The streams of a run are numbered, and one that is made anew has
another id; whoever opens one knows those before it, so a replica that had all of them asks nobody.
"""

import asyncio
import logging
from collections import OrderedDict
from typing import Any, Self

import orjson
from msgspec import Struct

from procession.context import RunContext
from procession.errors import ProcessorError
from procession.processor import Hook
from procession_schemas.chunks import Chunk
from procession_services.runtime.store import RunStore

log = logging.getLogger(__name__)
_PATIENCE_SECONDS = 0.5
_LOOK_SECONDS = 0.025
_TOLD_BYTES = 16 * 1024
"""The longest entry that goes to its sender, which wakes Redis and this process once less."""
_HELD_BYTES = 16 * 1024 * 1024
"""JSON of the chunks of all runs that stay in memory; runs that were not worked on for longest go first."""
_HELD_SECONDS = 60.0
"""A run that was not worked on for so long may have ended elsewhere; one that goes on has its log read again."""


class StreamPlace(Struct, frozen=True):
    """The place of a stream among those of its run: behind the ones with these ids."""

    tenant: str
    run: str
    ids: tuple[int, ...]

    @classmethod
    def of(cls, ctx: RunContext) -> Self:
        """The place of the next stream."""
        return cls(ctx.tenant, ctx.run_id, tuple(ctx.stream_ids))

    @property
    def number(self) -> int:
        """How many streams were before it."""
        return len(self.ids)

    def follows(self, stream: int, id_: int | None) -> bool:
        """Whether that stream was before it, and was not in vain; of one that is lost, nobody knows the id."""
        return stream < self.number and id_ in (None, self.ids[stream])

    def follows_all(self, ids: list[int | None]) -> bool:
        """Whether it follows the first streams, which have these ids."""
        known = tuple(ids)
        return self.ids[: len(known)] == known or all(self.follows(*each) for each in enumerate(known))


class RunParts(Struct):
    """What each stream processor of a run has received, by its place in the array; and the ids of its first streams."""

    lists: list[list[Chunk]] = []
    entries: int = 0
    streams: list[int | None] = []
    size: int = 0
    kept_at: float = 0.0

    def lists_of(self, links: int) -> list[list[Chunk]]:
        """The lists of so many processors."""
        while len(self.lists) < links:
            self.lists.append([])
        return self.lists[:links]

    def add(self, entry: dict[str, Any], size: int) -> None:
        """Adds the next stream, as it was logged in so many bytes."""
        self.streams.append(entry["id"])
        self.size += size
        for received, added in zip(self.lists_of(len(entry["lists"])), entry["lists"], strict=True):
            received.extend(entry["lists"][0] if added is None else added)

    def grown(self, before: list[int]) -> bool:
        """Whether any list is longer than it was."""
        return any(len(self.lists[k]) > start for k, start in enumerate(before))


class PartsStore:
    """Keeps the parts of recent runs, each while no stream of the run has them."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._runs: OrderedDict[tuple[str, str], RunParts] = OrderedDict()
        self._held = 0

    async def open(self, place: StreamPlace) -> RunParts:
        """The parts before that stream, which are its own: it appends to the lists, and then calls `save` or `keep`.

        One that comes to no end calls neither; what it has received goes with it.
        """
        parts = self._taken(place)
        if parts is None or not place.follows_all(parts.streams):
            parts = RunParts()  # a stream was made anew: what it had received here does not count
        clock = asyncio.get_running_loop().time
        until = clock() + _PATIENCE_SECONDS
        while len(parts.streams) < place.number:
            lost = clock() > until
            if lost:
                log.warning("streamParts of run %s are incomplete, as is their log in Redis", place.run)
            await self._catch_up(parts, place, lost=lost)
            if len(parts.streams) < place.number:
                parts.entries = 0  # what seemed to be in vain may not be
                await asyncio.sleep(_LOOK_SECONDS)  # whoever had the stream before is still writing
        return parts

    async def _catch_up(self, parts: RunParts, place: StreamPlace, *, lost: bool) -> None:
        """Adds the streams that are logged, up to one that is missing; where that is `lost`, also those behind it."""
        raws = await self._store.load_parts(place.tenant, place.run, parts.entries)
        logged = [orjson.loads(raw) for raw in raws]
        parts.entries += len(logged)
        counting = [n for n, entry in enumerate(logged) if place.follows(entry["stream"], entry["id"])]
        latest = {logged[n]["stream"]: n for n in counting}  # of one that was made anew
        while (stream := len(parts.streams)) < place.number:
            if (n := latest.get(stream)) is not None:
                parts.add(logged[n], len(raws[n]))
            elif lost:
                parts.streams.append(None)
            else:
                return

    async def save(
        self, place: StreamPlace, id_: int, parts: RunParts, before: list[int], *, by_sender: bool = False
    ) -> str | None:
        """Logs what the stream added after the lengths in `before`, under its id, and keeps it.

        Returns:
            The entry, if it is short and its sender can log it: with the context that knows of the stream.

        Raises:
            ProcessorError: A chunk holds what is not JSON.
        """
        lists = [parts.lists[k][start:] for k, start in enumerate(before)]
        compact = [None if k and added == lists[0] else added for k, added in enumerate(lists)]
        try:
            entry = orjson.dumps({"stream": place.number, "id": id_, "lists": compact})
        except TypeError as error:
            text = f"a chunk that a stream hook was given contains something that is not JSON: {error}"
            raise ProcessorError(
                text, processor_id="", hook=Hook.OUTPUT_STREAM.value, code="CHUNK_NOT_SENDABLE"
            ) from error
        told = by_sender and len(entry) <= _TOLD_BYTES
        if not told:
            await self._store.append_parts(place.tenant, place.run, entry)
        parts.streams[place.number :] = [id_]
        parts.size += len(entry)
        self.keep(place, parts)
        return entry.decode() if told else None

    def keep(self, place: StreamPlace, parts: RunParts) -> None:
        """Keeps them for the next stream of the run; drops those of others that are old, or where all are too large."""
        self._taken(place)
        self._runs[place.tenant, place.run] = parts
        self._held += parts.size
        parts.kept_at = asyncio.get_running_loop().time()
        while len(self._runs) > 1:
            oldest = next(iter(self._runs.values()))
            if self._held <= _HELD_BYTES and oldest.kept_at > parts.kept_at - _HELD_SECONDS:
                return
            self._runs.popitem(last=False)
            self._held -= oldest.size

    def _taken(self, place: StreamPlace) -> RunParts | None:
        parts = self._runs.pop((place.tenant, place.run), None)
        self._held -= parts.size if parts else 0
        return parts
