"""Commands that go from hand to hand, without a message in WORK (docs/adr/0033)."""

from typing import NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from procession_schemas.base import JsonObject

__all__ = ["HandedCommand"]


class HandedCommand(TypedDict):
    """A command for one replica, which has claimed it (`owner`) by what the sender has saved, and what Redis holds.

    `command` is a WorkCommand. `version` and `seq` are those of the last commit, `context` is what it has stored; there
    is none before the first one. `state` with its version and `plan` are the run's, `out` is the command's own number,
    got in the life `numberedIn` of Redis, and `claims` counts how often it was claimed. `cancelled`: the run was.
    `at`: when it was claimed, in seconds since the epoch; one that comes late is not begun.
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
