"""The plugin that the services of the integration tests load: parts that wait, change, fail or ask when told to."""

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

from redis.asyncio import Redis

from procession.processor import Hook, Options, Processor
from procession.registry import Registry
from procession.services import ModelRequest
from procession.tools import Tool, ToolContext, tool
from tests.support import quoting

__all__ = ["register"]


async def pass_gate(redis: str, key: str) -> None:
    """Tells the test that somebody is here; the first one waits until the test opens the gate."""
    async with Redis.from_url(redis, socket_timeout=None) as client:  # a test may take its time
        number = await client.incr(f"{key}:passes")
        await client.rpush(f"{key}:reached", os.getpid())
        if number == 1:
            await client.blpop([f"{key}:open"], timeout=0)


class GateOptions(Options):
    redis: str
    key: str
    hooks: frozenset[Hook]
    part: str = "text-delta"
    at: int = 0


class Gate(Processor[GateOptions]):
    """Waits in the hooks that the options name; in the stream at the chunk of that type and number."""

    id: ClassVar[str] = "gate"

    @classmethod
    def hooks_for(cls, options: dict[str, Any]) -> frozenset[Hook]:
        return GateOptions.model_validate(options).hooks

    async def _wait(self, args: Any) -> None:
        await pass_gate(self.options.redis, self.options.key)

    process_input = process_input_step = process_output_step = process_output_result = _wait

    async def process_api_error(self, args: Any) -> Any:
        await self._wait(args)
        return {"retry": args.retry_count == 0}

    async def process_output_stream(self, args: Any) -> Any:
        if args.part["type"] == self.options.part:
            seen = args.state.get("seen", 0)
            args.state["seen"] = seen + 1
            if seen == self.options.at:
                await self._wait(args)
        return args.part


class MemoryGate(Gate):
    """The same, in the memory service."""

    id: ClassVar[str] = "memory-gate"
    host: ClassVar[str | None] = "memory"


class Upper(Processor[Options]):
    """Writes text in capitals, and counts in its state what it saw."""

    id: ClassVar[str] = "upper"

    def process_output_stream(self, args: Any) -> Any:
        if args.part["type"] != "text-delta":
            return args.part
        args.state["chunks"] = args.state.get("chunks", 0) + 1
        text = args.part["payload"]["text"].upper()
        return {**args.part, "payload": {**args.part["payload"], "text": text}}


class RatedOptions(Options):
    model: str


class Rated(Processor[RatedOptions]):
    """Has a model rate every tenth chunk of text, and writes behind it what that says."""

    id: ClassVar[str] = "rated"

    async def process_output_stream(self, args: Any) -> Any:
        part = args.part
        if part["type"] != "text-delta":
            return part
        count = args.state["chunks"] = args.state.get("chunks", 0) + 1
        if count % 10:
            return part
        prompt = [{"role": "user", "content": part["payload"]["text"]}]
        answer = await args.services.generate(ModelRequest(model=self.options.model, prompt=prompt))
        return {**part, "payload": {**part["payload"], "text": part["payload"]["text"] + answer.text}}


