"""What adapters share: messages and chunks in the form of the vectors and in ours, and hooks called by hand."""

import copy
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from procession.args import (
    InputArgs,
    OutputResult,
    OutputResultArgs,
    OutputStreamArgs,
    RequestContext,
    Violation,
)
from procession.calls import Calls, Link, abort
from procession.context import RunContext
from procession.errors import TripWire
from procession.message_list import MessageList
from procession.processor import Hook, Processor
from procession.stream import StreamChain
from procession.testing import ScriptedModels, environment
from procession.writers import NullWriter
from procession_schemas.chunks import Chunk

NOW = "2026-01-01T00:00:00.000Z"


def to_message(told: dict[str, Any]) -> dict[str, Any]:
    """A message out of a flattened one; a bare string content and a legacy flat one become parts (D-28)."""
    content: dict[str, Any] = {"format": 2, "parts": copy.deepcopy(told.get("parts", []))}
    for key in ("content", "metadata"):
        if told.get(key) is not None:
            content[key] = told[key]
    legacy = told.get("contentString", told.get("content"))
    if "parts" not in told and isinstance(legacy, str):
        content["parts"] = [{"type": "text", "text": legacy}]
    return {key: told[key] for key in ("id", "role", "createdAt") if key in told} | {"content": content}


def from_message(message: Any) -> dict[str, Any]:
    """A message as vectors show it."""
    content = message["content"]
    shown = {"id": message.get("id"), "role": message["role"], "parts": content["parts"]}
    return shown | {key: content[key] for key in ("content", "metadata") if key in content}


def to_chunk(told: dict[str, Any]) -> Chunk:
    """A chunk out of one as vectors show it."""
    if told["type"] != "text-delta":
        return dict(told)  # type: ignore[return-value]
    rest = {key: value for key, value in told.items() if key not in ("type", "id", "text", "runId")}
    return {
        "type": "text-delta",
        "payload": {"id": told["id"], "text": told["text"], **rest},
        "runId": told["runId"],
    }


def from_chunk(chunk: Any) -> dict[str, Any]:
    """A chunk as vectors show it."""
    if chunk["type"] != "text-delta":
        return dict(chunk)
    return {"type": "text-delta", **chunk["payload"], "runId": chunk.get("runId")}


def from_tripwire(tripwire: TripWire, processor_id: str = "") -> dict[str, Any]:
    """An abort as vectors show it."""
    told: dict[str, Any] = {"reason": tripwire.reason}
    if tripwire.retry:
        told["retry"] = True
    if tripwire.metadata is not None:
        told["metadata"] = tripwire.metadata
    return told | {"processorId": tripwire.processor_id or processor_id}


def without(options: dict[str, Any]) -> dict[str, Any]:
    """Options without callbacks and without what was given as undefined."""
    return {
        key: value
        for key, value in options.items()
        if not (isinstance(value, str) and (value == "<undefined>" or value.startswith("<function")))
    }


def text_in(chunks: Iterable[dict[str, Any]]) -> str:
    """The text of chunks as vectors show them."""
    return "".join(chunk["text"] for chunk in chunks if chunk["type"] == "text-delta")


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine that waits for nothing, inside or outside an event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits for something")


