"""The client: publishes run requests on the bus and reads their chunks and results.

    async with Procession("nats://127.0.0.1:4222") as procession:
        async for chunk in procession.stream("Hello", agent="demo"):
            print(chunk)

A chunk arrives over a core subscription, made before the request is published; what that misses (a lost
connection, a slow reader, a late caller) is read from the streams CHUNKS and EVENTS. A client that goes away
cancels nothing.
"""

from procession.client.errors import (
    ChunksLostError,
    LimitExceededError,
    NotAcceptedError,
    NotConnectedError,
    NotWaitingError,
    RequestRejectedError,
    RequestTooLargeError,
    ResumeDataError,
    RunConflictError,
    RunFailedError,
    UnknownRunError,
)
from procession.client.handle import RunHandle
from procession.client.memory import MemoryClient, MemoryRequestError
from procession.client.ordering import ChunkOrder
from procession.client.procession import Input, Procession

__all__ = [
    "ChunkOrder",
    "ChunksLostError",
    "Input",
    "LimitExceededError",
    "MemoryClient",
    "MemoryRequestError",
    "NotAcceptedError",
    "NotConnectedError",
    "NotWaitingError",
    "Procession",
    "RequestRejectedError",
    "RequestTooLargeError",
    "ResumeDataError",
    "RunConflictError",
    "RunFailedError",
    "RunHandle",
    "UnknownRunError",
]
