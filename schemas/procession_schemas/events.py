"""Events of a run on `procession.v1.event.<tenant>.<run>.<type>`."""

from typing import Any, Literal

from pydantic import Field

from procession_schemas.base import WireModel
from procession_schemas.run import Failure, RunResult

_END_SEQ = (
    "One more than the number of the last chunk so far: a client that has read all chunks below it has them all, even "
    "if none are stored."
)


class RunAccepted(WireModel):
    """The request is valid, stored and will end in exactly one `run.finished`.

    A client may receive it more than once, for example if the request is sent again.
    """

    type: Literal["run.accepted"] = "run.accepted"
    run_id: str
    agent: str
    message_id: str
    at: str
    fingerprint: str | None = Field(default=None, description="Digest of the request.")
    stream: bool = Field(default=True, description="Whether the run sends chunks.")


class RunSuspended(WireModel):
    """The run waits for a person; `result.suspendPayload.calls` says what for.

    It is sent again, with the same fence and the remaining calls, when only some of the calls have been decided.
    """

    type: Literal["run.suspended"] = "run.suspended"
    run_id: str
    at: str
    fence: int = Field(
        default=0, description="What the run sends after it continues has at least this fence."
    )
    end_seq: int | None = Field(default=None, description=_END_SEQ)
    result: RunResult


class RunResumed(WireModel):
    """Everything is decided, and the run continues; a suspension with the same fence, or a smaller one, is over."""

    type: Literal["run.resumed"] = "run.resumed"
    run_id: str
    at: str
    fence: int = Field(description="What the run sends from here on has at least this fence.")


class RunFinished(WireModel):
    """The one terminal event of a run.

    EVENTS keeps one. A client may receive it more than once, if it is announced again; the first counts.
    """

    type: Literal["run.finished"] = "run.finished"
    run_id: str
    at: str
    result: RunResult
    fingerprint: str | None = Field(default=None, description="Digest of the request.")
    fence: int = Field(
        default=-1,
        description="The last chunk batch of the run has at least this fence; an `end` with a smaller one is out of "
        "date.",
    )
    end_seq: int | None = Field(default=None, description=_END_SEQ)


class RequestRejected(WireModel):
    """A request that was not accepted, and that is not kept; `error.code` says why.

    `RUN_ID_CONFLICT`: its id belongs to a run with another request, which is not affected. `STORE_UNAVAILABLE`: Redis
    did not answer for too long; the same request can be sent again. `RATE_LIMITED`, `TOO_MANY_RUNS`, `BUDGET_EXCEEDED`,
    `OVERLOADED`: a limit is reached; `error.retryAfter` says after how many seconds to send the same request again, and
    `error.detail` has `limit`, `allowed` and `current`.
    """

    type: Literal["request.rejected"] = "request.rejected"
    run_id: str
    at: str
    error: Failure
    sequence: int | None = Field(
        default=None, description="Sequence number of the request in RUNS, as in its publish acknowledgement."
    )


class ProcessorViolation(WireModel):
    """An abort by a processor, stored on `procession.v1.violation.<tenant>.<processor>`."""

    type: Literal["violation"] = "violation"
    run_id: str
    tenant: str
    agent: str
    processor_id: str
    hook: str
    message: str
    detail: Any = None
    retry: bool = False
    step: int | None = Field(default=None)
