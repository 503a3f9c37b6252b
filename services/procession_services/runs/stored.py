"""A run as it is stored: its plan once, and its state after every event."""

from functools import lru_cache
from typing import Any, Final

from pydantic_core import from_json

from procession_services.runs.state import Plan, RunState

__all__ = ["read_state"]

_PLANS: Final = 256
_LONGEST_KEPT: Final = 32 * 1024
"""Bytes: what all plans that are kept may come to is bounded by both."""


def read_state(state: bytes, plan: bytes | None, life: int = 0) -> RunState:
    """The run of which these two are stored; plans that were read lately are shared.

    The version before kept the plan in the state, so there may be none. Where Redis has begun another `life` since the
    state was saved, it may have forgotten what followed.

    Raises:
        ValueError: One of them is no JSON, or does not fit (pydantic's ValidationError).
    """
    data = from_json(state)
    if plan is None:
        _bring_up_to_date(data)
    else:
        data["plan"] = _kept(plan) if len(plan) <= _LONGEST_KEPT else Plan.model_validate_json(plan)
    run = RunState.model_validate(data)
    if life not in (0, run.life):
        run.life, run.leap = life, True
    return run


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
