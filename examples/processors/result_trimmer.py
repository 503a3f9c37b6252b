"""`result-trimmer`: changes what a tool found before anybody sees it."""

from pydantic import Field

from procession import Options, Processor, ToolResultArgs


class ResultTrimmerOptions(Options):
    """Options of `result-trimmer`."""

    limit: int = Field(default=1000, ge=1, description="Characters of a text result that are kept.")


class ResultTrimmer(Processor[ResultTrimmerOptions]):
    """Cuts long texts that tools return; stream, storage and the next prompt carry the short one."""

    id = "result-trimmer"
    description = "Cuts long tool results."

    def process_tool_result(self, args: ToolResultArgs) -> None:
        """Rewrites the outcome in the conversation, which is the way to change a result."""
        if isinstance(args.result, str) and len(args.result) > self.options.limit:
            cut = args.result[: self.options.limit] + "…"
            outcome = {"state": "result", "toolCallId": args.tool_call_id, "result": cut}
            args.message_list.update_tool_invocation({"type": "tool-invocation", "toolInvocation": outcome})
