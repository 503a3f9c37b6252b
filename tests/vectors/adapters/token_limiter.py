"""`token-limiter.json`: one hook of one limiter on a list, a prompt, a stream or an answer."""

import asyncio
import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from procession import hooks
from procession.args import InputStepArgs, ModelInfo, RequestContext, own
from procession.calls import Calls, Link, abort
from procession.context import RunContext
from procession.errors import InvalidOptionsError, TripWire
from procession.message_list import MessageList
from procession.processor import Hook
from procession.stream import StreamChain
from procession.testing import environment
from procession_services.processors.core.token_budget import (
    PER_CONVERSATION,
    PER_MESSAGE,
    Weight,
    calls_of_message,
    weigh_entry,
    weigh_message,
)
from procession_services.processors.core.token_counter import ESTIMATOR
from procession_services.processors.token_limiter import TokenLimiter
from tests.vectors.adapters.token_estimator import HALF
from tests.vectors.compare import differences as compare

_HOOKS = {
    "processInput": Hook.INPUT,
    "processInputStep": Hook.INPUT_STEP,
    "processLLMRequest": Hook.LLM_REQUEST,
    "processOutputStream": Hook.OUTPUT_STREAM,
    "processOutputResult": Hook.OUTPUT_RESULT,
}
_SOURCES = {
    "stored": "memory",
    "messages": "input",
    "input": "input",
    "context": "context",
    "response": "response",
}


class Recording(TokenLimiter):
    """A limiter that notes what it is told about trimming."""

    trims: list[list[str]]

    def on_memory_trim(self, messages: list[Any], request_context: RequestContext) -> None:
        """Notes the ids."""
        self.trims.append([message["id"] for message in messages])


class Case:
    """A limiter in a run."""

    def __init__(self, vector: dict[str, Any]) -> None:
        self.given = vector["input"]
        self.limiter = limiter_class(vector["options"]).build(options_of(vector))
        self.limiter.trims = []
        self.hook = _HOOKS[self.given["hook"]]
        self.context = RunContext(
            run_id="r1",
            tenant="test",
            agent="",
            message_id="answer",
            messages=MessageList(new_id=map("made-{}".format, range(999)).__next__, now=lambda: _at(999)),
        )
        self.calls = Calls(clock=lambda: 0, environment=environment())
        self.link = Link(self.limiter, self.limiter.id)
        self.written: list[Any] = []
        self._fill()

    @property
    def links(self) -> list[Link]:
        """The limiter, where it has the hook with its options."""
        has = self.hook in self.limiter.hooks_for(self.limiter.options.model_dump(by_alias=True))
        return [self.link] if has else []

    def _fill(self) -> None:
        messages = self.context.messages
        for text in self.given.get("system") or []:
            messages.add_system(text)
        for text in self.given.get("taggedSystem") or []:
            messages.add_system(text, "memory")
        flat = [(m, source) for key, source in _SOURCES.items() for m in self.given.get(key) or []]
        source_of = {"processOutputResult": "response"}.get(self.given["hook"])
        for number, (message, source) in enumerate(flat):
            messages.add({"createdAt": _at(number), **stored(message)}, source_of or source, merge=False)

    def ids(self) -> list[str]:
        """The ids of the conversation."""
        return [message["id"] for message in self.context.messages.get.all.db()]

    async def custom(self, chunk: Any) -> None:
        """Takes what is written to the client."""
        self.written.append(chunk)


def limiter_class(options: dict[str, Any]) -> type[Recording]:
    """The limiter, with the counter that a vector describes ("... 10 ...": every message counts ten)."""
    told = options.get("tokenCounter")
    number = re.search(r"\d+(?:\.\d+)?", str(told))
    if told is None or number is None:
        return Recording

    each = float(number[0])

    class Counting(Recording):
        def count_message(self, message: Any, counter: Any = ESTIMATOR) -> float:
            return each

    return Counting


def options_of(vector: dict[str, Any]) -> dict[str, Any]:
    """The options as a user of ours gives them."""
    options = {k: v for k, v in vector["options"].items() if k not in ("tokenCounter", "onMemoryTrim")}
    return {"limit": options["asNumber"]} if "asNumber" in options else options


def stored(flat: dict[str, Any]) -> dict[str, Any]:
    """A flattened message in stored form; a bare string becomes a part when it enters (D-28)."""
    bare = flat.get("contentString", flat.get("text"))
    parts = flat.get("parts")
    if parts is None:
        parts = [{"type": "text", "text": bare if bare is not None else flat.get("content", "")}]
    content = {"format": 2, "parts": parts}
    if bare is None and "parts" in flat and "content" in flat:
        content["content"] = flat["content"]
    return {"id": flat["id"], "role": flat["role"], "content": content}


