"""Messages that belong together, because one answers the tool calls of the other."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from procession.merging import calls_in
from procession_schemas.messages import Message


def rough_tokens(message: Mapping[str, Any]) -> float:
    """About how many tokens a message has: a quarter of its characters."""
    parts = message["content"]["parts"]
    return sum(len(part["text"] if part.get("type") == "text" else orjson.dumps(part)) for part in parts) / 4


def newest_units(messages: Sequence[Message], limit: int | None) -> list[Message]:
    """The newest messages, at most `limit`; those that share a tool call stay together or go together."""
    if limit is None:
        return list(messages)
    kept: set[int] = set()
    for unit in reversed(list(_units(messages))):
        if len(kept) + len(unit) > limit:
            break
        kept.update(unit)
    return [message for place, message in enumerate(messages) if place in kept]


def _units(messages: Sequence[Message]) -> Iterator[list[int]]:
    """The places of messages that are linked by tool calls, ordered by the last of them."""
    owner: dict[str, int] = {}
    units: dict[int, list[int]] = {}
    for place, calls in enumerate(calls_in(messages)):
        merged = [place]
        for first in {owner[call] for call in calls if call in owner}:
            merged += units.pop(first)
        units[place] = sorted(merged)
        calls |= {call for call, first in owner.items() if first in merged}
        owner.update(dict.fromkeys(calls, place))
    yield from (units[last] for last in sorted(units))
