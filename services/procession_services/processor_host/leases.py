"""What the sender of a stream tells the replica that it asks for a lease."""

from collections.abc import Sequence
from typing import Any

import orjson

from procession.errors import ProcessorError
from procession.response import REPLAYED
from procession.services import KeyValueStore
from procession_schemas.agent import ProcessorRef
from procession_schemas.work import ModelOp, Op
from procession_services.bus import Bus, oversized
from procession_services.processor_host.carrying import carried
from procession_services.processor_host.job import Job
from procession_services.processor_host.stream_session import Session


async def lease_of(
    bus: Bus, job: Job, processors: list[ProcessorRef], ops: Sequence[Op], *, id_: str, address: str
) -> dict[str, Any]:
    """A lease of stream `id_` through these processors, to go on with `ops`; acknowledgements come to `address`."""
    lease = {
        "session": id_,
        "kind": "model" if ops and isinstance(ops[0], ModelOp) else "side",
        "acks": address,
        "command": orjson.Fragment(job.command.but(ops=list(ops)).to_json()),
        "outSeq": job.outbox.next_seq,
        "fence": job.outbox.fence,
        "cancelled": job.abort_signal.aborted,
        "logs": True,
        "asText": True,
        "processors": [ref.to_dict() for ref in processors],
    }
    if job.outbox.reset is not None:
        lease["reset"] = job.outbox.reset
    cached = job.ctx.cached
    if cached is not None:  # whose chunks are what is streamed
        cached = {key: cached[key] for key in REPLAYED if key in cached}
    context = job.ctx.to_dict() | {"prompt": None, "cached": cached}
    return lease | await carried(bus, store_of(job), "context", context, id_)


async def request_of(bus: Bus, session: Session) -> tuple[bytes, dict[str, Any]]:
    """The request for the session's next lease; and what of the stream goes along, if all that there is fits.

    Raises:
        ProcessorError: It is longer than NATS accepts even without any of that.
    """
    request = {**await session.lease(), **session.resumed(bus.disconnects), "attempt": session.attempt}
    first: dict[str, Any] = {}
    if session.due and session.size(0, len(session.raw)) < bus.max_payload:
        first = {"chunks": session.chunks(), "whole": session.ended, **session.ending(len(session.raw))}
    body = orjson.dumps(request | first)
    if bus.fits(body):
        return body, first
    body = orjson.dumps(request)
    if not bus.fits(body):
        size = oversized(len(body), bus.max_payload)
        raise ProcessorError(f"the lease of a stream {size}", code="COMMAND_TOO_LONG")
    return body, {}


def store_of(job: Job) -> KeyValueStore:
    """Where what is too long for a message goes."""
    return job.calls.environment.store(job.command.tenant)
