"""`workspace-instructions.json`: the system message of a workspace that answers at once or later."""

from collections.abc import Awaitable
from typing import Any

from procession.args import InputStepArgs
from procession_services.processors.workspace_instructions import WorkspaceInstructions
from tests.vectors.adapters.by_hand import Run


async def observe(vector: dict[str, Any]) -> Any:
    """Runs one step with a workspace of the kind that the vector names."""
    kind = vector["input"]["workspace"]

    class Told(WorkspaceInstructions):
        def instructions(self, args: InputStepArgs) -> str | Awaitable[str | None] | None:
            async def later() -> str:
                return "ASYNC"

            if kind.startswith("async"):
                return later()
            return "" if kind == "empty" else "PATHS"

    processor = Told.build(vector["options"])
    run = Run(processor)
    messages = run.context.messages
    returned = await processor.process_input_step(run.input_step())
    told = [message["content"] for message in messages.get_all_system_messages()]
    return {"systemMessages": told, "returnsSameList": returned is messages}


def override(_vector: dict[str, Any], _observed: Any, _differences: list[str]) -> str | None:
    """Nothing differs."""
    return None
