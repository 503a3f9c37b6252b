"""Commands that are handed over directly, without a message in WORK (docs/adr/0033)."""

from typing import NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from procession_schemas.base import JsonObject

__all__ = ["HandedCommand"]


class HandedCommand(TypedDict):
    """A command for one replica, with what Redis holds of its run; the sender has saved the replica's claim (`owner`).

    `command` is a WorkCommand. `version` and `seq` are those of the last commit, and `context` is what it stored;
    before the first commit there is none. `state`, with its version, and `plan` are those of the run. `out` is the
    command's own number, which it got in the life `numberedIn` of Redis, and `claims` says how often the command was
    claimed. `cancelled`: the run was cancelled. `at`: when the command was claimed, in seconds since the
    epoch; a replica refuses one that comes late.
    """

    command: JsonObject
    owner: str
    at: NotRequired[float]
    traceparent: NotRequired[str]
    version: int
    seq: int
    context: NotRequired[JsonObject]
    cancelled: NotRequired[bool]
    stateVersion: int
    state: JsonObject
    plan: JsonObject
    out: int
    claims: int
    numberedIn: int
