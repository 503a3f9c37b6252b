"""Joins assistant messages, and records the outcomes of tool calls in their parts (R-ML-6, R-ML-7)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from procession_schemas.messages import Message, Part, ToolInvocation

STEP_START: Final = "step-start"

_ORDER: Final = {"partial-call": 0, "call": 1, "approval-requested": 2, "approval-responded": 3}
_FINAL: Final = len(_ORDER)
_FIXED: Final = frozenset({"toolCallId", "toolName", "args"})


def may_merge(last: Message, message: Message) -> bool:
    """Tells whether an assistant message continues the last one of the conversation (R-ML-6).

    Not when another thread is meant, the last one is closed, is younger, or holds nothing but data parts.
    """
    content = last["content"]
    return (
        last["role"] == message["role"] == "assistant"
        and last.get("threadId") == message.get("threadId")
        and last["createdAt"] <= message["createdAt"]
        and not _closed(content.get("metadata") or {})
        and not (content["parts"] and all(part["type"].startswith("data-") for part in content["parts"]))
    )


def _closed(metadata: Mapping[str, Any]) -> bool:
    """Whether nothing may be added: `sealed`, or what the reference writes into its messages."""
    theirs = metadata.get("mastra")
    marked = isinstance(theirs, Mapping) and (theirs.get("sealed") or theirs.get("responseBoundary"))
    return bool(metadata.get("sealed") or marked)


def merge(last: Message, message: Message) -> None:
    """Takes the parts and metadata of `message` into `last`, which is changed in place (R-ML-7)."""
    content, more = last["content"], message["content"]
    parts = content["parts"]
    for part in more["parts"]:
        _take_part(parts, part, more["parts"])
    if more.get("metadata"):
        content["metadata"] = {**(content.get("metadata") or {}), **more["metadata"]}
    if "content" in more:
        content["content"] = more["content"]


def _take_part(parts: list[Part], part: Part, told: list[Part]) -> None:
    """Adds a part, unless it is there as many times as the message has told it."""
    kind, invocation = part["type"], part.get("toolInvocation")
    known = find_part(parts, invocation["toolCallId"]) if invocation else None
    if invocation and known:
        if not advance(known, invocation):
            return
        if not known["toolInvocation"].get("args"):
            known["toolInvocation"]["args"] = invocation["args"]
        if part.get("providerMetadata"):
            known["providerMetadata"] = {**known.get("providerMetadata", {}), **part["providerMetadata"]}
    elif kind == STEP_START:
        if parts and parts[-1]["type"] != STEP_START:
            parts.append(part)
    elif parts.count(part) < told.count(part):
        if kind == "text" and parts and parts[-1]["type"] == "tool-invocation":
            parts.append({"type": STEP_START})
        parts.append(part)


def find_part(parts: Sequence[Part], call_id: str) -> Part | None:
    """Returns the tool part with that call id, searched from the end."""
    for part in parts[::-1]:
        invocation = part.get("toolInvocation")
        if invocation and invocation["toolCallId"] == call_id:
            return part
    return None


def calls_in(messages: Sequence[Message]) -> list[set[str]]:
    """Of each message the ids of tool calls that link it to others: the call is in one, and its result in another.

    Messages that each have a call with its result need nothing of one another, though some models begin to number
    their calls anew in each answer (D-114).
    """
    calls = [
        [call for part in message["content"]["parts"] if (call := part.get("toolInvocation"))]
        for message in messages
    ]
    parted = {call["toolCallId"] for each in calls for call in each if is_open(call)}
    return [parted.intersection(call["toolCallId"] for call in each) for each in calls]


def advance(part: Part, update: Mapping[str, Any]) -> bool:
    """Takes state and outcome of `update` into a tool part, which keeps its arguments (R-ML-4).

    States only move forward; a final state stays, though its result may be rewritten (R-TR-2).

    Returns:
        Whether the move was legal; if not, nothing changed.
    """
    invocation = cast("dict[str, Any]", part["toolInvocation"])
    old, new = invocation["state"], update.get("state", invocation["state"])
    if new != old and _rank(new) <= _rank(old):
        return False
    invocation.update({key: value for key, value in update.items() if key not in _FIXED})
    return True


def is_open(invocation: ToolInvocation) -> bool:
    """Tells whether a tool call still waits for its outcome."""
    return _rank(invocation["state"]) < _FINAL


def keep_outcomes(message: Message, older: Message) -> None:
    """Gives tool calls of `message` that still wait the outcome which an older copy of it already has."""
    for part in message["content"]["parts"]:
        invocation = part.get("toolInvocation")
        if invocation and is_open(invocation):
            known = find_part(older["content"]["parts"], invocation["toolCallId"])
            if known and not is_open(known["toolInvocation"]):
                advance(part, known["toolInvocation"])


def _rank(state: str) -> int:
    return _ORDER.get(state, _FINAL)
