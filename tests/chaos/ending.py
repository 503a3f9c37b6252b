"""A processor that ends its own process, as often as it is told to, and what tells how often that was."""

import os
from pathlib import Path
from typing import Any, Final

from procession.processor import Hook, Options, Processor

__all__ = ["MADE_AT", "PLACES", "TOOL", "Ending", "deaths_of", "end"]

MADE_AT: Final = "made"
"""Where a processor ends the process that makes it, the orchestrator's at first."""
TOOL: Final = "tool"
PLACES: Final = (*(hook.value for hook in Hook if hook is not Hook.API_ERROR), TOOL)
"""Where a run may end the process that has it."""


def deaths_of(trace: Path) -> Path:
    """Where a run's processes are noted that it has ended; its tool leaves its trace there."""
    return trace.with_suffix(".deaths")


def end(path: Path, times: int, at: str) -> None:
    """Ends the process, unless so many have been noted."""
    noted = path.read_text().count("\n") if path.exists() else 0
    if noted < times:
        with path.open("a") as out:
            out.write(f"{at} {os.getpid()}\n")
        os._exit(3)


class EndingOptions(Options):
    path: Path
    times: int
    at: str
    word: int


class Ending(Processor[EndingOptions]):
    """Ends its process in one hook (in `processOutputStream`, at the word of that number), or when it is made."""

    id = "chaos-ending"

    def __init__(self, options: EndingOptions) -> None:
        super().__init__(options)
        if options.at == MADE_AT:
            self._end()

    @classmethod
    def hooks_for(cls, options: dict[str, Any]) -> frozenset[Hook]:
        return frozenset({Hook.INPUT if options["at"] == MADE_AT else Hook(options["at"])})

    def _end(self, args: Any = None) -> Any:
        end(self.options.path, self.options.times, self.options.at)

    process_input = process_input_step = process_llm_request = process_llm_response = _end
    process_output_step = process_tool_result = process_output_result = _end

    def process_output_stream(self, args: Any) -> Any:
        part = args.part
        if part["type"] == "text-delta":
            args.state["words"] = args.state.get("words", 0) + 1
            if args.state["words"] == self.options.word:
                self._end()
        return part
