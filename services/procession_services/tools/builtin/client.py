"""The stand-in for a tool that the caller runs: in a browser, on a phone, by hand."""

from typing import Any

from procession.tools import Tool, ToolContext


class ClientTool(Tool):
    """A tool that is only described here (R-TX-5).

    Name, description and schema come from the agent: `{"id": "client", "as": "pick-date", "description": ...,
    "parameters": {...}}`. The run ends with the call; its result comes as a message of the next request.
    """

    id = "client"
    description = "Runs at the caller."
    client_side = True

    def execute(self, args: Any, context: ToolContext) -> Any:  # noqa: ARG002 - the base's shape
        """Is never called.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(f"the tool {context.tool_name!r} runs at the caller")
