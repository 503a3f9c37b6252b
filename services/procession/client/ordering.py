"""Puts the chunk batches of a run into order: every chunk once, whatever came twice, late or out of order."""

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["ChunkOrder"]


class ChunkOrder:
    """The reading position in the chunks of one run; pure, and indifferent to where batches come from.

    Chunks are numbered from 0 over the whole run. `position` is the number of the next chunk, that is, how many were
    handed out; a later reader that gets it as `after` goes on there. Whoever does work again that somebody else had
    begun says so with a greater `fence`: from its first number on, chunks of a smaller one change nothing any more.
    `anew` is set where all that is stored has to be added once more, since batches came too late.
    """

    def __init__(self, after: int = 0) -> None:
        self.position = after
        self.anew = False
        self._begun = after
        self._run: str | None = None
        self._waiting: dict[int, tuple[int, dict[str, Any]]] = {}
        self._resets: dict[int, tuple[int, int]] = {}
        self._shown = after
        self._fences: dict[int, tuple[int, int]] = {}
        self._limits: dict[int, float] = {}
        self._greatest = -1
        self._said_to = 0
        self._handed_by = -1
        self._total: int | None = None
        self._ended_by = -1
        self._resume_fence = 0

    def add(self, batch: Mapping[str, Any]) -> None:
        """Takes a ChunkBatch as a dict; chunks that were handed out or wait already are ignored.

        A batch with `reset` that takes back what was handed out is announced by a `reset` chunk, `{"from": number}`,
        in front of the batch's first chunk, whose number it shares.
        """
        first, chunks, fence = int(batch["seq"]), batch.get("chunks", ()), int(batch.get("fence") or 0)
        reset = batch.get("reset")
        self._run = batch.get("run")
        self._note(fence, first, first if reset is None else reset)
        limit = self._limit(fence)
        if limit == math.inf:
            if batch.get("end") and fence >= self._resume_fence:
                self._total, self._ended_by = first + len(chunks), fence
            elif fence > self._ended_by:
                self._total = None  # who does the end again will say so
        if reset is not None and first <= limit:
            self._reset(reset, first, fence)
        for number, chunk in enumerate(chunks, first):
            if self.position <= number < limit:
                self._waiting[number] = fence, chunk
        self._said_to = max(self._said_to, first + len(chunks))

    def _note(self, fence: int, first: int, start: int) -> None:
        """Notes where a fence begins, and from where on it replaces others; drops waiting chunks that it replaces."""
        begun = self._fences.get(fence, (first + 1, start))
        if first >= begun[0] and start >= begun[1]:
            return
        follows = min(first, start) >= self._said_to
        before = {} if follows else {each: self._limit(each) for each in self._fences}
        self._fences[fence] = min(first, begun[0]), min(first, start, begun[1])
        self._greatest = max(fence, self._greatest)
        self._limits.clear()
        if follows:
            return
        unheard = start < first < self.position and fence < self._handed_by and first <= self._limit(fence)
        if unheard or any(self._limit(each) > limit for each, limit in before.items()):
            self._start_over()
        self._waiting = {n: said for n, said in self._waiting.items() if n < self._limit(said[0])}
        self._resets = {n: said for n, said in self._resets.items() if n <= self._limit(said[0])}
        if self.position < self._shown:  # we have gone back there, whoever said so
            self._resets.setdefault(self.position, (self._greatest, self.position))

    def _start_over(self) -> None:
        """Goes back to where reading began, or to the last reset: somebody who had lost the work was believed.

        What he took back has been dropped here, so all that is stored has to be added `anew`.
        """
        self.anew, self.position, self._handed_by, self._total = True, self._begun, -1, None
        self._waiting.clear()
        self._resets = {self._begun: (self._greatest, self._begun)}

    def _limit(self, fence: int) -> float:
        """The number from which on chunks of that fence do not count; infinite for the greatest fence."""
        if fence == self._greatest:
            return math.inf
        if not self._limits:
            limit = math.inf
            for each in sorted(self._fences, reverse=True):
                self._limits[each] = limit
                first, start = self._fences[each]
                if first <= limit:  # else it is of somebody who does not know yet that others have the work
                    limit = min(start, limit)
        return self._limits[fence]

    def _reset(self, start: int, first: int, fence: int) -> None:
        """Notes that chunks from `start` on count no more, and goes back where we had gone too far."""
        if self._begun <= first < self.position and self._handed_by < fence:
            self.position, self._total = first, None
        if first >= self.position:
            self._resets[first] = fence, min(start, self._resets.get(first, (0, start))[1])

    def pop(self) -> dict[str, Any] | None:
        """The next chunk in order; None when it has not come yet."""
        following = self._following
        if (said := self._waiting.get(following)) is None:
            return None
        if self._resets and (start := self._taken_back(following)) < self._shown:
            self.position, self._shown, self._begun = following, start, min(start, self._begun)
            return {"type": "reset", "runId": self._run, "from": "SYSTEM", "payload": {"from": start}}
        del self._waiting[following]
        self._handed_by, chunk = said
        self.position = self._shown = following + 1
        return chunk

    def _taken_back(self, number: int) -> int:
        """The number from which on handed-out chunks are taken back when chunk `number` comes next."""
        passed = [self._resets.pop(to)[1] for to in list(self._resets) if to <= number]
        return min(passed, default=self._shown)

    @property
    def _following(self) -> int:
        """The number of the next chunk; missing ones that a reset takes back are passed over."""
        following = self.position
        if not self._resets or following in self._waiting:
            return following
        least = min(self._waiting, default=-1)
        while following < least:
            skipped = [to for to, (_, start) in self._resets.items() if start <= following < to <= least]
            if not skipped:
                break
            following = max(skipped)
        return following

    @property
    def waiting(self) -> int:
        """How many chunks wait to be handed out."""
        return len(self._waiting)

    @property
    def ready(self) -> bool:
        """Tells whether `pop` has a chunk."""
        return self._following in self._waiting

    @property
    def gap(self) -> tuple[int, int] | None:
        """The numbers of the first and the last chunk that later ones wait for; None without a gap."""
        following = self._following
        if not self._waiting or following in self._waiting:
            return None
        return following, min(self._waiting) - 1

    @property
    def ended(self) -> bool:
        """Tells whether the last chunk of the run was handed out."""
        return self._total is not None and self.position >= self._total

    def skip(self) -> None:
        """Goes on behind a gap, as if reading had begun there: what comes before is not kept any more."""
        if self.gap is not None:
            self.position = self._begun = self._shown = self.gap[1] + 1

    def reopen(self, fence: int) -> None:
        """Expects more chunks behind an end of a smaller fence, since the run goes on."""
        self._resume_fence = fence
        if self._ended_by < fence:
            self._total = None
