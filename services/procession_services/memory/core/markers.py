"""Tells a model where a conversation stood still (R-OM-5)."""

from collections.abc import Iterable
from typing import Any, Final

from procession.signals import to_message
from procession_schemas.messages import Message
from procession_services.memory.core.times import to_iso, to_millis

__all__ = ["temporal_markers"]

_GAP_MINUTES: Final = 10
_MINUTE: Final = 60_000
_UNITS: Final = (("day", 24 * 60), ("hour", 60), ("minute", 1))


def temporal_markers(messages: Iterable[Message], before: str = "") -> list[dict[str, Any]]:
    """A signal for each user message that came 10 minutes or more after the message before it.

    It is a millisecond older than its message, so that it stands in front of it, and is never saved.

    Args:
        messages: The conversation, oldest first.
        before: When the message before the first one was written; nothing where there is none.
    """
    made: list[dict[str, Any]] = []
    last = to_millis(before) if before else None
    for message in messages:
        at = to_millis(message["createdAt"])
        minutes = 0 if last is None else (at - last) // _MINUTE
        if message["role"] == "user" and minutes >= _GAP_MINUTES:
            made.append(_marker(message, at, minutes))
        last = at if last is None else max(at, last)
    return made


def _marker(message: Message, at: int, minutes: int) -> dict[str, Any]:
    told = f"{_span(minutes)} later, {to_iso(at)[:16].replace('T', ' ')} UTC"
    marker = to_message({"contents": told, "attributes": {"type": "temporal-gap"}, "transient": True})
    return {**marker, "id": f"gap-{message['id']}", "createdAt": to_iso(at - 1)}


def _span(minutes: int) -> str:
    """`3 days`, in the largest unit that fits."""
    unit, size = next((unit, size) for unit, size in _UNITS if minutes >= size)
    number = minutes // size
    return f"{number} {unit}{'' if number == 1 else 's'}"
