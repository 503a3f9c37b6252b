"""What becomes of questions that get no answer, and what JetStream's answers mean."""

from typing import Final

from nats.js.errors import APIError, ServiceUnavailableError

_ROOM: Final = "give JetStream more room (max_memory_store, max_file_store)"
_READERS: Final = (
    "somebody else reads from RUNS or WORK, whose messages are for one reader each: delete that consumer"
)
_MENDED: Final = {
    10005: "PROCESSION_STREAM_REPLICAS is more than there are servers with JetStream, or they have no room",
    10023: _ROOM,
    10027: "let the account of NATS have more streams (max_streams)",
    10028: _ROOM,
    10039: "give the account of NATS a `jetstream` in the configuration of the server",
    10047: _ROOM,
    10052: "a stream that has one of our names is of another kind: `procession check --deploy` says which",
    10058: "give Procession an account of its own in NATS, or that stream another name",
    10065: "a stream of somebody else has our subjects (procession.v1.>): delete it",
    10074: "PROCESSION_STREAM_REPLICAS asks for copies of streams, for which NATS has to be a cluster: set it to 1",
    10099: _READERS,
    10100: _READERS,
}
"""How to mend it, by JetStream's code."""


class NoResponderError(Exception):
    """Nobody listens on the subject of a request."""


class RequestTimeoutError(Exception):
    """The answer to a request did not come in time."""


def explained(error: Exception) -> str:
    """What JetStream says, and how to mend it where that is known."""
    if not isinstance(error, APIError):
        return repr(error)
    if isinstance(error, ServiceUnavailableError) and error.code is None:
        return "nobody is there for JetStream: start nats-server with `jetstream` in its configuration, or with -js"
    mended = _MENDED.get(error.err_code or 0)
    return f"{error.description} ({error.err_code})" + (f"; {mended}" if mended else "")