class Ticking(Processor[Options]):
    """Counts what the client gets beside an answer: every 20 ms, in a task of its own."""

    id: ClassVar[str] = "ticking"
    _tasks: ClassVar[set[asyncio.Task[None]]] = set()

    def process_output_stream(self, args: Any) -> Any:
        if args.part["type"] == "step-start":
            task = asyncio.create_task(self._tick(args.writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return args.part

    async def _tick(self, writer: Any) -> None:
        with suppress(ValueError):  # the stream is over
            for number in range(1, 100):
                await asyncio.sleep(0.02)
                await writer.custom({"type": "data-tick", "data": number, "transient": True})


class WhimOptions(Options):
    path: Path
    raises: bool = False


class Whim(Processor[WhimOptions]):
    """Drops the fifth text, but not in the process that was the first to come here: there it passes it, or raises."""

    id: ClassVar[str] = "whim"

    def process_output_stream(self, args: Any) -> Any:
        if args.part["type"] != "text-delta":
            return args.part
        count = args.state["count"] = args.state.get("count", 0) + 1
        if count != 5:
            return args.part
        if not self.options.path.exists():
            self.options.path.write_text(str(os.getpid()))
        if self.options.path.read_text() != str(os.getpid()):
            return None
        if self.options.raises:
            raise ValueError("a whim")
        return args.part


class Plodding(Processor[Options]):
    """Takes a quarter of a millisecond of CPU for each chunk."""

    id: ClassVar[str] = "plodding"

    def process_output_stream(self, args: Any) -> Any:
        until = time.thread_time() + 0.00025
        while time.thread_time() < until:
            pass
        return args.part


class BlockingOptions(Options):
    pauses: list[float]


class Blocking(Processor[BlockingOptions]):
    """Lets nothing else run while it waits: so many seconds at the first chunk of text, the second, ..."""

    id: ClassVar[str] = "blocking"

    def process_output_stream(self, args: Any) -> Any:
        if args.part["type"] == "text-delta":
            seen = args.state.get("seen", 0)
            args.state["seen"] = seen + 1
            time.sleep(self.options.pauses[seen])
        return args.part


class Notes(Processor[Options]):
    """Adds a message while the answer streams, and tells what it sees of the conversation then and later."""

    id: ClassVar[str] = "notes"

    def process_output_stream(self, args: Any) -> Any:
        kind = args.part["type"]
        if kind == "text-delta" and "noted" not in args.state:
            args.state["noted"] = True
            args.message_list.add({"role": "user", "content": "a note"}, "context")
        if kind in {"text-delta", "step-finish"}:
            args.state[kind] = _texts(args)
        return args.part

    async def process_output_result(self, args: Any) -> Any:
        seen = {**args.state, "result": _texts(args)}
        await args.writer.custom({"type": "data-seen", "data": seen, "transient": True})


def _texts(args: Any) -> list[str]:
    return [
        part["text"]
        for message in args.message_list.get.all.db()
        for part in message["content"]["parts"]
        if part["type"] == "text"
    ]


class WordOptions(Options):
    word: str
    retry: bool = False


class Block(Processor[WordOptions]):
    """Blocks a text chunk that has the word."""

    id: ClassVar[str] = "block"

    def process_output_stream(self, args: Any) -> Any:
        if self.options.word in args.part.get("payload", {}).get("text", ""):
            args.abort(f"said {self.options.word}", retry=self.options.retry)
        return args.part


class Say(Processor[WordOptions]):
    """Adds a message of the user to the conversation."""

    id: ClassVar[str] = "say"

    def process_input(self, args: Any) -> Any:
        args.message_list.add(self.options.word, "input")


class Retry(Processor[Options]):
    """Asks for the step again, once."""

    id: ClassVar[str] = "retry"

    def process_api_error(self, args: Any) -> Any:
        return {"retry": args.retry_count == 0}


class PutOptions(Options):
    values: dict[str, Any]


class Put(Processor[PutOptions]):
    """Puts values into the request context."""

    id: ClassVar[str] = "put"

    def process_input(self, args: Any) -> None:
        args.request_context.update(self.options.values)


class ReplayOptions(Options):
    response: dict[str, Any]


class Replay(Processor[ReplayOptions]):
    """Answers the first step in the model's place, and tells what it sees of that."""

    id: ClassVar[str] = "replay"

    def process_llm_request(self, args: Any) -> Any:
        return {"response": self.options.response} if args.step_number == 0 else None

    async def process_llm_response(self, args: Any) -> None:
        told = {name: getattr(args, name) for name in ("from_cache", "warnings", "request", "raw_response")}
        await args.writer.custom({"type": "data-response", "data": told, "transient": True})


class Steps(Processor[Options]):
    """Tells which steps its hooks get."""

    id: ClassVar[str] = "steps"

    async def process_input_step(self, args: Any) -> None:
        await args.writer.custom({"type": "data-steps", "data": args.steps, "transient": True})

    process_output_step = process_input_step

    async def process_output_result(self, args: Any) -> None:
        await args.writer.custom({"type": "data-steps", "data": args.result.steps, "transient": True})


class BesideOptions(Options):
    redis: str = ""
    key: str = ""
    then: Literal["pass", "block", "retry", "fail", "change", "remember"] = "pass"
    parallel: bool = True


class Beside(Processor[BesideOptions]):
    """Judges the input, beside the model unless told otherwise; at a gate, where one is named."""

    id: ClassVar[str] = "beside"

    @classmethod
    def runs_parallel(cls, options: dict[str, Any]) -> bool:
        return cls.build(options).options.parallel

    async def process_input(self, args: Any) -> Any:
        if self.options.key:
            await pass_gate(self.options.redis, self.options.key)
        args.state["asked"] = args.state.get("asked", 0) + 1
        match self.options.then:
            case "block" | "retry":
                args.abort("no such thing", retry=self.options.then == "retry", metadata={"why": "test"})
            case "fail":
                raise RuntimeError("out of order")
            case "change":
                args.message_list.add("more", "input")
            case "remember":
                args.request_context.set("seen", True)
            case "pass":
                pass
        return None

    def process_output_result(self, args: Any) -> Any:
        return [
            {**message, "content": [{"type": "text", "text": f"asked {args.state['asked']}"}]}
            if message["role"] == "assistant"
            else message
            for message in args.messages
        ]


class EndingOptions(Options):
    seconds: float = 0.0
    ends: Literal["exit", "crash"] | None = None


class Ending(Processor[EndingOptions]):
    """Takes its time, and may end its process then."""

    id: ClassVar[str] = "ending"

    async def process_input(self, args: Any) -> None:
        await asyncio.sleep(self.options.seconds)
        if self.options.ends == "exit":
            os._exit(3)
        if self.options.ends == "crash":
            signal.raise_signal(signal.SIGSEGV)


class Unmade(Processor[Options]):
    """Ends the process in which it is made."""

    id: ClassVar[str] = "unmade"

    def __init__(self, *_: Any) -> None:
        os._exit(3)

    def process_input(self, args: Any) -> None:
        """Never comes to that."""


class Swell(Processor[Options]):
    """Writes a small chunk before each step, and gives out one longer than a message when its stream ends."""

    id: ClassVar[str] = "swell"
    process_data_parts: bool = True

    async def process_input_step(self, args: Any) -> Any:
        await args.writer.custom({"type": "data-small", "data": 1})

    def process_output_stream(self, args: Any) -> Any:
        args.state["small"] = args.part["type"] == "data-small"
        return args.part

    def flush_stream(self, args: Any) -> Any:
        return {"type": "data-big", "data": "x" * 9_000_000} if args.state.get("small") else None


class Broken(Processor[Options]):
    """Fails."""

    id: ClassVar[str] = "broken"

    def process_input(self, args: Any) -> Any:
        raise RuntimeError("out of order")


@tool
async def echo(text: str) -> str:
    """Says the text again."""
    return f"echo {text}"


@tool(require_approval=True)
async def send_mail(to: str) -> str:
    """Sends a mail."""
    return f"sent to {to}"


@tool(resume_schema={"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]})
async def book(place: str, context: ToolContext) -> str:
    """Books a place on a day for which it asks."""
    if context.resume_data is None:
        context.suspend({"question": "which day?"})
    return f"{place} on {context.resume_data['day']}"


class GatedOptions(Options):
    redis: str
    key: str


class Gated(Tool):
    """Waits for the test."""

    id = "gated"
    options_type = GatedOptions

    async def execute(self, args: Any, context: ToolContext) -> Any:
        await pass_gate(self.options.redis, self.options.key)
        return "through"


def by_tier(context: Any, options: dict[str, Any]) -> list[Any]:
    """Capitals for customers of the gold tier."""
    if context["tier"] == "unknown":
        raise LookupError("no such tier")
    return ["upper"] if context["tier"] == "gold" else []


def retry_for_gold(context: Any, options: dict[str, Any]) -> list[Any]:
    """A second try for customers of the gold tier."""
    return ["retry"] if context["tier"] == "gold" else []


async def gated_factory(context: Any, options: dict[str, Any]) -> list[Any]:
    """Waits for the test."""
    await pass_gate(options["redis"], options["key"])
    return []


def register(registry: Registry) -> None:
    quoting.register(registry)
    for processor in (
        Gate,
        MemoryGate,
        Upper,
        Rated,
        Ticking,
        Whim,
        Plodding,
        Blocking,
        Notes,
        Block,
        Say,
        Retry,
        Put,
        Replay,
        Steps,
        Beside,
        Ending,
        Unmade,
        Swell,
        Broken,
    ):
        registry.add_processor(processor)
    for made in (echo, send_mail, book, Gated):
        registry.add_tool(made)
    registry.factories.update(
        {"by-tier": by_tier, "retry-for-gold": retry_for_gold, "gated-factory": gated_factory}
    )
