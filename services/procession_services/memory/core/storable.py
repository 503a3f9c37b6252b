"""What of a conversation is worth keeping (R-HIST-8, R-ME-5, A-32)."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

from procession.messages import refresh_flat
from procession_schemas.messages import Message, Part
from procession_services.memory.core.templates import NOTE_TOOL

_OPEN, _CLOSE = "<working_memory>", "</working_memory>"


def storable(messages: Iterable[Message]) -> list[Message]:
    """Copies of the messages as they are stored, in order; the ones given stay as they are.

    Left out are system messages and transient ones, half-streamed tool calls (a complete `call` stays), calls
    of the working-memory tool, `<working_memory>` blocks, transient data parts, and messages without content (D-111).
    """
    kept = (_cleaned(message) for message in messages if _lasting(message))
    return [message for message in kept if _says_something(message)]


def _lasting(message: Message) -> bool:
    signal = (message["content"].get("metadata") or {}).get("signal")
    return message["role"] != "system" and not (isinstance(signal, dict) and signal.get("transient"))


def _says_something(message: Message) -> bool:
    return any(part.get("type") != "step-start" for part in message["content"]["parts"])


def _cleaned(message: Message) -> Message:
    content: dict[str, Any] = dict(message["content"])
    content["parts"] = [cleaned for part in content["parts"] if (cleaned := _clean_part(part)) is not None]
    if isinstance(content.get("toolInvocations"), list):
        content["toolInvocations"] = [call for call in content["toolInvocations"] if _keeps_call(call)]
    cleaned_message = cast("Message", {**message, "content": content})
    refresh_flat(cleaned_message)
    return cleaned_message


def _clean_part(part: Part) -> Part | None:
    if "toolInvocation" in part and not _keeps_call(part["toolInvocation"]):
        return None
    if part.get("type", "").startswith("data-") and part.get("transient"):
        return None
    if part.get("type") != "text" or not isinstance(part.get("text"), str):
        return part
    text = without_blocks(part["text"])
    if text == part["text"]:
        return part
    return {**part, "text": text.strip()} if text.strip() else None


def _keeps_call(invocation: Any) -> bool:
    """Whether it is neither half-streamed nor bookkeeping: the effect of that tool is the working memory itself."""
    return not (invocation.get("state") == "partial-call" or invocation.get("toolName") == NOTE_TOOL)


def without_blocks(text: str) -> str:
    """The text without its blocks; an unclosed tag stays."""
    pieces, at = [], 0
    for start, end in _blocks(text):
        pieces.append(text[at:start])
        at = end
    return "".join([*pieces, text[at:]])


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    while (start := text.find(_OPEN, at)) >= 0 and (end := text.find(_CLOSE, start)) >= 0:
        at = end + len(_CLOSE)
        yield start, at
