"""`example-processors.json`: the contract's examples, ours in `examples/processors` (R-EX)."""

import copy
import re
from typing import Any

from examples.processors.content_filter import ContentFilter
from examples.processors.dynamic_model import DynamicModel
from examples.processors.error_recovery import ErrorRecovery
from examples.processors.lowercase import Lowercase
from examples.processors.moderation_collector import ModerationCollector, ModerationNotice
from examples.processors.quality_guardrail import QualityGuardrail
from examples.processors.reasoning_transformer import ReasoningTransformer
from examples.processors.word_counter import WordCounter
from procession.args import APIErrorArgs, InputArgs, OutputStepArgs, OutputStreamArgs
from procession.errors import InvalidOptionsError, ProcessorError, TripWire
from procession.message_list import MessageList
from procession.processor import Hook, Options, Processor
from procession.testing import ProcessorKit
from tests.vectors.adapters.common import Bench, at_once, from_message, from_tripwire, splits, text_in
from tests.vectors.compare import differences as compared


async def observe(vector: dict[str, Any]) -> Any:
    """Does what the vector's input describes."""
    given = vector["input"]
    if "emits" in given:
        return await _data_parts(given["outputProcessors"])
    hook = given["hook"]
    if hook == "processInput":
        return await (_input(vector) if "messages" in given else _foreign_list())
    if hook == "processOutputStream":
        return await _stream(vector, given["chunks"])
    if hook == "processInputStep":
        return await (_reasoning(given["parts"]) if "parts" in given else _dynamic_model(given))
    if hook == "processOutputStep":
        return await (_returned(given) if "messagesBefore" in given else _quality(vector))
    return await (_handlers(given["handlers"]) if "handlers" in given else _recovery(given))


# --- input -----------------------------------------------------------------------------------------


def _named(name: str, options: dict[str, Any]) -> Processor[Any]:
    """A processor of a chain: `lowercase`, `content-filter`, `content-filter(word)`, or one that tests need."""
    if found := re.fullmatch(r"content-filter(?:\((.*)\))?", name):
        words = found[1].split(",") if found[1] else options.get("blockedWords", [])
        return ContentFilter.build({"blockedWords": words})
    if found := re.fullmatch(r"drops-text-(.*)", name):
        return _Drops(found[1])
    known = {"lowercase": Lowercase, "word-counter": WordCounter, "moderation-collector": ModerationCollector}
    known |= {"wraps-text-in-brackets": _Wraps, "returns-nothing": _ReturnsNothing, "throws": _Throws}
    return known[name].build()


async def _input(vector: dict[str, Any]) -> dict[str, Any]:
    options, given = vector["options"], vector["input"]["messages"]
    default = ["content-filter"] if "blockedWords" in options else ["lowercase"]
    try:
        bench = Bench([_named(name, options) for name in options.get("chain", default)])
    except InvalidOptionsError as error:
        return {"throws": str(error)}
    told: dict[str, Any] = {}
    try:
        await bench.messages(Hook.INPUT, given)
    except TripWire as tripwire:
        told["tripwire"] = from_tripwire(tripwire)
    shown = [from_message(message) for message in bench.seen]
    return told | {
        "messages": [{k: v for k, v in m.items() if k in was} for m, was in zip(shown, given, strict=True)]
    }


class _Foreign(Processor[Options]):
    """Returns a message list of its own."""

    id = "foreign"

    def process_input(self, args: InputArgs) -> MessageList:
        """Breaks R-IN-3."""
        return MessageList(new_id=lambda: "x", now=lambda: "2026-01-01T00:00:00.000Z")


async def _foreign_list() -> dict[str, Any]:
    try:
        await ProcessorKit(_Foreign).input("hello")
    except ProcessorError as error:
        return {"throwsId": error.code}
    return {}


# --- streams ---------------------------------------------------------------------------------------


class _Drops(Processor[Any]):
    """Drops the deltas of one text."""

    id = "drops-text"

    def __init__(self, text: str) -> None:
        self._text = text

    def process_output_stream(self, args: OutputStreamArgs) -> Any:
        """None for that text."""
        return None if (args.part.get("payload") or {}).get("text") == self._text else args.part


class _Wraps(Processor[Options]):
    """Puts text into brackets."""

    id = "wraps-text-in-brackets"

    def process_output_stream(self, args: OutputStreamArgs) -> Any:
        """A changed copy."""
        part = args.part
        if part["type"] != "text-delta":
            return part
        return {**part, "payload": {**part["payload"], "text": f"[{part['payload']['text']}]"}}