def shown(message: Any) -> dict[str, Any]:
    """A stored message, flattened."""
    flat = {"id": message["id"], "role": message["role"], "parts": message["content"]["parts"]}
    return flat | {
        key: message["content"][key] for key in ("content", "metadata") if key in message["content"]
    }


async def observe(vector: dict[str, Any]) -> Any:
    """Makes the limiter and calls the hook."""
    hook = vector["input"].get("hook", vector["input"].get("call"))
    try:
        if hook in ("constructor", "countMessage"):
            return _without_run(vector, hook)
        case = Case(vector)
    except InvalidOptionsError as error:
        return {"throws": str(error)}
    seen = {
        "processLLMRequest": _prompt,
        "processOutputStream": _stream,
        "processOutputResult": _result,
    }.get(hook, _list)
    return await seen(case)


def _without_run(vector: dict[str, Any], hook: str) -> dict[str, Any]:
    limiter = limiter_class(vector["options"]).build(options_of(vector))
    if hook == "constructor":
        return {"ok": True, "getMaxTokens": limiter.max_tokens}
    return {"tokens": limiter.count_message(stored(vector["input"]["message"]))}


async def _list(case: Case) -> dict[str, Any]:
    context = case.context
    seen: dict[str, Any] = {}
    try:
        if case.hook is Hook.INPUT:
            await hooks.run_input(context, case.links, case.calls)
        elif case.links or case.given.get("llmRequestStage") is not False:
            await hooks.run_input_step(context, case.links, case.calls, case)
        else:
            await case.limiter.trim_list(_step_args(case))
    except TripWire as tripwire:
        seen["tripwire"] = _tripped(tripwire)
    seen["remainingIds"] = case.ids()
    if "stored" in case.given:
        return seen | {"onMemoryTrimCalls": case.limiter.trims}
    return seen if "tripwire" in seen else seen | {"returns": "<undefined>"}


def _step_args(case: Case) -> InputStepArgs:
    """Arguments as a caller without a request stage makes them."""
    context = case.context
    return InputStepArgs(
        abort=abort,
        retry_count=0,
        request_context=context.request_context,
        tracing_context={},
        state={},
        run_id=context.run_id,
        services=case.calls.services(context, case.link, case.hook, case),
        step_number=0,
        steps=[],
        messages=context.messages.get.all.db(),
        message_list=context.messages,
        system_messages=[],
        model=ModelInfo(""),
        tool_choice=None,
        active_tools=None,
        tools={},
        provider_options={},
        model_settings={},
        structured_output=None,
        message_id="",
    )


async def _prompt(case: Case) -> dict[str, Any]:
    prompt = case.given["prompt"]
    case.context.prompt = prompt
    try:
        await hooks.run_llm_request(case.context, case.links, case.calls, case)
    except TripWire as tripwire:
        return {"tripwire": _tripped(tripwire)}
    kept = case.context.prompt
    if kept is prompt:
        return {"unchanged": True}
    return {"keptIndexes": [place for place, entry in enumerate(prompt) if any(entry is k for k in kept)]}


async def _stream(case: Case) -> dict[str, Any]:
    out: list[Any] = []
    chain = StreamChain(case.links, case.context, case.calls, out.append)
    seen: dict[str, Any] = {"perChunk": [], "emittedData": []}
    for chunk in case.given["chunks"]:
        try:
            left = await _one(chain, chunk, out)
        except TripWire as tripwire:
            seen["tripwire"] = _tripped(tripwire)
            break
        seen["perChunk"].append(left)
    seen["emittedData"] = [c for c in out if c["type"].startswith("data-")]
    if case.links:
        seen["finalCount"] = _final_count(case, seen)
    return seen


async def _one(chain: StreamChain, chunk: dict[str, Any], out: list[Any]) -> dict[str, Any] | None:
    """What is left of a chunk; lifecycle chunks that the chain itself keeps from the client count as passed."""
    made = dict(chunk)
    if chunk["type"] == "text-delta":
        made["payload"] = {"id": made.pop("id"), "text": made.pop("text")}
    before = len(out)
    passed: list[Any] = []
    chain._collector = _Passed(passed)  # type: ignore[assignment]
    await chain.send(made, 0)  # type: ignore[arg-type]  # has a type
    del out[before:]
    if data := [c for c in passed if c["type"].startswith("data-")]:
        out += data
    return chunk if any(c["type"] == chunk["type"] for c in passed) else None


