"""What is searched for, what is indexed, and how messages of other threads are shown (R-COM-14, R-SEM-9, D-26)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from procession.signals import about
from procession_schemas.messages import Message

__all__ = ["indexed_text", "other_conversations", "question_of"]

_ROLES: Final = ("system", "user", "assistant", "tool")
_QUESTIONS: Final = ("user", "user-message")
_TOLD_ANEW: Final = ("state", "reactive")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NOON: Final = 12
TAG: Final = "remembered_from_other_conversation"
_TAG: Final = re.compile(rf"<(?=/?\s*(?:end_)?{TAG}\b)", re.IGNORECASE)


def question_of(messages: Sequence[Message]) -> str | None:
    """The text of the last user message that has one; a signal of type `user` counts as one (R-SEM-2)."""
    for message in reversed(messages):
        if (message["role"] == "user" or _asks(message)) and (text := _joined(message, " ")):
            return text
    return None


def _asks(message: Message) -> bool:
    return message["role"] == "signal" and about(message).get("type") in _QUESTIONS


def indexed_text(message: Message) -> str:
    """What is indexed of a message; empty where there is nothing to find it by.

    Nor are states and reminders (D-116), which every thread is told: they would be found in place of what was said.
    """
    if message["role"] == "signal" and about(message).get("type") in _TOLD_ANEW:
        return ""
    return _joined(message, "\n")


def _joined(message: Message, separator: str) -> str:
    """The texts of its parts; the flat copy, which has the last of them only, counts where no part is text (D-28)."""
    flat = message["content"].get("content")
    return separator.join(_texts(message)) or (flat if isinstance(flat, str) else "")


def _texts(message: Mapping[str, Any]) -> list[str]:
    return [p["text"] for p in message["content"]["parts"] if p.get("type") == "text" and p.get("text")]


def other_conversations(messages: Iterable[Message]) -> str:
    """The system message with messages of other threads: by day, in UTC, one line each, in a tag that is closed.

    What the messages say cannot close the tag. Those without text are left out; empty where nothing is left.
    """
    lines, day = list[str](), ""
    for message in sorted(messages, key=_order):
        if not (text := " ".join(_texts(message))).strip():
            continue
        at = datetime.fromisoformat(message["createdAt"]).astimezone(UTC)
        date = f"{at.year}, {_MONTHS[at.month - 1]}, {at.day}"
        if date != day:
            lines.append(f"the following messages are from {date}")
            day = date
        hour = f"{(at.hour % _NOON) or _NOON}:{at.minute:02} {'PM' if at.hour >= _NOON else 'AM'}"
        said = f"{message['role'].capitalize()}: {_TAG.sub('&lt;', text)}"
        lines.append(f"Message from previous conversation at {hour}: {said}")
    if not lines:
        return ""
    told = "\n".join(lines)
    return f"The following messages were remembered from a different conversation:\n<{TAG}>\n{told}\n</{TAG}>"


def _order(message: Message) -> tuple[str, str, int, str]:
    role = message["role"]
    rank = _ROLES.index(role) if role in _ROLES else len(_ROLES)
    return message["createdAt"], message.get("threadId", ""), rank, message["id"]