class _ReturnsNothing(Processor[Options]):
    """Forgets to return."""

    id = "returns-nothing"

    def process_output_stream(self, args: OutputStreamArgs) -> Any:
        """Drops all chunks."""


class _Throws(Processor[Options]):
    """Fails."""

    id = "throws"

    def process_output_stream(self, args: OutputStreamArgs) -> Any:
        """Its failure is skipped: the default of this hook."""
        raise ValueError("broken")


async def _stream(vector: dict[str, Any], chunks: list[dict[str, Any]]) -> dict[str, Any]:
    bench = Bench([_named(name, vector["options"]) for name in vector["input"]["processors"]])
    streamed = await bench.stream(chunks)
    told: dict[str, Any] = {"emitted": [c for c in streamed.out if c["type"] != "data-word-count"]}
    if "word-counter" in vector["input"]["processors"]:
        totals = [c["data"]["words"] for c in streamed.out if c["type"] == "data-word-count"]
        told["sink"] = {"total": totals[-1]} if totals else {}
    return told | ({"blocked": streamed.tripwire} if streamed.tripwire else {})


class _Plain(Processor[Options]):
    """Sees chunks, but not data."""

    id = "plain"
    process_data_parts = False

    def process_output_stream(self, args: OutputStreamArgs) -> Any:
        """Keeps the types of what it sees."""
        args.state.setdefault("seen", []).append(args.part["type"])
        return args.part


class _Dropper(_Plain):
    """Drops data."""

    id = "dropper"
    process_data_parts = True

    def process_output_stream(self, args: OutputStreamArgs) -> Any:
        """None for data."""
        return None if args.part["type"].startswith("data-") else args.part


async def _data_parts(behind: str) -> dict[str, Any]:
    collects, drops = "collector" in behind, "drop" in behind
    processor = ModerationCollector if collects else _Dropper if drops else _Plain
    kit = ProcessorKit(ModerationNotice, then=[processor])
    kit.message_list.add("this is urgent", "input")
    out = await kit.input_step()
    state = kit.context.state(processor.id)
    sink: dict[str, Any] = {}
    if collects:
        sink["warnings"] = [{"level": warning["level"]} for warning in state.get("warnings", [])]
    elif not drops:
        sink["seen"] = state.get("seen", [])
    return {"dataChunksReachingClient": [chunk["type"] for chunk in out.written], "sink": sink}


# --- steps -----------------------------------------------------------------------------------------


async def _dynamic_model(given: dict[str, Any]) -> dict[str, Any]:
    kit = ProcessorKit(DynamicModel, model="own/model")
    kit.context.step_number = given["stepNumber"]
    kit.context.steps = given["steps"]
    config = (await kit.input_step()).config
    told = {"model": config.model} if config.model != "own/model" else {}
    return {
        "result": told
        | ({"toolChoice": config.tool_choice} if config.tool_choice not in (None, "auto") else {})
    }


async def _reasoning(kinds: list[str]) -> dict[str, Any]:
    kit = ProcessorKit(ReasoningTransformer)
    parts = [{"type": kind, "text": kind, kind: kind} for kind in kinds]
    kit.message_list.add({"role": "assistant", "content": {"format": 2, "parts": parts}}, "memory")
    out = await kit.input_step()
    return {"partTypes": [part["type"] for part in out.messages[0]["content"]["parts"]]}


class _Scored(QualityGuardrail):
    """Gets its scores from the vector; the last one stays."""

    scores: list[float]

    def score(self, text: str) -> float:
        """The next one."""
        return self.scores.pop(0) if len(self.scores) > 1 else self.scores[0]


async def _quality(vector: dict[str, Any]) -> dict[str, Any]:
    guardrail = _Scored.build()
    guardrail.scores = list(vector["input"]["scores"])
    budget = vector["options"].get("maxProcessorRetries", 0)
    kit = ProcessorKit(guardrail, instructions="Answer.")
    kit.message_list.add("question", "input")
    prompts: list[list[dict[str, Any]]] = []
    reasons: list[str] = []
    while True:
        prompts.append(kit.prompt())
        out = await kit.output_step(f"answer {len(prompts)}")
        reasons += [out.tripwire.reason] if out.tripwire else []
        if not (out.tripwire and out.tripwire.retry) or kit.context.retry_count > budget:
            break
    answers = [text for text in out.texts if text != "question"]
    told = {
        "modelCalls": len(prompts),
        "text": answers[-1] if answers else "",
        "finishReason": "other" if out.tripwire else "stop",
        "tripwire": from_tripwire(out.tripwire) if out.tripwire else None,
    }
    if len(prompts) > 1:
        told |= {
            "secondPromptRoles": [entry["role"] for entry in prompts[1]],
            "secondPromptMentionsReason": reasons[0] in str(prompts[1]),
            "secondPromptContainsRejectedAnswer": "answer 1" in str(prompts[1]),
        }
    return told


