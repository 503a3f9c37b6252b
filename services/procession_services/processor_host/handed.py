"""A claimed command on its way to a replica of another process (`procession.v1.desk.<service>.<replica>`)."""

from typing import NamedTuple

import msgspec

from procession_schemas.base import UnfitError
from procession_schemas.work import WorkCommand
from procession_services.processor_host.holders import Claimed
from procession_services.runtime.run_records import StoredContext

__all__ = ["Handed", "packed", "unpacked"]

_NOTHING = msgspec.Raw(b"null")


class _Handed(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The command, and what Redis holds of its run; what is JSON there is the same JSON here."""

    command: msgspec.Raw
    owner: str
    at: float
    traceparent: str | None = None
    version: int
    seq: int
    context: msgspec.Raw = _NOTHING
    cancelled: bool = False
    state_version: int
    state: msgspec.Raw
    plan: msgspec.Raw
    out: int
    claims: int
    numbered_in: int


_decoder = msgspec.json.Decoder(_Handed)


def packed(claimed: Claimed, traceparent: str | None) -> bytes:
    """The message with that command."""
    stored = claimed.stored
    assert stored.state is not None
    assert stored.plan is not None
    return msgspec.json.encode(
        _Handed(
            command=msgspec.Raw(claimed.command.to_json()),
            owner=claimed.owner,
            at=claimed.at,
            traceparent=traceparent,
            version=stored.version,
            seq=stored.seq,
            context=msgspec.Raw(stored.context) if stored.context else _NOTHING,
            cancelled=stored.cancelled,
            state_version=stored.state_version,
            state=msgspec.Raw(stored.state),
            plan=msgspec.Raw(stored.plan),
            out=stored.out,
            claims=stored.claims,
            numbered_in=stored.numbered_in,
        )
    )


class Handed(NamedTuple):
    """A command as it has come, the trace that it goes on with, and what would be sent where it has to be."""

    claimed: Claimed
    traceparent: str | None
    body: bytes


def unpacked(body: bytes) -> Handed:
    """What a message says; raises UnfitError."""
    try:
        handed = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise UnfitError(f"not a handed-over command: {error}") from error
    context = bytes(handed.context)
    stored = StoredContext(
        version=handed.version,
        seq=handed.seq,
        context=None if context == b"null" else context,
        result=None,
        cancelled=handed.cancelled,
        state_version=handed.state_version,
        state=bytes(handed.state),
        plan=bytes(handed.plan),
        out=handed.out,
        claims=handed.claims,
        numbered_in=handed.numbered_in,
    )
    command = bytes(handed.command)
    return Handed(
        Claimed(WorkCommand.from_json(command), handed.owner, stored, handed.at), handed.traceparent, command
    )
