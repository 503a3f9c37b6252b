"""What the built-in processors cost by themselves: no bus, no model, one process.

`python -m benchmarks processors` calls the hooks of every registered processor that needs no model: text in chunks
through the stream hook, messages through the input hook, prompts through the request hook. Then it feeds them what is
meant to be expensive, four times as much of it each time: where the time for a kilobyte stays, the cost is linear.
"""

import asyncio
import time
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from procession.args import InputArgs, LLMRequestArgs, ModelInfo, RequestContext
from procession.calls import Calls, Link, abort
from procession.context import RunContext
from procession.errors import InvalidOptionsError, ProcessionError, TripWire
from procession.message_list import MessageList
from procession.processor import Hook, Processor
from procession.registry import Registry
from procession.stream import StreamChain
from procession.testing import environment
from procession_schemas.chunks import Chunk

OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "pii-detector": {"strategy": "redact"},
    "regex-filter": {"presets": ["pii", "secrets", "urls"], "strategy": "redact"},
    "system-prompt-scrubber": {"customPatterns": [r"my instructions (?:are|say)[^.]{0,200}"]},
    "token-limiter": {"limit": 10**9},
}
"""Options of processors that need some, or that do little without."""

PATHOLOGICAL: Final = {
    "runs of matches": "a.b@example.com 4111 1111 1111 1111 ",
    "letters without end": "a",
    "digits without end": "1",
    "beginnings of matches": "a@a.",
    "broken surrogates": "\ud83d",
    "white space": " ",
    "emojis": "\U0001f468\u200d\U0001f469",
}
CATASTROPHIC: Final = {"rules": [{"name": "bad", "pattern": "(?:a|aa)+$"}], "strategy": "redact"}
"""A pattern whose cost doubles with every other character of `aaa...b`."""

