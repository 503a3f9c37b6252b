"""Which messages of a request are new, where clients send the whole conversation again (R-MIF, builtins.md 16)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from procession.merging import advance, find_part
from procession.parts import copy_json
from procession_schemas.messages import Message, Part

_UPDATES: Final = frozenset({"result", "output-error", "output-denied", "approval-responded"})
_PROGRESS: Final = {"partial-call": 0, "call": 1, "approval-requested": 2, "approval-responded": 3}
_FINISHED: Final = 4
_PROVIDER: Final = frozenset({"providerMetadata", "providerOptions"})


@dataclass(frozen=True, slots=True)
class Selection:
    """What is kept of an input before the store was asked.

    `kept` are messages of the input, or a shortened copy of its last one; `before` is the assistant message right in
    front of them, whose tool updates may be news.
    """

    kept: list[Message]
    before: Message | None = None


def is_update(part: Mapping[str, Any]) -> bool:
    """Whether a part tells what a client did with a tool call (R-MIF-2)."""
    return (part.get("toolInvocation") or {}).get("state") in _UPDATES


def select(given: Sequence[Message]) -> Selection | None:
    """What is new in an input by its form; None where all of it may be (R-MIF-3, R-MIF-4)."""
    last = given[-1]
    if last["role"] == "user":
        places = [place for place, message in enumerate(given) if message["role"] == "assistant"]
        if not places:
            return None
        return Selection(list(given[places[-1] + 1 :]), given[places[-1]])
    if last["role"] != "assistant":
        return None
    updates = _trailing_updates(last["content"]["parts"])
    if len(given) == 1 and len(updates) == len(last["content"]["parts"]):
        return None
    return Selection([_reduced(last, updates)] if updates else [])


def _trailing_updates(parts: Sequence[Part]) -> list[Part]:
    found: list[Part] = []
    for part in reversed(parts):
        if is_update(part):
            found.insert(0, part)
        elif not part["type"].startswith("data-"):
            break
    return found


def _reduced(message: Message, parts: Sequence[Part]) -> Message:
    content = {key: value for key, value in message["content"].items() if key != "content"}
    return cast("Message", {**message, "content": {**content, "parts": copy_json(list(parts))}})


def moved_forward(message: Message, stored: Message) -> Message | None:
    """A copy with the updates that move a stored, unfinished call forward; None where none does (R-MIF-7)."""
    known = {call["toolCallId"]: _rank(call) for part in stored["content"]["parts"] if (call := _call(part))}
    updates = [
        part
        for part in message["content"]["parts"]
        if is_update(part) and known.get(part["toolInvocation"]["toolCallId"], _FINISHED) < _rank(_call(part))
    ]
    return _reduced(message, updates) if updates else None


def _call(part: Mapping[str, Any]) -> Any:
    return part.get("toolInvocation")


def _rank(call: Mapping[str, Any]) -> int:
    return _PROGRESS.get(str(call.get("state")), _FINISHED)


def without_provider_data(messages: Sequence[Message]) -> list[Message]:
    """Copies whose assistant parts have lost ids of a provider that never saw them (R-MIF-5)."""
    return [_stripped(message) if message["role"] == "assistant" else message for message in messages]


def _stripped(message: Message) -> Message:
    parts = [
        part if is_update(part) else {key: value for key, value in part.items() if key not in _PROVIDER}
        for part in message["content"]["parts"]
    ]
    return cast("Message", {**message, "content": {**message["content"], "parts": copy_json(parts)}})


def only_updates(message: Message) -> bool:
    """Whether a message is a client's copy of an assistant's message that only tells what became of its calls."""
    parts = message["content"]["parts"]
    return message["role"] == "assistant" and bool(parts) and all(map(is_update, parts))


def with_updates(stored: Message, incoming: Message) -> Message:
    """The stored message with what an incoming copy tells of its calls.

    The filter cuts such a copy down to its updates; taken for the whole message it would lose the rest.
    """
    whole: Message = copy_json(stored)
    for part in incoming["content"]["parts"]:
        known = find_part(whole["content"]["parts"], part["toolInvocation"]["toolCallId"])
        if known is None:
            whole["content"]["parts"].append(copy_json(part))
        else:
            advance(known, part["toolInvocation"])
    return whole
