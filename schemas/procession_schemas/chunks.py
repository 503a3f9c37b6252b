"""Chunks of a run's stream (core.md 11) and the batch in which they travel.

A chunk is a plain dict `{"type", "runId", "from", "payload"}`; `data-*` chunks carry `data`, `object` chunks
carry `object` in place of `payload`. Processors return content; identity (`runId`, `from`, the sequence number)
belongs to the runtime.
"""

from typing import Any, Final, Literal, NotRequired, TypedDict

from pydantic import Field

from procession_schemas.base import WireModel


class Chunk(TypedDict):
    """One chunk of a stream."""

    type: str
    runId: NotRequired[str]
    payload: NotRequired[dict[str, Any]]
    data: NotRequired[Any]
    object: NotRequired[Any]
    id: NotRequired[str]
    transient: NotRequired[bool]
    metadata: NotRequired[dict[str, Any]]


CORE_TYPES: Final = frozenset(
    {
        "start", "step-start", "response-metadata", "text-start", "text-delta", "text-end",
        "reasoning-start", "reasoning-delta", "reasoning-end", "reasoning-signature", "redacted-reasoning",
        "tool-call-input-streaming-start", "tool-call-delta", "tool-call-input-streaming-end",
        "tool-call", "tool-result", "tool-error", "tool-output", "tool-call-approval", "tool-call-suspended",
        "tool-output-denied", "source", "file", "raw", "object", "object-result", "step-finish", "finish",
        "error", "abort", "tripwire", "reset",
    }
)  # fmt: skip
"""Types that the runtime owns; a writer may not use them (R-WR-2)."""

RUNTIME_TYPES: Final = frozenset(
    {"start", "error", "abort", "tripwire", "reset", "tool-call-approval", "tool-call-suspended"}
)
"""Types that say how a run goes: a processor may edit those that it gets (R-OS-8), and makes none."""

HIDDEN_TYPES: Final = frozenset({"response-metadata"})
"""Offered to processors, never delivered to the client."""

ENDING_TYPES: Final = frozenset({"finish", "tripwire", "error", "tool-call-approval", "tool-call-suspended"})
"""A stream ends with one of these."""

ChunkOrigin = Literal["AGENT", "USER", "SYSTEM", "WORKFLOW"]


class ChunkBatch(WireModel):
    """Chunks of one run on `procession.v1.chunk.<tenant>.<run>`.

    Batches of two services may overtake each other, so the numbers of the chunks give their order. `seq` is the number
    of the first chunk. Numbers rise by one over the whole run, and jump after a `reset`. `seq` and `fence` may exceed
    32 bits, but stay below 2^53. A reader drops chunks that it has already seen (`seq + i <= last`); a `seq` that is
    larger than expected means that chunks are missing.

    `end` marks the last batch. More batches may follow in two cases: the run waited for a person, and was resumed; or
    the sender of the end died before `run.finished` was announced, and the whole answer is generated again.

    `reset`: what follows replaces the chunks from that number on, because work started over: a service died, or, with
    nothing to replace, the run was cancelled, took too long, or failed before it sent anything.

    `fence` rises with each command of the run, and each time that a command is repeated. From the first number of a
    fence on, chunks with a smaller fence do not count: their sender has lost the run, and does not know it yet. A
    reader drops such chunks, or takes them back.
    """

    run: str
    seq: int
    chunks: list[dict[str, Any]]
    end: bool = False
    reset: int | None = Field(default=None, description="Number of the first chunk that no longer counts.")
    fence: int = Field(default=0, description="Chunks of the greater fence count.")
    timed: bool = Field(
        default=False, description="Chunks of this fence depend on time: made again, they would differ."
    )
