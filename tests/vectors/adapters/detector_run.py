"""Drives a detector with the answers that a vector gives, and judges what the rules demand of a stream."""

import copy
import json
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from procession.args import InputArgs, OutputResult, OutputResultArgs, OutputStreamArgs, RequestContext
from procession.calls import Calls, Link, abort
from procession.context import RunContext
from procession.errors import InvalidOptionsError, TripWire
from procession.message_list import MessageList
from procession.processor import Hook, Processor
from procession.services import ModelCallError, ModelRequest
from procession.structured import parse_object
from procession.testing import ScriptedModels, environment
from procession.writers import NullWriter
from tests.vectors.adapters.common import (
    NOW,
    from_chunk,
    from_message,
    from_tripwire,
    to_chunk,
    to_message,
    without,
)

_CALLBACK = re.compile(r"policy$|on[A-Z]|id$")
"""What is no option of ours; an instance is named by `as`, beside its options."""
_FENCED = re.compile(r"<text-(\w+)>\n(.*)\n</text-\1>", re.DOTALL)


def options_of(given: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Options as our build takes them: without the test's own and what was not given, with a model."""
    known = {key: value for key, value in without(given).items() if not _CALLBACK.match(key)}
    return {"model": "test/detector", **known, **more}


def raises(given: dict[str, Any]) -> bool:
    """Whether the vector's listener throws."""
    return any("throws" in f"{key}{value}".lower() for key, value in given.items() if _CALLBACK.match(key))


def judged_text(request: ModelRequest) -> str:
    """The text that a detector asked about."""
    found = _FENCED.search(request.prompt[-1]["content"][0]["text"])
    assert found is not None, "the question quotes no text"
    return found[2]


def replies(script: Any) -> Callable[[ModelRequest], Any]:
    """The model of a vector: one answer for all calls, or one for each, the last one again and again."""
    answers = script if isinstance(script, list) else [script]
    calls = count()
    return lambda _request: reply(answers[min(next(calls), len(answers) - 1)])


def reply(answer: Any) -> Any:
    """One answer as the scripted model gives it."""
    if isinstance(answer, dict) and "modelThrows" in answer:
        return ModelCallError(str(answer["modelThrows"]))
    return answer if isinstance(answer, str) else json.dumps(answer)


@dataclass
class Played:
    """What a run of a detector did.

    Attributes:
        entries: For each chunk what came of it; None where nothing did. What the end of the stream gave out follows.
        out: All chunks that went out, in order.
    """

    requests: list[ModelRequest]
    logs: list[str] = field(default_factory=list)
    messages: list[dict[str, Any]] | None = None
    entries: list[Any] = field(default_factory=list)
    out: list[dict[str, Any]] = field(default_factory=list)
    tripwire: dict[str, Any] | None = None
    throws: dict[str, Any] | None = None

    @property
    def texts(self) -> list[str]:
        """What the model was asked about."""
        return [judged_text(request) for request in self.requests]

    @property
    def text(self) -> str:
        """The text that went out."""
        return "".join(chunk["text"] for chunk in self.out if chunk["type"] == "text-delta")


async def play(
    processor: Processor[Any], script: Callable[[ModelRequest], Any], given: dict[str, Any]
) -> Played:
    """Calls the hook that the vector's input names."""
    models = ScriptedModels(script)
    played = Played(models.requests)
    calls = Calls(clock=lambda: 0, environment=environment(models, log=played.logs.append))
    hook = Hook(given["hook"])
    ctx = _context()
    common = {
        "abort": abort,
        "retry_count": 0,
        "request_context": ctx.request_context,
        "tracing_context": {},
        "state": ctx.state(processor.id),
        "run_id": "r1",
        "services": calls.services(ctx, Link(processor, processor.id), hook),
    }
    try:
        if hook is Hook.OUTPUT_STREAM:
            await _stream(processor, common, ctx, given["chunks"], played)
        else:
            await _messages(processor, common, ctx, given, played)
    except TripWire as tripwire:
        played.tripwire = from_tripwire(tripwire, processor.id)
    except Exception as error:  # noqa: BLE001 - a vector may expect it
        played.throws = {"name": type(error).__name__, "message": str(error)}
    return played


async def _messages(
    processor: Any, common: dict[str, Any], ctx: RunContext, given: dict[str, Any], played: Played
) -> None:
    messages: list[Any] = [to_message(each) for each in given["messages"]]
    for message in messages:
        ctx.messages.add({"createdAt": NOW, **copy.deepcopy(message)}, "input", merge=False)
    if given["hook"] == Hook.INPUT.value:
        args = InputArgs(**common, messages=messages, system_messages=[], message_list=ctx.messages)
        out = await processor.process_input(args)
    else:
        result = OutputResult("", {}, "stop", [])
        whole = OutputResultArgs(
            **common, messages=messages, message_list=ctx.messages, result=result, writer=NullWriter()
        )
        out = await processor.process_output_result(whole)
    played.messages = [from_message(message) for message in (messages if out is None else out)]


async def _stream(
    processor: Any, common: dict[str, Any], ctx: RunContext, chunks: Sequence[dict[str, Any]], played: Played
) -> None:
    args = OutputStreamArgs(
        **common, part={"type": ""}, stream_parts=[], message_list=ctx.messages, writer=NullWriter()
    )
    for chunk in chunks:
        args.part = to_chunk(chunk)
        args.stream_parts.append(args.part)
        out = [from_chunk(each) for each in _listed(await processor.process_output_stream(args))]
        played.out += out
        played.entries.append((out if len(out) > 1 else out[0]) if out else None)
    rest = [from_chunk(each) for each in _listed(await processor.flush_stream(args))]
    played.out += rest
    played.entries += rest


def _listed(out: Any) -> list[Any]:
    return out if isinstance(out, list) else [] if out is None else [out]


def _context() -> RunContext:
    ids = map("message-{}".format, count(1))
    messages = MessageList(new_id=ids.__next__, now=lambda: NOW)
    return RunContext(
        run_id="r1", tenant="t", agent="", message_id="a", messages=messages, request_context=RequestContext()
    )


def build_error(processor: type[Processor[Any]], options: dict[str, Any]) -> dict[str, Any] | None:
    """What is wrong with the options: the text, and the contract's id where there is one."""
    try:
        processor.build(options)
    except InvalidOptionsError as error:
        code = getattr(error, "code", None)
        return {"text": str(error), **({"id": code} if code else {})}
    return None


def now(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine that waits for nothing, inside or outside an event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits for something")


# --- what D-8 demands of a stream ------------------------------------------------------------------


_SEVERITY = ("throw", "trip", "drop", "pass")


@dataclass(frozen=True)
class Objection:
    """A text that the vector's model objects to, how, and what that does: `throw`, `trip`, `drop` or `pass`."""

    text: str
    answer: Any
    outcome: str


def objections(
    vector: dict[str, Any], script: Any, judged: str, outcome: Callable[[Any], str]
) -> list[Objection]:
    """What the vector's model objects to, gravest first; blank text is never judged here.

    Args:
        vector: The vector of a stream.
        script: One answer for all calls, or one for each; the last one repeats.
        judged: The key of the texts that the reference asked about.
        outcome: What an answer does, empty where it does nothing.
    """
    if isinstance(script, list):
        asked = vector["expected"].get(judged, [])
        answers = [(text, script[min(at, len(script) - 1)]) for at, text in enumerate(asked)]
    else:
        deltas = [chunk for chunk in vector["input"]["chunks"] if chunk["type"] == "text-delta"]
        answers = [(chunk["text"], script) for chunk in deltas]
    found = [Objection(text, answer, outcome(answer)) for text, answer in answers if text.strip()]
    return sorted((each for each in found if each.outcome), key=lambda each: _SEVERITY.index(each.outcome))


def by_content(script: Any, against: Sequence[Objection], clean: Any) -> Callable[[ModelRequest], Any]:
    """The vector's model as a function of the text: it objects to what has a text that it objected to.

    The reference asked about chunk after chunk, we ask about pieces: a list of answers by call would give other texts
    the verdicts of these. `clean` is the answer for all other text.
    """
    if not isinstance(script, list):
        return replies(script)

    def answer(request: ModelRequest) -> Any:
        asked = judged_text(request)
        return reply(next((each.answer for each in against if each.text in asked), clean))

    return answer


def splits(chunks: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The same stream cut otherwise: deltas joined as far as they touch, and one character each."""
    joined: list[dict[str, Any]] = []
    letters: list[dict[str, Any]] = []
    for chunk in chunks:
        if chunk["type"] != "text-delta":
            joined.append(chunk)
            letters.append(chunk)
            continue
        letters += [{**chunk, "text": letter} for letter in chunk["text"]]
        last = joined[-1] if joined else {"type": ""}
        if last["type"] == "text-delta" and last.get("id") == chunk.get("id"):
            joined[-1] = {**last, "text": last["text"] + chunk["text"]}
        else:
            joined.append(chunk)
    return [joined, letters]


def in_order(chunks: Sequence[dict[str, Any]]) -> list[Any]:
    """What a client makes of chunks: texts joined as far as nothing stands between them."""
    seen: list[Any] = []
    for chunk in chunks:
        if chunk["type"] != "text-delta":
            seen.append(chunk)
        elif chunk["text"] and seen and isinstance(seen[-1], str):
            seen[-1] += chunk["text"]
        elif chunk["text"]:
            seen.append(chunk["text"])
    return seen


def stream_as_demanded(
    make: Callable[[], Processor[Any]],
    script: Callable[[], Callable[[ModelRequest], Any]],
    given: dict[str, Any],
    observed: dict[str, Any],
    against: Sequence[Objection],
) -> bool:
    """Whether a stream ends as D-8 demands, and alike for every split.

    Args:
        make: Makes the processor.
        script: Makes its model.
        given: The vector's input.
        observed: What was observed, to be told here again.
        against: What the model objects to.
    """
    runs = [
        now(play(make(), script(), {**given, "chunks": cut}))
        for cut in [given["chunks"], *splits(given["chunks"])]
    ]
    first = runs[0]
    if first.entries != observed["perChunk"] or bool(first.tripwire) != ("tripwire" in observed):
        return False
    told = [(in_order(run.out), bool(run.tripwire), run.texts, run.throws) for run in runs]
    if any(each != told[0] for each in told):
        return False
    text = "".join(chunk["text"] for chunk in given["chunks"] if chunk["type"] == "text-delta")
    against = [each for each in against if each.text in text]
    outcome = against[0].outcome if against else "pass"
    ended = "throw" if first.throws else "trip" if first.tripwire else ""
    if ended != (outcome if outcome in {"throw", "trip"} else ""):
        return False
    if any(each.text in first.text for each in against if each.outcome != "pass"):
        return False
    if outcome == "drop":
        controls = [chunk for chunk in given["chunks"] if chunk["type"] != "text-delta"]
        return [chunk for chunk in first.out if chunk["type"] != "text-delta"] == controls
    return bool(ended) or in_order(first.out) == in_order(given["chunks"])


# --- what the other rules demand -----------------------------------------------------------------


def fails(answer: Any, schema: dict[str, Any]) -> bool:
    """Whether a model call with this answer counts as failed (R-COM-20)."""
    told = reply(answer)
    return isinstance(told, ModelCallError) or parse_object(told, schema)[1] is not None


def facts(told: dict[str, Any]) -> dict[str, Any]:
    """What is observed, without prose."""
    kept = {key: value for key, value in told.items() if key != "logs"}
    if kept.get("tripwire"):
        kept["tripwire"] = {key: value for key, value in kept["tripwire"].items() if key != "reason"}
    return kept


def fails_open(vector: dict[str, Any]) -> bool:
    """Whether the vector leaves the failure of the model to the default, which is `strict` here (D-1)."""
    given = vector["options"].get("errorStrategy")
    return given in (None, "<undefined>") and not vector["expected"].get("tripwire")


def rewritten_as_demanded(vector: dict[str, Any], observed: dict[str, Any]) -> str | None:
    """D-6 or D-28, where each message differs from the reference's only in what these two rules keep or leave out."""
    expected, before = (
        vector["expected"].get("messages"),
        {each["id"]: each for each in vector["input"]["messages"]},
    )
    got = observed.get("messages")
    if not expected or not got or [each["id"] for each in got] != [each["id"] for each in expected]:
        return None
    rules = set()
    for ours, theirs in zip(got, expected, strict=True):
        if ours == theirs:
            continue
        texts = [part for part in theirs["parts"] if part["type"] == "text"]
        original = before[ours["id"]]["parts"]
        others = [part for part in original if part["type"] != "text"]
        if texts != theirs["parts"] or len(texts) != 1 or _without_texts(ours["parts"]) != others:
            return None
        if [part["text"] for part in ours["parts"] if part["type"] == "text"] != [texts[0]["text"]]:
            return None
        first = next((at for at, part in enumerate(original) if part["type"] == "text"), len(original))
        if ours["parts"][first]["type"] != "text" or {**ours, "parts": 0} | {"content": 0} != {
            **theirs,
            "parts": 0,
        } | {"content": 0}:
            return None
        if ours.get("content", texts[0]["text"]) != texts[0]["text"]:
            return None
        rules.add("D-6" if others else "D-28")
    return min(rules, key=("D-6", "D-28").index) if rules else None


def _without_texts(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [part for part in parts if part["type"] != "text"]
