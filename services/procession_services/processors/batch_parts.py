"""`batch-parts`: fewer and larger text chunks (builtins.md 9).

No model. The clock is the runtime's: after `maxWaitTime` it has the batch flushed, also when nothing more comes, and at
the end of the stream (D-10). So every character and every control chunk arrives, in order.
"""

from typing import Any, cast

from pydantic import Field

from procession.args import OutputStreamArgs, State, own
from procession.processor import Options, Processor
from procession_schemas.chunks import ENDING_TYPES, Chunk


class BatchPartsOptions(Options):
    """Options of `batch-parts`."""

    batch_size: int | None = Field(
        default=5, ge=0, description="Parts in a batch; 0 and 1 join nothing, null sets no limit."
    )
    max_wait_time: float | None = Field(
        default=None, ge=0, description="Milliseconds after which a batch goes out, however small; 0: never."
    )
    emit_on_non_text: bool | None = Field(
        default=True,
        description="Whether a part that is not text sends the batch out first; otherwise it joins the batch.",
    )


class BatchParts(Processor[BatchPartsOptions]):
    """Joins text deltas of one block that follow each other."""

    id = "batch-parts"
    name = "Batch Parts"
    description = "Joins small text chunks into larger ones."

    def process_output_stream(self, args: OutputStreamArgs) -> Chunk | list[Chunk] | None:
        """Keeps a text delta until its batch is full; other parts send the batch out before them."""
        part, options = args.part, self.options
        batch = _batch(args.state, args.place)
        if part["type"] == "step-start":  # what a rejected attempt left
            batch.clear()
        if part["type"] != "text-delta" and (options.emit_on_non_text or part["type"] in ENDING_TYPES):
            return [*self.flush_stream(args), part] if batch else part
        batch.append(part)
        if options.batch_size is not None and len(batch) >= options.batch_size:
            flushed = self.flush(args.state, args.place)
            self._wait(args, anew=True)
            return flushed
        self._wait(args, anew=len(batch) == 1)
        return None

    def flush_stream(self, args: OutputStreamArgs) -> list[Chunk]:
        """Gives out the batch: the time is up, a part that is no text comes, or the stream has ended."""
        out: list[Chunk] = []
        while (chunk := self.flush(args.state, args.place)) is not None:
            out.append(chunk)
        self._wait(args, anew=True)
        return out

    def flush(self, state: State, place: int = 0) -> Chunk | None:
        """Takes one chunk out of the batch: the deltas at its beginning, joined, or one other part (R-BAT-3)."""
        batch = _batch(state, place)
        size = _run(batch)
        taken = batch[:size]
        del batch[:size]
        return _joined(taken) if size > 1 else taken[0] if taken else None

    def _wait(self, args: OutputStreamArgs, *, anew: bool) -> None:
        """Has the batch flushed in time; `anew` when the batch begins, goes on after a flush, or is empty."""
        if self.options.max_wait_time and anew:
            waiting = _batch(args.state, args.place)
            args.wake_after(self.options.max_wait_time / 1000 if waiting else None)


def _batch(state: State, place: int) -> list[Chunk]:
    """The batch of the processor at that place of the chain; two of them may share a state (R-BAT-10)."""
    batch: list[Chunk] = own(state, "batch", str(place)).setdefault("parts", [])
    return batch


def _run(batch: list[Chunk]) -> int:
    """How many parts at the beginning make one chunk; deltas of several blocks do not mix (D-50)."""
    if not batch or batch[0]["type"] != "text-delta":
        return min(len(batch), 1)
    block = batch[0]["payload"].get("id")
    for size, part in enumerate(batch):
        if part["type"] != "text-delta" or part["payload"].get("id") != block:
            return size
    return len(batch)


def _joined(parts: list[Chunk]) -> Chunk:
    """One delta; what else the payloads say is kept, the last word counting (D-51)."""
    payload: dict[str, Any] = {}
    for part in parts:
        payload |= part["payload"]
    payload["text"] = "".join(part["payload"].get("text") or "" for part in parts)
    return cast("Chunk", {**parts[0], "payload": payload})
