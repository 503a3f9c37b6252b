"""Stop conditions: predicates over the steps so far, named in `stopWhen` (R-LP-3)."""

from typing import Any

from procession_schemas.messages import StepResult


def step_count_is(steps: list[StepResult], options: dict[str, Any]) -> bool:
    """Stops after `count` steps (default 1)."""
    return len(steps) >= int(options.get("count", 1))


def has_tool_call(steps: list[StepResult], options: dict[str, Any]) -> bool:
    """Stops when the last step called the tool `toolName` (any tool, where none is named)."""
    wanted = options.get("toolName") or options.get("tool_name")
    calls = steps[-1].get("toolCalls", []) if steps else []
    return any(wanted is None or call["toolName"] == wanted for call in calls)
