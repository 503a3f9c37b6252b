"""Puts the chunk batches of a run into order: every chunk once, whatever came twice, late or out of order."""

from collections.abc import Mapping
from typing import Any

__all__ = ["ChunkOrder"]


class ChunkOrder:
    """The reading position in the chunks of one run; pure, and indifferent to where batches come from.

    Chunks are numbered from 0 over the whole run. `position` is the number of the next chunk, that is, how many were
    handed out; a later reader that gets it as `after` goes on there. Whoever does work again that somebody else had
    begun says so with a greater `fence`: from its first number on, chunks of a smaller one change nothing any more.
    """

    def __init__(self, after: int = 0) -> None:
        self.position = after
        self._begun = after
        self._waiting: dict[int, tuple[int, dict[str, Any]]] = {}
        self._resets: dict[int, dict[str, Any]] = {}
        self._announced = -1
        self._fences: dict[int, int] = {}
        self._handed: list[tuple[int, int]] = []
        self._total: int | None = None
        self._ended_by = -1
        self._resume_fence = 0

    def add(self, batch: Mapping[str, Any]) -> None:
        """Takes a ChunkBatch as a dict; chunks that were handed out or wait already are ignored.

        A batch with `reset` is announced by a `reset` chunk, `{"from": number}`, unless it begins with one:
        in front of the batch's first chunk, whose number it shares. Chunks from that number on that a smaller fence
        had us hand out are taken back by it.
        """
        first, chunks, fence = int(batch["seq"]), batch.get("chunks", ()), int(batch.get("fence") or 0)
        self._fences[fence] = min(first, self._fences.get(fence, first))
        limit = min((start for other, start in self._fences.items() if other > fence), default=None)
        if limit is not None:
            chunks = chunks[: max(0, limit - first)]
        elif batch.get("end") and fence >= self._resume_fence:
            self._total, self._ended_by = first + len(chunks), fence
        elif fence > self._ended_by:
            self._total = None  # who does the end again will say so
        if batch.get("reset") is not None and (limit is None or first < limit):
            self._reset(batch, first, fence)
        for number, chunk in enumerate(chunks, first):
            if number >= self.position and self._waiting.get(number, (-1,))[0] < fence:
                self._waiting[number] = fence, chunk

    def _reset(self, batch: Mapping[str, Any], first: int, fence: int) -> None:
        """Notes that chunks from `batch["reset"]` on count no more, and goes back where we had gone too far."""
        for number in [number for number in self._waiting if number >= first]:
            if self._waiting[number][0] < fence:
                del self._waiting[number]
        too_far = self._begun <= first < self.position and self._handed_out(first) < fence
        if too_far:
            self.position = first
            self._total, self._announced = None, -1
        if too_far or (first >= self.position and first > max(batch["reset"], self._announced)):
            self._resets.setdefault(first, _reset(batch))

    def _handed_out(self, number: int) -> int:
        """The fence of a chunk that was handed out."""
        return next((fence for start, fence in reversed(self._handed) if start <= number), -1)

    def pop(self) -> dict[str, Any] | None:
        """The next chunk in order; None when it has not come yet."""
        if self.position not in self._waiting:
            self._skip()
        found = self._waiting.get(self.position)
        if found is None:
            return None
        fence, chunk = found
        reset = self._resets.pop(self.position, None)
        if reset is not None:
            self._announced = self.position
            if chunk["type"] != "reset":
                return reset
        del self._waiting[self.position]
        if not self._handed or self._handed[-1][1] != fence:
            self._handed.append((self.position, fence))
        self.position += 1
        return chunk

    def _skip(self) -> None:
        """Leaves out what has not come of the chunks that a reset takes back."""
        for first, reset in self._resets.items():
            start = reset["payload"]["from"]
            if start <= self.position < first <= min(self._waiting, default=-1):
                if start == self.position:  # nothing was handed out that could be taken back
                    del self._resets[first]
                self.position = first
                return

    @property
    def waiting(self) -> int:
        """How many chunks wait to be handed out."""
        return len(self._waiting)

    @property
    def ready(self) -> bool:
        """Tells whether `pop` has a chunk."""
        if self.position not in self._waiting:
            self._skip()
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

    def reopen(self, fence: int) -> None:
        """Expects more chunks behind an end of a smaller fence, since the run goes on."""
        self._resume_fence = fence
        if self._ended_by < fence:
            self._total = None


def _reset(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "reset", "runId": batch.get("run"), "from": "SYSTEM", "payload": {"from": batch["reset"]}}
