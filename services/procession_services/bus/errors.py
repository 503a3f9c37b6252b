"""What becomes of questions that get no answer, what JetStream's answers mean, and what does not fit into a message."""

from typing import Final

from nats.js.errors import APIError, ServiceUnavailableError

_ROOM: Final = "give JetStream more storage (max_memory_store, max_file_store)"
_READERS: Final = (
    "another consumer reads from RUNS or WORK, where a message is for one reader: delete that consumer"
)
_MENDED: Final = {
    10005: "PROCESSION_STREAM_REPLICAS exceeds the number of servers with JetStream, or they are out of storage",
    10023: _ROOM,
    10027: "allow the NATS account more streams (max_streams)",
    10028: _ROOM,
    10039: "enable `jetstream` for this NATS account in the configuration of the server",
    10047: _ROOM,
    10052: "a stream with a name of ours has settings that cannot be changed: `procession check --deploy` says which",
    10058: "give Procession its own NATS account, or that stream another name",
    10065: "another stream uses the subjects of Procession (procession.v1.>): delete it",
    10074: "PROCESSION_STREAM_REPLICAS is above 1, which needs a cluster of NATS servers: set it to 1",
    10099: _READERS,
    10100: _READERS,
}
"""How to mend it, by JetStream's code."""


class NoResponderError(Exception):
    """Nobody listens on the subject of a request."""


class RequestTimeoutError(Exception):
    """The answer to a request did not come in time."""


def oversized(size: int, most: int) -> str:
    """What is said of something that is too long for a message."""
    return f"has {size} bytes, but NATS accepts at most {most}"


def explained(error: Exception) -> str:
    """What JetStream says, and how to mend it where that is known."""
    if not isinstance(error, APIError):
        return repr(error)
    if isinstance(error, ServiceUnavailableError) and error.code is None:
        return (
            "JetStream is not available: start nats-server with `jetstream` in its configuration, or with -js"
        )
    mended = _MENDED.get(error.err_code or 0)
    return f"{error.description} ({error.err_code})" + (f"; {mended}" if mended else "")
