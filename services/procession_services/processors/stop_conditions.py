"""Stop conditions: predicates over the steps so far, named in `stopWhen` (R-LP-3)."""

from pydantic import Field

from procession.processor import Options
from procession_schemas.messages import StepResult


class StepCount(Options):
    """How many steps there may be."""

    count: int = Field(default=1, ge=1)


class ToolCalled(Options):
    """Which tool ends the loop; any, where none is named."""

    tool_name: str | None = None


def step_count_is(steps: list[StepResult], options: StepCount) -> bool:
    """Stops after `count` steps."""
    return len(steps) >= options.count


def has_tool_call(steps: list[StepResult], options: ToolCalled) -> bool:
    """Stops when the last step called the tool."""
    calls = steps[-1].get("toolCalls", []) if steps else []
    return any(options.tool_name in (None, call["toolName"]) for call in calls)
