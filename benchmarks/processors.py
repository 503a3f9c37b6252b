"""The processors and the tool of the benchmarks; `PROCESSION_PLUGINS=benchmarks.processors` installs them.

They do next to nothing, so that what is measured is the way to them: two for input besides the built-in
`unicode-normalizer`, three for output, and a tool that returns its argument. `peer.mjs` has the same.
"""

import time

from benchmarks import counting
from procession.args import (
    InputArgs,
    InputReturn,
    InputStepArgs,
    InputStepReturn,
    MessagesReturn,
    OutputResultArgs,
    OutputStreamArgs,
    StreamReturn,
)
from procession.processor import Options, Processor
from procession.registry import Registry
from procession.tools import tool

_BLOCKED = ("top-secret", "do-not-share", "verboten")


class InputAsIs(Processor[Options]):
    """Returns the messages as they are."""

    id = "bench-input-as-is"

    def process_input(self, args: InputArgs) -> InputReturn:
        """Changes nothing."""
        return args.messages


class StepNumber(Processor[Options]):
    """Notes the number of the step in its state."""

    id = "bench-step-number"

    def process_input_step(self, args: InputStepArgs) -> InputStepReturn:
        """Changes nothing but the state."""
        args.state["step"] = args.step_number
        return {}


class PassThrough(Processor[Options]):
    """Passes every chunk on and counts them in its state."""

    id = "bench-pass-through"

    async def process_output_stream(self, args: OutputStreamArgs) -> StreamReturn:
        """Counts."""
        args.state["chunks"] = args.state.get("chunks", 0) + 1
        return args.part


class WordCount(Processor[Options]):
    """Counts the words of every chunk of text; looks at the result, too."""

    id = "bench-word-count"

    async def process_output_stream(self, args: OutputStreamArgs) -> StreamReturn:
        """Counts what stands between spaces."""
        if args.part["type"] == "text-delta":
            args.state["words"] = args.state.get("words", 0) + len(args.part["payload"]["text"].split())
        return args.part

    async def process_output_result(self, args: OutputResultArgs) -> MessagesReturn:
        """Returns the messages as they are."""
        return args.messages


class Stamp(Processor[Options]):
    """Writes behind a text when it came here, as the model server writes before it when it was sent."""

    id = "bench-stamp"

    async def process_output_stream(self, args: OutputStreamArgs) -> StreamReturn:
        """Appends `@<CLOCK_MONOTONIC in ns>`."""
        part = args.part
        if part["type"] != "text-delta":
            return part
        text = f"{part['payload']['text']}@{time.monotonic_ns()}"
        return {**part, "payload": {**part["payload"], "text": text}}


class ContentFilter(Processor[Options]):
    """Blocks a run whose text contains one of three words, which never happens here."""

    id = "bench-content-filter"

    async def process_output_stream(self, args: OutputStreamArgs) -> StreamReturn:
        """Looks for the words in every chunk of text."""
        if args.part["type"] == "text-delta":
            text = args.part["payload"]["text"]
            if any(word in text for word in _BLOCKED):
                args.abort("blocked word")
        return args.part


@tool(id="bench-echo")
async def echo(x: int) -> dict[str, int]:
    """Returns its argument."""
    return {"echoed": x}


def register(registry: Registry) -> None:
    """Installs the processors and the tool, and what counts bytecodes."""
    counting.listen()
    for processor in (InputAsIs, StepNumber, PassThrough, WordCount, Stamp, ContentFilter):
        registry.add_processor(processor)
    registry.add_tool(echo)
