"""Events of a run on `procession.v1.event.<tenant>.<run>.<type>`."""

from typing import Any, Literal

from pydantic import Field

from procession_schemas.base import WireModel
from procession_schemas.run import Failure, RunResult

_END_SEQ = (
    "The number behind that of the last chunk so far: who has read up to it has all, also when none is kept."
)


class RunAccepted(WireModel):
    """The request is valid, stored and will end in exactly one `run.finished`.

    Who listens may hear it more than once, as when the request is sent again.
    """

    type: Literal["run.accepted"] = "run.accepted"
    run_id: str
    agent: str
    message_id: str
    at: str
    fingerprint: str | None = Field(default=None, description="Digest of the request.")
    stream: bool = Field(default=True, description="Whether the run sends chunks.")


class RunSuspended(WireModel):
    """The run waits for a person; `result.suspendPayload.calls` says for what.

    It is said again, under the same fence, when some of the calls have been decided: with those that are left.
    """

    type: Literal["run.suspended"] = "run.suspended"
    run_id: str
    at: str
    fence: int = Field(default=0, description="What the run sends when it goes on has at least this fence.")
    end_seq: int | None = Field(default=None, description=_END_SEQ)
    result: RunResult


class RunResumed(WireModel):
    """All was decided, and the run goes on; a suspension of the same fence, or of a smaller one, is over."""

    type: Literal["run.resumed"] = "run.resumed"
    run_id: str
    at: str
    fence: int = Field(description="What the run sends from here on has at least this fence.")


class RunFinished(WireModel):
    """The one terminal event of a run.

    EVENTS keeps one. Who listens may hear it more than once, when somebody tells it again; the first counts.
    """

    type: Literal["run.finished"] = "run.finished"
    run_id: str
    at: str
    result: RunResult
    fingerprint: str | None = Field(default=None, description="Digest of the request.")
    fence: int = Field(
        default=-1,
        description="The end of its chunks has at least this fence: others did not know of this one.",
    )
    end_seq: int | None = Field(default=None, description=_END_SEQ)


class RequestRejected(WireModel):
    """A request that was not accepted, and of which nothing is kept; `error.code` says why.

    `RUN_ID_CONFLICT`: there is a run under its id, with another body, which is not touched. `STORE_UNAVAILABLE`: Redis
    was away for too long; the same request may be sent again. `RATE_LIMITED`, `TOO_MANY_RUNS`, `BUDGET_EXCEEDED`,
    `OVERLOADED`: a limit is reached; `error.retryAfter` says when to send the same request again, and `error.detail`
    has `limit`, `allowed` and `current`.
    """

    type: Literal["request.rejected"] = "request.rejected"
    run_id: str
    at: str
    error: Failure
    sequence: int | None = Field(
        default=None, description="Which request: its place in RUNS, as the publish acknowledgement told it."
    )


class ProcessorViolation(WireModel):
    """An abort, stored on `procession.v1.violation.<tenant>.<processor>`."""

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
