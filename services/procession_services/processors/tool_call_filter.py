"""`tool-call-filter`: keeps old tool calls and their results out of prompts (builtins.md 11).

No model calls. It changes the prompt of a call and nothing else: the conversation, memory and the client keep all.
"""

from typing import Any

from pydantic import Field, field_validator

from procession.args import LLMRequestArgs, LLMRequestResult
from procession.processor import Options, Processor
from procession_services.processors.core.tool_traffic import (
    output_text,
    recent_calls,
    tool_parts,
    without_calls,
)


class ToolCallFilterOptions(Options):
    """Options of `tool-call-filter`."""

    exclude: list[str] | None = Field(
        default=None,
        description="Names of the tools whose calls are left out; absent: all tools; an empty list: none.",
    )
    filter_after_tool_steps: int | None = Field(
        default=None,
        description="Keep the calls of this many latest steps, whatever the tool; absent: those of this run.",
    )
    preserve_model_output: bool = Field(
        default=False,
        description="Where a tool made a short output for the model, leave that as text in place of the call.",
    )

    @field_validator("exclude", mode="before")
    @classmethod
    def _is_list(cls, value: Any) -> Any:
        """A value that would filter nothing without a word is refused (D-70)."""
        if not isinstance(value, list):
            raise ValueError("give a list of tool names, or leave it out for all tools")  # noqa: TRY004 - for pydantic
        return value


class ToolCallFilter(Processor[ToolCallFilterOptions]):
    """Leaves tool calls out of prompts."""

    id = "tool-call-filter"
    name = "ToolCallFilter"
    description = "Keeps old tool calls and their results out of prompts."

    def process_llm_request(self, args: LLMRequestArgs) -> LLMRequestResult | None:
        """Returns a shorter prompt; nothing when every call stays."""
        excluded = self._excluded(args)
        if not excluded:
            return None
        return {"prompt": without_calls(args.prompt, excluded, lambda part: self._stand_in(part, args))}

    def _excluded(self, args: LLMRequestArgs) -> set[str]:
        """The ids of the calls that go: with any part of an excluded name, and not preserved (R-TCF-3, R-TCF-4)."""
        parts, names = list(tool_parts(args.prompt)), self.options.exclude
        ids = {part["toolCallId"] for part in parts}
        if self.options.filter_after_tool_steps is None:
            history = args.state.setdefault("history", sorted(ids))
            preserved = ids - set(history)
        else:
            preserved = recent_calls(args.prompt, self.options.filter_after_tool_steps)
        marked = {part["toolCallId"] for part in parts if names is None or part["toolName"] in names}
        return marked - preserved

    def _stand_in(self, part: dict[str, Any], args: LLMRequestArgs) -> str | None:
        """The text for a result whose tool made an output for the model (R-TCF-6)."""
        if not self.options.preserve_model_output:
            return None
        marker = ((part.get("providerOptions") or {}).get("mastra") or {}).get("modelOutput")
        if marker is None and not _has_model_output(args, part["toolCallId"]):
            return None
        return output_text(part.get("output"))


def _has_model_output(args: LLMRequestArgs, call_id: str) -> bool:
    """Whether the conversation holds an output for the model with that call."""
    parts = (part for message in args.message_list.get.all.db() for part in message["content"]["parts"])
    calls = (part["toolInvocation"] for part in parts if "toolInvocation" in part)
    return any(call["toolCallId"] == call_id and call.get("modelOutput") is not None for call in calls)
