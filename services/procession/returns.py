"""What hooks may return: taking it over, and the errors when they return something else (core.md 7.4, 18)."""

from collections.abc import Sequence
from typing import Any, Final

from procession.calls import Link
from procession.context import RunContext
from procession.errors import ProcessorError
from procession.message_list import MessageList
from procession.parts import InvalidMessageError
from procession.processor import INPUT_HOOKS, Hook
from procession_schemas.chunks import RUNTIME_TYPES

EXTERNAL_LIST: Final = "PROCESSOR_RETURNED_EXTERNAL_MESSAGE_LIST"
BOTH: Final = "PROCESSOR_RETURNED_MESSAGES_AND_MESSAGE_LIST"
UNSUPPORTED_MODEL: Final = "PROCESSOR_RETURNED_UNSUPPORTED_MODEL"
INVALID_RETURN: Final = "PROCESSOR_RETURNED_INVALID_VALUE"
ROLES: Final = ("system", "user", "assistant", "tool")
"""Of the entries of a prompt."""
_OBJECT: Final = (dict, type(None))
_READ: Final[dict[str, tuple[tuple[str, Any], ...]]] = {
    "text-delta": (("text", str),),
    "reasoning-delta": (("text", str),),
    "tool-call": (("toolCallId", str), ("toolName", str)),
    "tool-result": (("toolCallId", str),),
    "finish": (("stepResult", _OBJECT), ("output", _OBJECT)),
}
"""What of the payloads the runtime cannot do without, and its type."""


def wrong(link: Link, hook: Hook, code: str, message: str) -> ProcessorError:
    """An error that says what a hook returned wrongly (R-ER-1..3)."""
    return ProcessorError(
        message, processor_id=link.id, hook=hook.value, code=code, name="ProcessorReturnError"
    )


def same_list(ctx: RunContext, link: Link, hook: Hook, returned: MessageList) -> None:
    """Refuses a message list that is not the run's (R-ER-1)."""
    if returned is not ctx.messages:
        text = "returned a MessageList that is not the one it was given; change and return that one"
        raise wrong(link, hook, EXTERNAL_LIST, text)


def invalid(link: Link, hook: Hook, value: Any, allowed: str, field: str = "") -> ProcessorError:
    """An error about the type of a value; `field` is where in an object that the hook returned it is."""
    what = f"`{field}` of type " if field else ""
    return wrong(link, hook, INVALID_RETURN, f"returned {what}{type(value).__name__}; {allowed}")


def reconcile(ctx: RunContext, link: Link, hook: Hook, stage: list[Any], returned: Any) -> None:
    """Takes over messages that a hook returned for its stage (R-RC-1..5).

    Raises:
        ProcessorError: They are not a list, or one of them cannot be read.
    """
    if not isinstance(returned, list):
        raise invalid(link, hook, returned, "it must be a list of messages", "messages")
    try:
        ctx.messages.reconcile(stage, returned, "input" if hook in INPUT_HOOKS else "response")
    except InvalidMessageError as error:
        raise _unreadable(link, hook, error) from error


def left_readable(ctx: RunContext, link: Link, hook: Hook) -> None:
    """Refuses what a hook has made of messages in place (R-AR-6), where nobody could read them any more."""
    try:
        ctx.messages.check()
    except InvalidMessageError as error:
        raise _unreadable(link, hook, error, "left") from error


def replace_system(ctx: RunContext, link: Link, hook: Hook, returned: Any) -> None:
    """Takes over system messages that a hook returned; raises ProcessorError as `reconcile` does."""
    if not isinstance(returned, list):
        raise invalid(link, hook, returned, "it must be a list of system messages", "system_messages")
    try:
        ctx.messages.replace_system(returned)
    except InvalidMessageError as error:
        raise _unreadable(link, hook, error) from error


def _unreadable(link: Link, hook: Hook, error: InvalidMessageError, did: str = "returned") -> ProcessorError:
    return ProcessorError(
        f"{did} a message that cannot be read: {error}",
        processor_id=link.id,
        hook=hook.value,
        code=error.code,
        name=type(error).__name__,
    )


def is_chunk(value: Any) -> bool:
    """Whether a value is a chunk that the runtime can read (R-CH-1)."""
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        return False
    payload = value.get("payload") or {}
    if not isinstance(payload, dict):
        return kind.startswith("data-")
    for name, types in _READ.get(kind, ()):  # noqa: SIM110 - each chunk that a hook makes would pay for `all`
        if not isinstance(payload.get(name), types):
            return False
    return True


def chunk_fault(value: Any) -> str:
    """What a value lacks for which `is_chunk` is false."""
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        allowed = "a chunk (with a `type` and the `payload` of that type), a list of them, or nothing"
        return f"{type(value).__name__}; it may return {allowed}"
    payload = value.get("payload") or {}
    if not isinstance(payload, dict):
        found, where, types = payload, "payload", _OBJECT
    else:
        name, types = next((n, t) for n, t in _READ[kind] if not isinstance(payload.get(n), t))
        found, where = payload.get(name), f"payload.{name}"
    told = f"is {type(found).__name__}" if found is not None else "is missing"
    needed = "an object, or nothing" if types == _OBJECT else "a string"
    return f"a chunk of type {kind!r} whose `{where}` {told}; it must be {needed}"


def is_response(value: Any) -> bool:
    """Whether a value can answer in the model's place: `{"chunks": [...]}`, with chunks of a model (R-CA-1)."""
    chunks = value.get("chunks") if isinstance(value, dict) else None
    if not isinstance(chunks, Sequence) or not isinstance(value.get("warnings"), list | None):
        return False
    return all(is_chunk(chunk) and chunk["type"] not in RUNTIME_TYPES and _tells(chunk) for chunk in chunks)


def _tells(chunk: dict[str, Any]) -> bool:
    """Whether what a model says of its answer can be read; other chunks say nothing of it."""
    payload = chunk.get("payload") or {}
    if chunk["type"] == "response-metadata":
        return isinstance(payload.get("providerMetadata"), _OBJECT)
    if chunk["type"] != "finish":
        return True
    reason = (payload.get("stepResult") or {}).get("reason")
    usage = (payload.get("output") or {}).get("usage") or {}
    metadata = payload.get("metadata")
    return (
        isinstance(reason, str | None)
        and isinstance(metadata, _OBJECT)
        and isinstance((metadata or {}).get("providerMetadata"), _OBJECT)
        and isinstance(usage, dict)
        and all(isinstance(count, int | None) for name, count in usage.items() if name != "raw")
    )


def is_prompt(value: Any) -> bool:
    """Whether a value can be sent to a model: a list of entries, each with one of the `ROLES`, and content."""
    return isinstance(value, list) and all(map(_is_entry, value))


def _is_entry(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("role") not in ROLES:
        return False
    content = value.get("content")
    if not isinstance(content, list | tuple):
        return isinstance(content, str | None)
    return all(
        isinstance(part.get("text", ""), str)
        for part in content
        if isinstance(part, dict) and part.get("type") == "text"
    )
