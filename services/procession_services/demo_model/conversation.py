"""Reads the messages of a chat request; a request is the plain dict of OpenAI's protocol."""

from collections.abc import Mapping, Sequence
from typing import Any

Body = Mapping[str, Any]
Message = Mapping[str, Any]


class InvalidRequestError(ValueError):
    """The client's request is wrong: it gets HTTP 400 with the message."""


def text_of(message: Message) -> str:
    """Return the text of a message, whose content is text, a list of parts, or nothing."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return ""


def messages_of(body: Body) -> Sequence[Message]:
    """Return the messages of a request.

    Raises:
        InvalidRequestError: when they are not a list of objects.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise InvalidRequestError("messages: expected a list of objects")
    return messages


def last_turn(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages after the last one of the user: the steps of the answer so far."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") == "user":
            return messages[index + 1 :]
    return messages


def tokens_in(characters: int) -> int:
    """Estimate tokens, at four characters each."""
    return (characters + 3) // 4


def prompt_tokens(messages: Sequence[Message]) -> int:
    """Estimate the tokens of a prompt from its text; at least one."""
    return max(1, tokens_in(sum(len(text_of(message)) for message in messages)))
