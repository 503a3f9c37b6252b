"""What a client is told when something does not work."""

from procession.errors import ProcessionError
from procession_schemas.run import Failure, RunResult


class NotConnectedError(ProcessionError):
    """The NATS server cannot be reached, or the connection was closed."""


class NotAcceptedError(ProcessionError):
    """No stream took the message, so nothing will happen with it."""


class RequestTooLargeError(ProcessionError):
    """The request is larger than the server takes."""


class RunConflictError(ProcessionError):
    """A run of that id exists with another request; it was left alone. `failure` is the services' answer."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class RunFailedError(ProcessionError):
    """The run was blocked, failed or cancelled; `result` is its result. Raised only with `raise_on_error`."""

    def __init__(self, result: RunResult) -> None:
        why = result.error.message if result.error else result.tripwire.reason if result.tripwire else ""
        super().__init__(f"run {result.run_id} {result.status}" + (f": {why}" if why else ""))
        self.result = result


class ChunksLostError(ProcessionError):
    """Chunks came neither live nor from the stream that keeps them; `result()` still has the whole answer."""


class UnknownRunError(ProcessionError):
    """No event of that run is stored: it was never accepted, or its events have expired."""


class NotWaitingError(ProcessionError):
    """The run does not wait for a person."""