def splits(steps: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The same stream cut otherwise: one character each, and neighbours of one block joined."""
    letters: list[dict[str, Any]] = []
    joined: list[dict[str, Any]] = []
    for step in steps:
        is_text = step.get("type") == "text-delta" and step["text"]
        letters += [{**step, "text": letter} for letter in step["text"]] if is_text else [step]
        last = joined[-1] if joined else {}
        if is_text and last.get("type") == "text-delta" and last["id"] == step["id"]:
            joined[-1] = {**last, "text": last["text"] + step["text"]}
        else:
            joined.append(step)
    return [letters, joined]


class _Sink(Processor[Any]):
    """The last of a chain: sees all that leaves it, `finish` included."""

    id = "sink"
    process_data_parts = True

    def __init__(self, got: list[dict[str, Any]]) -> None:
        self._got = got

    def process_output_stream(self, args: OutputStreamArgs) -> Chunk:
        """Keeps the chunk."""
        self._got.append(from_chunk(args.part))
        return args.part


@dataclass
class Streamed:
    """What a chain of stream processors did.

    Attributes:
        steps: For each chunk (and each time that passed) what came out at it, in order.
        flushed: What came out when the stream ended.
        tripwire: The abort that ended it.
    """

    steps: list[list[dict[str, Any]]] = field(default_factory=list)
    flushed: list[dict[str, Any]] = field(default_factory=list)
    tripwire: dict[str, Any] | None = None

    @property
    def out(self) -> list[dict[str, Any]]:
        """All that came out."""
        return [chunk for step in self.steps for chunk in step] + self.flushed


@dataclass
class Bench:
    """Calls hooks of processors outside a service; notes warnings and violations. `clock` is the time, in ms."""

    processors: Sequence[Processor[Any]]
    models: ScriptedModels = field(default_factory=ScriptedModels)
    logs: list[dict[str, Any]] = field(default_factory=list)
    violations: list[dict[str, Any]] = field(default_factory=list)
    clock: float = 0

    def __post_init__(self) -> None:
        self.seen: list[Any] = []
        self.calls = Calls(
            clock=lambda: int(self.clock * 1e6),
            violation=self._violated,
            environment=environment(self.models, now=lambda: self.clock / 1000, log=self._warned),
        )
        messages = MessageList(new_id=map("message-{}".format, count(1)).__next__, now=lambda: NOW)
        self.context = RunContext(
            run_id="r1",
            tenant="t",
            agent="",
            message_id="a",
            messages=messages,
            request_context=RequestContext(),
        )

    def _warned(self, text: str) -> None:
        self.logs.append({"level": "warn", "text": text})

    async def _violated(self, violation: Violation, _hook: Hook, _retry: bool) -> None:
        told = {"processorId": violation.processor_id, "message": violation.message}
        self.violations.append(told | ({} if violation.detail is None else {"detail": violation.detail}))

    async def messages(self, hook: Hook, given: Sequence[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
        """Calls the input or the result hook of each processor; the messages before and after. `seen` has the last.

        Raises:
            TripWire: A processor aborted.
        """
        before = [to_message(told) for told in given]
        for message in before:
            if message["content"]["parts"] or "content" in message["content"]:
                self.context.messages.add({"createdAt": NOW, **copy.deepcopy(message)}, "input")
        self.seen = before
        for at, processor in enumerate(self.processors):
            link = Link(processor, processor.id, at)
            after = await self.calls.call(link, hook, self._args(link, hook))
            self.seen = self.seen if after is None else after
        return before, self.seen

    def _args(self, link: Link, hook: Hook) -> Any:
        common: dict[str, Any] = {
            "abort": abort,
            "retry_count": 0,
            "request_context": self.context.request_context,
            "tracing_context": {},
            "state": self.context.state(link.id),
            "run_id": "r1",
            "services": self.calls.services(self.context, link, hook),
            "messages": list(self.seen),
            "message_list": self.context.messages,
        }
        if hook is Hook.INPUT:
            return InputArgs(**common, system_messages=[])
        return OutputResultArgs(**common, result=OutputResult("", {}, "stop", []), writer=NullWriter())

    async def stream(self, steps: Sequence[dict[str, Any]]) -> Streamed:
        """Takes chunks through the processors; `{"wait": ms}` lets time pass."""
        got: list[dict[str, Any]] = []
        links = [Link(p, p.id, at) for at, p in enumerate((*self.processors, _Sink(got)))]
        chain = StreamChain(links, self.context, self.calls, lambda _chunk: None)
        streamed = Streamed()
        try:
            for step in steps:
                if "wait" in step:
                    self.clock += step["wait"]
                    await chain.wake()
                else:
                    await chain.feed(to_chunk(step))
                streamed.steps.append(got.copy())
                got.clear()
            await chain.end()
            streamed.flushed = got
        except TripWire as tripwire:
            streamed.steps.append(got.copy())
            streamed.tripwire = from_tripwire(tripwire)
        return streamed