class _Passed:
    """Notes what comes out of the chain."""

    def __init__(self, chunks: list[Any]) -> None:
        self.passed = chunks.append

    def repeated(self, _chunk: Any) -> bool:
        """No call has an id that was used before."""
        return False


def _final_count(case: Case, seen: dict[str, Any]) -> int:
    """The running count; in `part` mode there is none: only a count that made the hook abort stays."""
    if case.limiter.options.count_mode == "cumulative":
        return int(own(case.context.state(case.limiter.id), "counted", "0").get("currentTokens", 0))
    number = re.search(r"\d+", seen.get("tripwire", {}).get("reason", "0"))
    return int(number[0]) if number else 0


async def _result(case: Case) -> dict[str, Any]:
    context = case.context
    try:
        await hooks.run_output_result(context, case.links, case.calls, case, "stop")
    except TripWire as tripwire:
        return {"tripwire": _tripped(tripwire)}
    return {"messages": [shown(message) for message in context.messages.get.all.db()]}


def _tripped(tripwire: TripWire) -> dict[str, Any]:
    """A tripwire; those of the reference's input side name no processor, and those of its output side no retry."""
    told: dict[str, Any] = {"reason": tripwire.reason}
    if tripwire.metadata is not None:
        return told | {"retry": tripwire.retry, "metadata": tripwire.metadata}
    if "message" in tripwire.reason:
        return told | {"retry": tripwire.retry}
    return told | {"processorId": tripwire.processor_id}


def _at(number: int) -> str:
    return f"2026-01-01T00:{number // 60:02}:{number % 60:02}.000Z"


# --- what overrides a recording ---------------------------------------------------------------------


def override(vector: dict[str, Any], observed: Any, differences: list[str]) -> str | None:
    """D-11 (never negative), D-12 (what is never dropped), D-27 (whole characters), D-28 (`parts` are the truth)."""
    expected, given = vector["expected"], vector["input"]
    hook = given.get("hook", given.get("call"))
    if vector["options"].get("encoding") not in (None, "estimate"):
        return _of_encoding(vector)
    if hook == "countMessage":
        raw = _raw(weigh_message(stored(given["message"])))
        negative = math.isclose(raw, expected["tokens"], abs_tol=1e-6) and raw < 0
        return "D-11" if negative and observed == {"tokens": 0} else None
    if hook in ("processInputStep", "processLLMRequest"):
        return _of_trimming(vector, observed)
    if hook == "processOutputResult":
        return _of_result(expected, observed)
    return None


def _of_encoding(vector: dict[str, Any]) -> str | None:
    """D-11: `encoding` counts (or is refused); with the estimate, the vector must come out as it was recorded."""
    estimated = {**vector, "options": {**vector["options"], "encoding": "estimate"}}
    with ThreadPoolExecutor(1) as pool:
        observed = pool.submit(asyncio.run, observe(estimated)).result()
    return None if compare(vector, observed) else "D-11"


def _raw(weight: Weight) -> float:
    """The count as the reference makes it, negative ones included."""
    content = ESTIMATOR.count_all(weight.texts) - 12 * weight.json_values + weight.media
    return content + PER_MESSAGE + PER_MESSAGE * weight.results


def _of_trimming(vector: dict[str, Any], observed: Any) -> str | None:
    """Decides by playing the rules of R-TOKLIM-6 again, once as the reference does and once with ours."""
    options, given = options_of(vector), vector["input"]
    if given["hook"] == "processLLMRequest":
        entries = [(weigh_entry(entry), entry["role"], _ids_of(entry)) for entry in given["prompt"]]
        groups = _adjacent(given["prompt"])
    else:
        system = [{"role": "system", "content": text} for text in given["system"] + given["taggedSystem"]]
        messages = [stored(message) for message in given["messages"]]
        entries = [(weigh_message(m), "system", set()) for m in system]
        entries += [(weigh_message(m), m["role"], calls_of_message(m)) for m in messages]
        groups = [{place} for place in range(len(system), len(entries))]
    raw = [_raw(weight) for weight, _, _ in entries]
    roles = [role for _, role, _ in entries]
    told = vector["expected"], given, len(entries) - len(given.get("messages", given.get("prompt")))
    if not _tells(*told, _play(options, roles, groups, raw, needed=set())):
        return None
    clamped = [max(0.0, tokens) for tokens in raw]
    ours = observed, *told[1:]
    if _tells(*ours, _play(options, roles, groups, clamped, needed=set())):
        return "D-11"
    joined = _joined(groups, [ids for _, _, ids in entries])
    needed = _needed(roles, [ids for _, _, ids in entries])
    return "D-12" if _tells(*ours, _play(options, roles, joined, clamped, needed=needed)) else None


