"""What messages weigh, and which of them fit into a token budget (builtins.md 10, R-TOKLIM-2..9; D-11, D-12)."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from procession_services.processors.core.token_counter import TokenCounter
from procession_services.processors.core.token_estimate import media_tokens

PER_MESSAGE: Final = 3.8
PER_CONVERSATION: Final = 24
_JSON_EXCESS: Final = 12
"""What the estimate counts too much for the punctuation of a JSON value."""
_ROUNDING: Final = 1e-9


@dataclass(slots=True)
class Weight:
    """What counts in one message: its texts, files (in tokens), JSON values among the texts, and tool results."""

    texts: list[str] = field(default_factory=list)
    media: int = 0
    json_values: int = 0
    results: int = 0

    def tokens(self, counter: TokenCounter) -> float:
        """The tokens of the message, its frame included; never negative (D-11)."""
        excess = 0 if counter.exact else _JSON_EXCESS * self.json_values
        content = counter.count_all(self.texts) - excess + self.media
        return max(0.0, content + PER_MESSAGE + PER_MESSAGE * self.results)

    def add_value(self, value: Any) -> None:
        """Adds arguments or a result: a string as it is, anything else as JSON."""
        if isinstance(value, str):
            self.texts.append(value)
        else:
            self.add_json(value)

    def add_json(self, value: Any) -> None:
        """Adds a value that the model reads as JSON, be it a string."""
        self.texts.append(compact(value))
        self.json_values += 1

    def add_files(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Adds files and what else is said about each."""
        for entry in entries:
            self.add_file(entry)
            self.texts.append(compact({key: value for key, value in entry.items() if key != "data"}))

    def add_file(self, part: Mapping[str, Any]) -> None:
        """Adds a file."""
        data = next((part[name] for name in ("data", "url", "image") if part.get(name) is not None), None)
        self.media += media_tokens(data, part.get("mediaType") or part.get("mimeType"))


def compact(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def weigh_message(message: Mapping[str, Any]) -> Weight:
    """Weighs a stored message or a system message (R-TOKLIM-3)."""
    weight, content = Weight([message["role"]]), message["content"]
    if isinstance(content, str):
        weight.texts.append(content)
        return weight
    for part in content["parts"]:
        invocation = part.get("toolInvocation") or {}
        match part["type"], invocation.get("state"):
            case "text", _:
                weight.texts.append(part["text"])
            case "tool-invocation", "result":
                weight.results += 1
                _add_result(weight, invocation.get("result"))
            case "tool-invocation", "output-error" | "output-denied":  # as prompts show them (D-102)
                weight.results += 1
                told = (invocation.get("errorText"), (invocation.get("approval") or {}).get("reason"))
                weight.texts += [text for text in told if text]
            case "tool-invocation", _:
                weight.texts.append(invocation["toolName"])
                if invocation.get("args") is not None:
                    weight.add_value(invocation["args"])
            case "file", _:
                weight.add_file(part)
            case _:
                weight.texts.append(compact(part))
    return weight


def _add_result(weight: Weight, result: Any) -> None:
    files = [result] if _is_file(result) else result
    if isinstance(files, list) and files and all(map(_is_file, files)):
        weight.json_values += 1
        weight.add_files(files)
    else:
        weight.add_value(result)


def _is_file(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("data"), str):
        return False
    return isinstance(value.get("mediaType"), str) or isinstance(value.get("mimeType"), str)


def weigh_entry(entry: Mapping[str, Any]) -> Weight:
    """Weighs an entry of a prompt (R-TOKLIM-4a)."""
    weight, content = Weight([entry["role"]]), entry["content"]
    if isinstance(content, str):
        weight.texts.append(content)
        return weight
    for part in content:
        match part["type"]:
            case "text" | "reasoning":
                weight.texts.append(part["text"])
            case "tool-call":
                weight.texts.append(part["toolName"])
                if part.get("input") is not None:
                    weight.add_value(part["input"])
            case "tool-result":
                _add_output(weight, part["output"])
            case "file" | "image":
                weight.add_file(part)
            case _:
                weight.texts.append(compact(part))
    return weight


def _add_output(weight: Weight, output: Mapping[str, Any]) -> None:
    value = output.get("value")
    if output.get("type") in ("json", "error-json"):
        weight.add_json(value)
        return
    if output.get("type") != "content" or not isinstance(value, list):
        weight.add_value(value)
        return
    weight.json_values += 1
    weight.texts += [entry["text"] for entry in value if entry.get("type") == "text"]
    weight.add_files(entry for entry in value if entry.get("type") != "text")


def calls_of_message(message: Mapping[str, Any]) -> set[str]:
    """The ids of the tool calls that a stored message has a part of."""
    parts = message["content"]["parts"]
    return {part["toolInvocation"]["toolCallId"] for part in parts if "toolInvocation" in part}


def calls_of_entry(entry: Mapping[str, Any]) -> set[str]:
    """The ids of the tool calls that an entry of a prompt holds, or holds the result of."""
    content = entry["content"]
    if isinstance(content, str):
        return set()
    return {part["toolCallId"] for part in content if part["type"] in ("tool-call", "tool-result")}


def linked(calls: Sequence[set[str]]) -> list[list[int]]:
    """Groups places that share a tool call, so that none is parted from its result; ordered by their first place."""
    groups: dict[int, list[int]] = {}
    group_of_call: dict[str, int] = {}
    for place, ids in enumerate(calls):
        joined = sorted({group_of_call[each] for each in ids if each in group_of_call})
        groups[place] = sorted(sum((groups.pop(group) for group in joined), [place]))
        for member in groups[place] if joined else [place]:
            group_of_call.update(dict.fromkeys(calls[member], place))
    return sorted(groups.values())


@dataclass(frozen=True, slots=True)
class Item:
    """What is kept or goes as a whole: places of a conversation, their tokens, and whether it must stay."""

    places: list[int]
    tokens: float
    needed: bool


def items_of(roles: Sequence[str], calls: Sequence[set[str]], tokens: Sequence[float]) -> list[Item]:
    """The items of a conversation, oldest first (by their last place).

    Needed are the newest user message and the last tool calls behind it, which the model is about to read (D-12).
    """
    groups = sorted(linked(calls), key=lambda group: group[-1])
    newest = max((place for place, role in enumerate(roles) if role == "user"), default=-1)
    last_call = max((place for place in range(newest + 1, len(calls)) if calls[place]), default=-1)
    needed = {newest, last_call} - {-1} if newest >= 0 else set()
    return [
        Item(group, sum(tokens[place] for place in group), not needed.isdisjoint(group)) for group in groups
    ]


def fitting(items: Sequence[Item], budget: float, *, contiguous: bool) -> set[int] | None:
    """The places that stay: what is needed, then the newest that fit; None when that cannot be (R-TOKLIM-6).

    `contiguous` stops at the first item that does not fit; else it is skipped and older ones may stay.
    """
    left = budget - sum(item.tokens for item in items if item.needed) + _ROUNDING
    if left < 0:
        return None
    kept = {place for item in items if item.needed for place in item.places}
    for item in reversed(items):
        if item.needed:
            continue
        if item.tokens <= left:
            kept.update(item.places)
            left -= item.tokens
        elif contiguous:
            break
    return kept or None
