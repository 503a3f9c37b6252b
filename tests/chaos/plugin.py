"""What the services load: output processors that follow from the chunks alone, and a tool that leaves a trace."""

import asyncio
import os
import zlib
from pathlib import Path
from typing import Any

import orjson

from procession.processor import Options, Processor
from procession.registry import Registry
from procession.tools import Tool, ToolContext
from tests.chaos.ending import TOOL, Ending, deaths_of, end
from tests.chaos.made import MADE, Writes, told_by
from tests.support.plugin import Rated, Ticking

__all__ = ["expected", "register"]

_EVERY = 10


def expected(words: list[str]) -> str:
    """What the chain upper, tally, split makes of a text that came in these pieces."""
    tallied = [
        word.upper() + (f"#{number} " if number % _EVERY == 0 else "") for number, word in enumerate(words, 1)
    ]
    return "".join(tallied)


def _digest(part: Any) -> int:
    return zlib.crc32(orjson.dumps(part))


def _with_text(part: Any, text: str, **more: Any) -> Any:
    return {**part, "payload": {**part["payload"], "text": text, **more}}


class Upper(Processor[Options]):
    """Writes text in capitals, and the process that did it beside it."""

    id = "chaos-upper"

    def process_output_stream(self, args: Any) -> Any:
        part = args.part
        return (
            part
            if part["type"] != "text-delta"
            else _with_text(part, part["payload"]["text"].upper(), host=os.getpid())
        )


class Tally(Processor[Options]):
    """Counts text chunks in its state and writes every tenth number behind them."""

    id = "chaos-tally"

    def process_output_stream(self, args: Any) -> Any:
        part = args.part
        if part["type"] != "text-delta":
            return part
        count = args.state["count"] = args.state.get("count", 0) + 1
        return _with_text(part, part["payload"]["text"] + (f"#{count} " if count % _EVERY == 0 else ""))


class Split(Processor[Options]):
    """Makes two chunks of one."""

    id = "chaos-split"

    def process_output_stream(self, args: Any) -> Any:
        part = args.part
        if part["type"] != "text-delta":
            return part
        text = part["payload"]["text"]
        middle = len(text) // 2
        return [_with_text(part, text[:middle]), _with_text(part, text[middle:])]


class BlockOptions(Options):
    at: int


class Block(Processor[BlockOptions]):
    """Blocks the answer at the word of that number."""

    id = "chaos-block"

    def process_output_stream(self, args: Any) -> Any:
        part = args.part
        if part["type"] == "text-delta" and f".{self.options.at} " in part["payload"]["text"]:
            args.abort("enough")
        return part


class Again(Processor[Options]):
    """Wants another answer than the first one."""

    id = "chaos-again"

    def process_output_step(self, args: Any) -> None:
        if args.retry_count == 0:
            args.abort("not this one", retry=True)


class GuardOptions(Options):
    objects: bool = False


class Guard(Processor[GuardOptions]):
    """Takes its time beside the model, and objects or not."""

    id = "chaos-guard"
    on_error = "fail"

    @classmethod
    def runs_parallel(cls, options: dict[str, Any]) -> bool:
        return True

    async def process_input(self, args: Any) -> None:
        await asyncio.sleep(0.05)
        if self.options.objects:
            args.abort("not this question")


def _note(args: Any, hook: str) -> None:
    log = args.state.setdefault("log", [])
    if log and log[-1][0] == hook:
        log[-1][1] += 1
    else:
        log.append([hook, 1])


def _noting(hook: str) -> Any:
    return lambda _self, args: _note(args, hook)


class Every(Processor[Options]):
    """Has every hook, and notes in its state which ones were called; the last one tells it in the answer's metadata."""

    id = "chaos-every"

    process_input = _noting("input")
    process_input_step = _noting("inputStep")
    process_llm_request = _noting("request")
    process_llm_response = _noting("response")
    process_output_step = _noting("step")
    process_tool_result = _noting("tool")

    def process_output_stream(self, args: Any) -> Any:
        _note(args, "stream")
        seen = args.state.setdefault("seen", [])
        seen.append(_digest(args.part))
        if [_digest(part) for part in args.stream_parts] != seen:
            _note(args, "other streamParts")
        return args.part

    def process_output_result(self, args: Any) -> Any:
        _note(args, "result")
        args.messages[-1]["content"].setdefault("metadata", {})["log"] = args.state["log"]
        return args.messages


_TOLD = {"type": "string"}


class TraceOptions(Options):
    path: Path


class Trace(Tool):
    """Notes its call id and its process in a file, then works for a moment."""

    id = "chaos-trace"
    options_type = TraceOptions

    async def execute(self, args: Any, context: ToolContext) -> Any:
        with self.options.path.open("a") as trace:
            trace.write(f"{context.tool_call_id} {os.getpid()}\n")
        await asyncio.sleep(0.01)
        return "traced"


class Asking(Trace):
    """The same, once it has been told something."""

    id = "chaos-asking"
    resume_schema = _TOLD

    async def execute(self, args: Any, context: ToolContext) -> Any:
        if context.resume_data is None:
            context.suspend({"question": "what?"})
        return await super().execute(args, context)


class Telling(Trace):
    """The same, and says how far it is."""

    id = "chaos-telling"

    async def execute(self, args: Any, context: ToolContext) -> Any:
        for chunk in told_by(context.tool_call_id):
            await context.writer.custom(chunk)
            await asyncio.sleep(0.01)
        return await super().execute(args, context)


class EndingOptions(TraceOptions):
    times: int


class EndingTrace(Trace):
    """The same, and ends its process."""

    id = "chaos-ending"
    options_type = EndingOptions

    async def execute(self, args: Any, context: ToolContext) -> Any:
        told = await super().execute(args, context)
        end(deaths_of(self.options.path), self.options.times, TOOL)
        return told


def register(registry: Registry) -> None:
    for processor in (Upper, Tally, Split, Block, Again, Guard, Rated, Ticking, Every, Writes, Ending, *MADE):
        registry.add_processor(processor)
    for tool in (Trace, Asking, Telling, EndingTrace):
        registry.add_tool(tool)
