"""`streamParts` of every run that this replica works for (R-OS-6).

They stay in memory and never travel; what one stream added is appended to a log in Redis, from which another replica
catches up by reading the entries that it lacks. The streams of a run are numbered, and one that is made anew has
another id; whoever opens one knows those before it, so a replica that had all of them asks nobody.
"""

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Self

import orjson

from procession.context import RunContext
from procession.errors import ProcessorError
from procession.processor import Hook
from procession_schemas.chunks import Chunk
from procession_services.runtime.store import RunStore

log = logging.getLogger(__name__)
_PATIENCE_SECONDS = 0.5
_LOOK_SECONDS = 0.025
_HELD_BYTES = 16 * 1024 * 1024
"""JSON of the chunks of all runs that stay in memory; runs that were not worked on for longest go first."""


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """The place of a stream among those of its run: how many there were, and their ids where these are known."""

    tenant: str
    run: str
    number: int
    ids: tuple[int, ...]

    @classmethod
    def of(cls, ctx: RunContext) -> Self:
        """The place of the next stream; a version before counted them without ids."""
        ids = tuple(ctx.stream_ids) if len(ctx.stream_ids) == ctx.streams else ()
        return cls(ctx.tenant, ctx.run_id, ctx.streams, ids)

    def follows(self, stream: int, id_: int | None) -> bool:
        """Whether that stream was before it, and was not in vain."""
        return stream < self.number and (id_ is None or not self.ids or self.ids[stream] == id_)


@dataclass(slots=True)
class RunParts:
    """What each stream processor of a run has received, by its place in the array; and the ids of streams by number."""

    lists: list[list[Chunk]] = field(default_factory=list)
    entries: int = 0
    streams: dict[int, int | None] = field(default_factory=dict)
    size: int = 0

    def grown(self, before: list[int]) -> bool:
        """Whether any list is longer than it was."""
        return any(len(self.lists[k]) > start for k, start in enumerate(before))


class PartsStore:
    """Keeps the parts of recent runs."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._runs: OrderedDict[tuple[str, str], RunParts] = OrderedDict()
        self._held = 0

    async def open(self, place: StreamPlace, links: int) -> RunParts:
        """The parts before that stream; the caller appends to the lists and then calls `save` or `forget`."""
        run = place.tenant, place.run
        known = self._runs.get(run)
        if known and not all(place.follows(*stream) for stream in known.streams.items()):
            self.forget(
                *run
            )  # a stream is made anew, or was elsewhere: what it had received here does not count
        parts = self._runs.setdefault(run, RunParts())
        self._runs.move_to_end(run)
        while len(parts.lists) < links:
            parts.lists.append([])
        until = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        while not await self._complete(parts, place):
            if asyncio.get_running_loop().time() > until:
                log.warning("streamParts of run %s are incomplete: their log is", place.run)
                break
            await asyncio.sleep(_LOOK_SECONDS)  # whoever had the stream before is still writing
        return parts

    async def _complete(self, parts: RunParts, place: StreamPlace) -> bool:
        if len(parts.streams) < place.number:
            await self._catch_up(parts, place)
        return len(parts.streams) >= place.number

    async def _catch_up(self, parts: RunParts, place: StreamPlace) -> None:
        raws = await self._store.load_parts(place.tenant, place.run, parts.entries)
        logged = [orjson.loads(raw) for raw in raws]
        parts.entries += len(logged)
        self._hold(place.tenant, place.run, parts, sum(map(len, raws)))
        counting = [entry for entry in logged if place.follows(entry["stream"], entry.get("id"))]
        latest = {entry["stream"]: entry for entry in counting}  # of one that was made anew
        for stream in sorted(latest):
            if stream in parts.streams:
                continue
            entry = latest[stream]
            parts.streams[stream] = entry.get("id")
            first = entry["lists"][0] if entry["lists"] else []
            for k, added in enumerate(entry["lists"]):
                while len(parts.lists) <= k:
                    parts.lists.append([])
                parts.lists[k].extend(first if added is None else added)

    async def save(self, place: StreamPlace, id_: int, parts: RunParts, before: list[int]) -> None:
        """Logs what the stream added after the lengths in `before`, under its id.

        Raises:
            ProcessorError: A chunk holds what is not JSON.
        """
        lists = [parts.lists[k][start:] for k, start in enumerate(before)]
        compact = [None if k and added == lists[0] else added for k, added in enumerate(lists)]
        try:
            entry = orjson.dumps({"stream": place.number, "id": id_, "lists": compact})
        except TypeError as error:
            text = f"a chunk that a stream hook has got holds what is not JSON: {error}"
            raise ProcessorError(
                text, processor_id="", hook=Hook.OUTPUT_STREAM.value, code="CHUNK_NOT_SENDABLE"
            ) from error
        parts.streams[place.number] = id_
        self._hold(place.tenant, place.run, parts, len(entry))
        await self._store.append_parts(place.tenant, place.run, entry)

    def _hold(self, tenant: str, run: str, parts: RunParts, size: int) -> None:
        """Counts what a run has come to hold, and drops others where all hold too much."""
        parts.size += size
        if self._runs.get((tenant, run)) is not parts:
            return
        self._held += size
        while self._held > _HELD_BYTES and len(self._runs) > 1:
            _, oldest = self._runs.popitem(last=False)
            self._held -= oldest.size

    def forget(self, tenant: str, run: str) -> None:
        """Drops a run whose parts may be half-way; they are read again when needed."""
        parts = self._runs.pop((tenant, run), None)
        self._held -= parts.size if parts else 0
