"""Mends a conversation that a provider has refused (R-PHC-3). Each repair changes the messages in place."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Messages = Sequence[Mapping[str, Any]]

_BAD_ID: Final = re.compile(r"[^A-Za-z0-9_-]")
_METADATA: Final = ("providerMetadata", "providerOptions")
_NAMESPACES: Final = ("openai", "azure")
_ITEM_IDS: Final = ("itemId", "resultItemId")


@dataclass(frozen=True, slots=True)
class Repair:
    """What one kind of refusal says, and what mends it; `fix` tells whether it changed anything."""

    name: str
    patterns: tuple[re.Pattern[str], ...]
    fix: Callable[[Messages], bool]

    def fits(self, texts: Sequence[str]) -> bool:
        """Whether this is what the provider says."""
        return any(pattern.search(text) for pattern in self.patterns for text in texts)


def rewrite_tool_ids(messages: Messages) -> bool:
    """Gives calls ids that every provider takes; ids that were different stay different (D-75)."""
    calls = list(_invocations(messages))
    known = {str(call["toolCallId"]) for call in calls}
    renamed: dict[str, str] = {}
    for call_id in sorted(known):
        if not _BAD_ID.search(call_id):
            continue
        plain = made = _BAD_ID.sub("_", call_id)
        number = 2
        while made in known or made in renamed.values():
            made = f"{plain}_{number}"
            number += 1
        renamed[call_id] = made
    for call in calls:
        call["toolCallId"] = renamed.get(str(call["toolCallId"]), call["toolCallId"])
    return bool(renamed)


def _invocations(messages: Messages) -> Iterator[dict[str, Any]]:
    for message in messages:
        content = message["content"]
        for part in content.get("parts") or ():
            if isinstance(call := part.get("toolInvocation"), dict) and call.get("toolCallId"):
                yield call
        for call in content.get("toolInvocations") or ():
            if isinstance(call, dict) and call.get("toolCallId"):
                yield call


def forget_orphan_items(messages: Messages) -> bool:
    """Forgets the provider's own ids of answers whose reasoning is not kept, so that they are sent as plain text."""
    changed = False
    before: Mapping[str, Any] | None = None
    for message in messages:
        orphan = message["role"] == "assistant" and not _has(message, "reasoning")
        if orphan and not (before is not None and _only_reasoned(before)):
            for part in message["content"].get("parts") or ():
                changed = _forget(part) or changed
        before = message
    return changed


def _forget(part: Mapping[str, Any]) -> bool:
    given = [metadata for name in _METADATA if isinstance(metadata := part.get(name), dict)]
    own = [each[name] for each in given for name in _NAMESPACES if isinstance(each.get(name), dict)]
    found = [(place, item) for place in own for item in _ITEM_IDS if item in place]
    for place, item in found:
        del place[item]
    return bool(found)


def _only_reasoned(message: Mapping[str, Any]) -> bool:
    return message["role"] == "assistant" and _has(message, "reasoning") and not _has(message, "text")


def _has(message: Mapping[str, Any], kind: str) -> bool:
    return any(part.get("type") == kind for part in message["content"].get("parts") or ())


REPAIRS: Final = (
    Repair(
        "anthropic-tool-ids",
        (
            re.compile(r"\A(?>.*?tool_use\.id).*should match pattern", re.IGNORECASE | re.DOTALL),
            re.compile(r"\A(?>.*?tool_call_id).*invalid", re.IGNORECASE | re.DOTALL),
        ),
        rewrite_tool_ids,
    ),
    Repair(
        "openai-orphan-items",
        (
            re.compile(
                r"item '[^']*' of type 'message' was provided without its required 'reasoning' item",
                re.IGNORECASE,
            ),
        ),
        forget_orphan_items,
    ),
)