_PROSE: Final = "The quick brown fox jumps over the lazy dog, and 12 dogs do not mind. "
_CHUNK: Final = 20
_LARGER_CHUNK: Final = 200
_DELAYED: Final = 5_000
_HOOKS: Final = (Hook.OUTPUT_STREAM, Hook.INPUT, Hook.LLM_REQUEST)
_PATIENCE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much text, in characters, how often, and how large the smaller pathological text is."""

    text: int = 20_000
    repetitions: int = 5
    pathological: int = 32_000
    part: int = 1_000_000


QUICK: Final = Size(text=1_000, repetitions=1, pathological=1_000, part=20_000)


class Subject:
    """One processor, whose hooks are called with nothing around them."""

    def __init__(self, processor: Processor[Any]) -> None:
        self._link = Link(processor, processor.id, on_error="fail")
        self._calls = Calls(clock=time.perf_counter_ns, environment=environment(now=time.time))

    async def run(self, hook: Hook, text: str, chunk: int = _CHUNK) -> None:
        """Takes a text through a hook: in chunks, as one message, or as a prompt."""
        if hook is Hook.OUTPUT_STREAM:
            await self._stream([text[at : at + chunk] for at in range(0, len(text), chunk)])
        else:
            await self._calls.call(self._link, hook, self._args(hook, text))

    async def _stream(self, texts: list[str]) -> None:
        chain = StreamChain([self._link], _context(), self._calls, lambda _chunk: None)
        for text in texts:
            await chain.feed({"type": "text-delta", "payload": {"id": "t", "text": text}})
        end: Chunk = {"type": "text-end", "payload": {"id": "t"}}
        await chain.feed(end)
        await chain.end()

    async def delay(self, text: str, chunk: int = _CHUNK) -> dict[str, float]:
        """How many characters wait after each chunk of a text in which nothing is found: on average, and at most."""
        out: list[int] = []
        chain = StreamChain(
            [self._link], _context(), self._calls, lambda c: out.append(len(c["payload"]["text"]))
        )
        waiting: list[int] = []
        for at in range(0, len(text), chunk):
            await chain.feed({"type": "text-delta", "payload": {"id": "t", "text": text[at : at + chunk]}})
            waiting.append(min(at + chunk, len(text)) - sum(out))
        return {"mean": sum(waiting) / len(waiting), "max": max(waiting)}

    def _args(self, hook: Hook, text: str) -> Any:
        context = _context()
        common: dict[str, Any] = {
            "abort": abort,
            "retry_count": 0,
            "request_context": context.request_context,
            "tracing_context": {},
            "state": context.state(self._link.id),
            "run_id": "r",
            "services": self._calls.services(context, self._link, hook),
            "message_list": context.messages,
        }
        if hook is Hook.INPUT:
            context.messages.add(text, "input")
            return InputArgs(**common, messages=context.messages.get.all.db(), system_messages=[])
        prompt = [{"role": "user", "content": [{"type": "text", "text": text}]}]
        model = ModelInfo("openai/gpt-4o-mini", "openai", "gpt-4o-mini")
        return LLMRequestArgs(**common, step_number=0, steps=[], prompt=prompt, model=model)


def _context() -> RunContext:
    messages = MessageList(new_id=map("m{}".format, count()).__next__, now=lambda: "2026-01-01T00:00:00.000Z")
    return RunContext(
        run_id="r", tenant="t", agent="a", message_id="m", messages=messages, request_context=RequestContext()
    )


async def seconds(
    subject: Subject, hook: Hook, text: str, chunk: int, repetitions: int
) -> tuple[float, str | None]:
    """The best time of several, and what ended the work where it did not come to its end."""
    best, ended = float("inf"), None
    for _ in range(repetitions):
        started = time.perf_counter()
        try:
            await subject.run(hook, text, chunk)
        except TripWire as tripwire:
            ended = f"blocked: {tripwire.reason}"
        except ProcessionError as error:
            ended = f"failed: {error}"
        best = min(best, time.perf_counter() - started)
        if best > _PATIENCE:
            break
    return best, ended


async def processors(size: Size, registry: Registry) -> dict[str, Any]:
    """Measures all that can be.

    Returns:
        `costs` (by processor and hook: `us_per_kb`, and of streams `us_per_chunk` and the characters that wait after
        a chunk, `waiting_mean` and `waiting_max`), `growth` (by processor, hook and kind of text: `us_per_kb` of some
        and of four times as much, and what ended it), `part` (seconds for one huge chunk), `catastrophic` (seconds
        until the pattern was stopped, and how), `skipped` (id to reason).
    """
    told: dict[str, Any] = {"costs": {}, "growth": {}, "part": {}, "skipped": {}}
    for name in sorted(registry.processors):
        try:
            subject = Subject(registry.processors[name].build(OPTIONS.get(name)))
            hooks = [h for h in _HOOKS if h in registry.processors[name].hooks_for(OPTIONS.get(name, {}))]
            costs = {hook: await _cost(subject, hook, size) for hook in hooks}
        except (InvalidOptionsError, ProcessionError) as error:
            told["skipped"][name] = str(error)
            continue
        if not costs:
            told["skipped"][name] = "has none of these hooks"
            continue
        told["costs"][name] = costs
        told["growth"][name] = {hook: await _growth(subject, hook, size) for hook in hooks}
        huge = _prose(size.part)
        told["part"][name] = {hook: (await seconds(subject, hook, huge, size.part, 1))[0] for hook in hooks}
    bad = Subject(registry.processors["regex-filter"].build(CATASTROPHIC))
    spent, ended = await seconds(bad, Hook.OUTPUT_STREAM, "a" * 60 + "b", 100, 1)
    return {**told, "catastrophic": {"seconds": spent, "ended": ended}}


def _prose(size: int) -> str:
    return (_PROSE * (size // len(_PROSE) + 1))[:size]


async def _cost(subject: Subject, hook: Hook, size: Size) -> dict[str, float]:
    text = _prose(size.text)
    spent, ended = await seconds(subject, hook, text, _CHUNK, size.repetitions)
    if ended:
        raise ProcessionError(ended)
    cost = {"us_per_kb": spent * 1e6 / (size.text / 1000)}
    if hook is not Hook.OUTPUT_STREAM:
        return cost
    waits = await subject.delay(text[:_DELAYED])
    return cost | {
        "us_per_chunk": spent * 1e6 / (size.text / _CHUNK),
        "waiting_mean": waits["mean"],
        "waiting_max": waits["max"],
    }


async def _growth(subject: Subject, hook: Hook, size: Size) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for kind, unit in PATHOLOGICAL.items():
        costs: list[float] = []
        ended = None
        for length in (size.pathological, 4 * size.pathological):
            text = (unit * (length // len(unit) + 1))[:length]
            spent, ended = await seconds(subject, hook, text, _LARGER_CHUNK, min(size.repetitions, 2))
            costs.append(spent * 1e6 / (length / 1000))
        told[kind] = {"us_per_kb": costs, "ended": ended}
    return told


def measure(size: Size) -> dict[str, Any]:
    """Runs everything, with the processors that are installed."""
    return asyncio.run(processors(size, Registry.load()))
