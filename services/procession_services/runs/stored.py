"""A run as it is stored: its plan once, and its state after every event."""

from functools import lru_cache
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

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

    The version before kept the plan in the state, so there may be none. Where Redis has begun another `life` since the
    state was saved, it may have forgotten what followed.

    Raises:
        UnreadableError: One of them is no JSON, or does not fit.
    """
    try:
        data = from_json(state)
        if plan is None:
            _bring_up_to_date(data)
        else:
            data["plan"] = _kept(plan) if len(plan) <= _LONGEST_KEPT else Plan.model_validate_json(plan)
        run = RunState.model_validate(data)
    except ValueError as error:  # JSON's, or pydantic's
        raise UnreadableError(str(error)) from error
    if life not in (0, run.life):
        run.life, run.leap = life, True
    return run


def remains(state: bytes) -> Remains:
    """What can still be read of such a run."""
    try:
        data = from_json(state)
        line = data.get("line")
        return Remains(
            str(data.get("agent", "")), str(data.get("fingerprint", "")), line and Line.model_validate(line)
        )
    except (ValueError, AttributeError):  # not even an object of JSON
        return Remains()


@lru_cache(maxsize=_PLANS)
def _kept(plan: bytes) -> Plan:
    return Plan.model_validate_json(plan)


def _bring_up_to_date(data: dict[str, Any]) -> None:
    """Moves what the version before had in the plan, and what its command says, to where they are now."""
    plan, command = data.get("plan", {}), data.pop("outstanding", None)
    data["line"] = plan.get("line")
    if not data.get("seq"):
        data["open"] = plan.get("open")
    if command:
        data["sent"] = {
            "service": command["service"],
            "ops": len(command["ops"]),
            "version": command["version"],
        }
