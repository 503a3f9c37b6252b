"""Puts the chunk batches of a run into order: every chunk once, whatever came twice, late or out of order."""

from collections.abc import Mapping
from typing import Any

__all__ = ["ChunkOrder"]


class ChunkOrder:
    """The reading position in the chunks of one run; pure, and indifferent to where batches come from.

    Chunks are numbered from 0 over the whole run and numbers only rise. `position` is the number of the next
    chunk, that is, how many were handed out; a later reader that gets it as `after` goes on there.
    """

    def __init__(self, after: int = 0) -> None:
        self.position = after
        self._waiting: dict[int, dict[str, Any]] = {}
        self._resets: dict[int, dict[str, Any]] = {}
        self._announced = -1
        self._total: int | None = None

    def add(self, batch: Mapping[str, Any]) -> None:
        """Takes a ChunkBatch as a dict; chunks that were handed out or wait already are ignored.

        A batch with `reset` is announced by a `reset` chunk, `{"from": number}`, unless it begins with one:
        in front of the batch's first chunk, whose number it shares.
        """
        first, chunks = int(batch["seq"]), batch.get("chunks", ())
        if batch.get("reset") is not None and first >= self.position and first > self._announced:
            self._resets.setdefault(first, _reset(batch))
        if batch.get("end"):
            self._total = first + len(chunks)
        for number, chunk in enumerate(chunks, first):
            if number >= self.position:
                self._waiting.setdefault(number, chunk)

    def pop(self) -> dict[str, Any] | None:
        """The next chunk in order; None when it has not come yet."""
        chunk = self._waiting.get(self.position)
        if chunk is None:
            return None
        reset = self._resets.pop(self.position, None)
        if reset is not None:
            self._announced = self.position
            if chunk["type"] != "reset":
                return reset
        del self._waiting[self.position]
        self.position += 1
        return chunk

    @property
    def ready(self) -> bool:
        """Tells whether `pop` has a chunk."""
        return self.position in self._waiting

    @property
    def gap(self) -> tuple[int, int] | None:
        """The numbers of the first and the last chunk that later ones wait for; None without a gap."""
        if not self._waiting or self.ready:
            return None
        return self.position, min(self._waiting) - 1

    @property
    def ended(self) -> bool:
        """Tells whether the last chunk of the run was handed out."""
        return self._total is not None and self.position >= self._total

    def reopen(self) -> None:
        """Expects more chunks behind the end, since the run goes on."""
        self._total = None


def _reset(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "reset", "runId": batch.get("run"), "from": "SYSTEM", "payload": {"from": batch["reset"]}}
