"""What a client is told when something does not work."""

from procession.errors import ProcessionError
from procession_schemas.run import Failure, RunResult


class NotConnectedError(ProcessionError):
    """The NATS server cannot be reached, or the connection was closed."""


class NotAcceptedError(ProcessionError):
    """No stream or service has confirmed that it took the message. A message that was not sent by then is never sent.

    One that was already on its way when NATS or the service fell silent may have been taken, or may still be. Sending
    it again is harmless where an id identifies it: a request with a `run_id`, or a cancel.
    """


class RequestTooLargeError(ProcessionError):
    """The request is larger than the server takes."""


class RequestRejectedError(ProcessionError):
    """The request was not accepted, and nothing is kept of it. `failure` is the services' answer."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class RunConflictError(RequestRejectedError):
    """A run of that id exists with another request; it was left alone."""


class LimitExceededError(RequestRejectedError):
    """A limit of the tenant or of the whole system is reached; the same request may be sent again later.

    `failure.code` is `RATE_LIMITED`, `TOO_MANY_RUNS`, `BUDGET_EXCEEDED` or `OVERLOADED`; `failure.detail` has `limit`,
    `allowed` and `current`.
    """

    @property
    def retry_after(self) -> float:
        """Seconds after which it may be accepted."""
        return self.failure.retry_after or 0.0


def rejected(failure: Failure) -> RequestRejectedError:
    """The error for an answer that a request was not accepted."""
    if failure.retry_after is not None:
        return LimitExceededError(failure)
    return RequestRejectedError(failure) if failure.is_retryable else RunConflictError(failure)


class RunFailedError(ProcessionError):
    """The run was blocked or cancelled, or it failed; `result` is its result. Raised only with `raise_on_error`."""

    def __init__(self, result: RunResult) -> None:
        why = result.error.told() if result.error else result.tripwire.reason if result.tripwire else ""
        super().__init__(f"run {result.run_id} {result.status}" + (f": {why}" if why else ""))
        self.result = result


class ChunksLostError(ProcessionError):
    """Chunks came neither live nor from the stream that keeps them; `result()` still has the answer.

    The answer is complete, unless its `response` says `shortened`: then it does not fit into a NATS message.
    """


class UnknownRunError(ProcessionError):
    """No event of that run is stored: it was never accepted, has expired, or NATS and Redis have lost it."""


class NotWaitingError(ProcessionError):
    """The run is not waiting for a person's decision."""


class ResumeDataError(ProcessionError):
    """A tool call waits for data, but got none, or data that does not fit its `resumeSchema`; it still waits."""