def _ids_of(entry: dict[str, Any]) -> set[str]:
    parts = entry["content"] if isinstance(entry["content"], list) else []
    return {part["toolCallId"] for part in parts if "toolCallId" in part}


def _adjacent(prompt: list[dict[str, Any]]) -> list[set[int]]:
    """The reference's groups: an assistant with calls and the tool entries right behind it that answer it."""
    groups: list[set[int]] = []
    calls: set[str] = set()
    for place, entry in enumerate(prompt):
        if entry["role"] == "tool" and groups and calls & _ids_of(entry):
            groups[-1].add(place)
            continue
        calls = _ids_of(entry) if entry["role"] == "assistant" else set()
        if entry["role"] != "system":
            groups.append({place})
    return groups


def _joined(groups: list[set[int]], ids: list[set[str]]) -> list[set[int]]:
    """Groups that share a call are one (D-12)."""
    out: list[set[int]] = []
    for group in groups:
        calls = set().union(*(ids[place] for place in group))
        same = [other for other in out if calls & set().union(*(ids[place] for place in other))]
        out = [other for other in out if other not in same] + [group.union(*same)]
    return out


def _needed(roles: list[str], ids: list[set[str]]) -> set[int]:
    users = [place for place, role in enumerate(roles) if role == "user"]
    if not users:
        return set()
    calls = [place for place in range(users[-1] + 1, len(ids)) if ids[place]]
    return {users[-1], *calls[-1:]}


def _play(
    options: dict[str, Any],
    roles: list[str],
    groups: list[set[int]],
    tokens: list[float],
    *,
    needed: set[int],
) -> set[int] | None:
    """The places kept; None when it trips."""
    system = {place for place, role in enumerate(roles) if role == "system"}
    left = options["limit"] - sum(tokens[place] for place in system) - PER_CONVERSATION
    pinned = [group for group in groups if group & needed]
    left -= sum(tokens[place] for group in pinned for place in group)
    if left < -1e-9 or (left <= 0 and not pinned):
        return None
    kept = set().union(*pinned)
    for group in sorted(groups, key=max, reverse=True):
        cost = sum(tokens[place] for place in group)
        if group in pinned:
            continue
        if cost <= left + 1e-9:
            kept |= group
            left -= cost
        elif options.get("trimMode") == "contiguous":
            break
    return kept | system if kept else None


def _tells(told: Any, given: dict[str, Any], extra: int, kept: set[int] | None) -> bool:
    """Whether an outcome says that just these places were kept; `extra` system entries come before the messages."""
    if kept is None:
        return "tripwire" in told
    if "remainingIds" in told:
        ids = [message["id"] for message in given["messages"]]
        return "tripwire" not in told and told["remainingIds"] == [
            ids[p - extra] for p in sorted(kept) if p >= extra
        ]
    everything = set(range(len(given["prompt"])))
    return bool(told == ({"unchanged": True} if kept == everything else {"keptIndexes": sorted(kept)}))


def _of_result(expected: Any, observed: Any) -> str | None:
    """D-28: a flat copy says what the parts say. D-27: no half characters."""
    if "messages" not in expected or "messages" not in observed:
        return None
    if len(expected["messages"]) != len(observed["messages"]):
        return None
    rules = set()
    for theirs, ours in zip(expected["messages"], observed["messages"], strict=True):
        if theirs == ours:
            continue
        texts = [part["text"] for part in ours["parts"] if part["type"] == "text"]
        if "parts" in theirs and theirs["parts"] == ours["parts"]:
            rules.add("D-28" if ours.get("content") in (None, *texts[-1:]) else None)
        elif "parts" not in theirs:
            bare = theirs.get("contentString", theirs.get("text", theirs.get("content", "")))
            rules.add("D-28" if len(texts) == 1 and bare.startswith(texts[0]) else None)
        else:
            rules.add("D-27" if _without_halves(theirs["parts"]) == ours["parts"] else None)
    return rules.pop() if len(rules) == 1 else None


def _without_halves(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**part, "text": part["text"].removesuffix(HALF)} if part["type"] == "text" else part
        for part in parts
    ]