class _ReturnsEmpty(Processor[Options]):
    """The idiom of the contract's example."""

    id = "returns-empty"

    def process_output_step(self, args: OutputStepArgs) -> Any:
        """Nothing to change."""
        return []


class _ReturnsNone(Processor[Options]):
    """The plain form."""

    id = "returns-none"

    def process_output_step(self, args: OutputStepArgs) -> Any:
        """Nothing to change."""


async def _returned(given: dict[str, Any]) -> dict[str, Any]:
    kit = ProcessorKit(_ReturnsEmpty if "scores" in given else _ReturnsNone)
    *before, last = given["messagesBefore"]
    kit.message_list.add(before, "input")
    return {"messagesAfter": (await kit.output_step(last)).texts}


# --- errors ----------------------------------------------------------------------------------------


async def _recovery(given: dict[str, Any]) -> dict[str, Any]:
    kit = ProcessorKit(ErrorRecovery)
    messages = [
        {"id": f"m{at}", "role": ("user", "assistant")[at % 2], "content": str(at)}
        for at in range(given["messageCount"])
    ]
    kit.message_list.add(messages, "input")
    kit.context.retry_count = given["retryCount"]
    out = await kit.api_error(given["error"]["message"], name=given["error"]["kind"])
    return {"retry": out.retry, "remaining": [message["id"] for message in out.messages]}


class _Handler(Processor[Any]):
    """One of several error processors: `name does`."""

    def __init__(self, told: str) -> None:
        self.id, _, self._does = told.partition(" ")  # type: ignore[misc]  # one class stands for several

    def process_api_error(self, args: APIErrorArgs) -> Any:
        """Throws, retries, or returns nothing."""
        args.state["ran"] = True
        if "throws" in self._does:
            raise ValueError(self.id)
        return {"retry": True} if "retries" in self._does else None


async def _handlers(told: list[str]) -> dict[str, Any]:
    first, *behind = [_Handler(each) for each in told]
    first.options = Options()
    for handler in behind:
        handler.options = Options()
    kit = ProcessorKit(first, then=behind)
    out = await kit.api_error()
    ran = [handler.id for handler in (first, *behind) if kit.context.state(handler.id).get("ran")]
    return {"ran": ran, "result": {"retry": True} if out.retry else {}}


# --- rules that override ---------------------------------------------------------------------------


def override(vector: dict[str, Any], observed: Any, differences: list[str]) -> str | None:
    """A-5, A-7, D-8, D-28, D-52, each with what it demands."""
    given, expected = vector["input"], vector["expected"]
    words = vector["options"].get("blockedWords", [])
    if "messagesBefore" in given:
        return "A-5" if "scores" in given and observed == {"messagesAfter": given["messagesBefore"]} else None
    if given.get("hook") == "processOutputStep":
        blocked = {**expected, "text": "", "finishReason": "other"}
        return (
            "A-7"
            if expected.get("tripwire") and not compared({**vector, "expected": blocked}, observed)
            else None
        )
    if "" in words:
        return "D-52" if "throws" in observed else None
    if given.get("hook") == "processOutputStream" and "content-filter" in given["processors"]:
        return "D-8" if _same_for_all_splits(vector, words) else None
    return "D-28" if "messages" in expected and _flat_follows(vector, observed) else None


def _flat_follows(vector: dict[str, Any], observed: dict[str, Any]) -> bool:
    """Whether only the old flat copy differs, and ours is what the parts say."""
    wanted = copy.deepcopy(vector)
    for message, ours in zip(wanted["expected"]["messages"], observed.get("messages", ()), strict=False):
        texts = [part["text"] for part in ours.get("parts", ()) if part["type"] == "text"]
        if "content" in message and texts:
            message["content"] = texts[-1]
    return not compared(wanted, observed)


def _same_for_all_splits(vector: dict[str, Any], words: list[str]) -> bool:
    """Whether nothing of a blocked word leaves, and the run is blocked where the text has one, however it is cut."""
    chunks = vector["input"]["chunks"]
    text = text_in(chunks)
    places = [text.find(word) for word in words if word in text]
    for cut in [chunks, *splits(chunks)]:
        told = at_once(_stream(vector, cut))
        out = text_in(told["emitted"])
        if bool(told.get("blocked")) != bool(places):
            return False
        if not (text[: min(places)].startswith(out) if places else out == text):
            return False
    return True
