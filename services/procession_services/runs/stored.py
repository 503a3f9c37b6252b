"""A run as it is stored: its plan once, and its state after every event."""

from functools import lru_cache
from typing import Final, NamedTuple

from procession_schemas.base import UnfitError, from_json
from procession_services.runs.state import Line, Plan, RunState

__all__ = ["Remains", "UnreadableError", "read_state", "remains"]

_PLANS: Final = 256
_LONGEST_KEPT: Final = 32 * 1024
"""Bytes: what all plans that are kept may come to is bounded by both."""


class UnreadableError(ValueError):
    """What is stored of a run is none that we can read; another version of us may have written it."""


class Remains(NamedTuple):
    """What is told of a run whose state cannot be read as a whole."""

    agent: str = ""
    fingerprint: str = ""
    line: Line | None = None


def read_state(state: bytes, plan: bytes | None, life: int = 0) -> RunState:
    """The run of which these two are stored; plans that were read lately are shared.

    Where Redis has begun a later `life` since the state was saved, it may have forgotten what followed. Who has asked
    Redis nothing since it was restarted may know of an earlier one.

    Raises:
        UnreadableError: One of them is not JSON, or does not fit, or the plan is missing.
    """
    if plan is None:
        raise UnreadableError("its plan is missing")
    try:
        run = RunState.from_json(state)
        run.plan = _kept(plan) if len(plan) <= _LONGEST_KEPT else Plan.from_json(plan)
    except UnfitError as error:
        raise UnreadableError(str(error)) from error
    if run.life < life:
        run.life, run.leap = life, True
    return run


def remains(state: bytes) -> Remains:
    """What can still be read of such a run."""
    try:
        data = from_json(state)
        line = data.get("line")
        return Remains(str(data.get("agent", "")), str(data.get("fingerprint", "")), line and Line.of(line))
    except (ValueError, AttributeError):  # not even an object of JSON
        return Remains()


@lru_cache(maxsize=_PLANS)
def _kept(plan: bytes) -> Plan:
    return Plan.from_json(plan)
