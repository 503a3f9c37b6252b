"""Fields of a message that stand beside its parts, for old readers, or in their place, from old clients (core.md 7.1).

Parts are the truth (D-28): what only such a field says becomes a part when the message comes in, and the field goes.
Left behind, it would keep what a processor takes out of the parts.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from procession.parts import InvalidMessageError, media_type, read_own_parts
from procession_schemas.messages import Part

FIELDS: Final = ("reasoning", "toolInvocations", "experimental_attachments")
"""The fields that parts are made of; the flat text is `messages.refresh_flat`'s."""

_FILES: Final = frozenset({"file", "image"})


def unfolded(owner: Mapping[str, Any], parts: list[Part], where: str) -> list[Part]:
    """Returns the parts with what only the fields of `owner` say: thoughts and calls in front, attachments behind.

    A field counts where no part is of its kind; else it repeats the parts.

    Args:
        owner: The message of AI SDK 4, or the `content` of a stored one.
        parts: The parts that were read of it.
        where: Its path, for errors.

    Raises:
        InvalidMessageError: A field cannot be read.
    """
    kinds = {part["type"] for part in parts}
    before: list[Part] = []
    thought = owner.get("reasoning")
    if isinstance(thought, str) and thought and "reasoning" not in kinds:
        details = [{"type": "text", "text": thought}]
        before.append(Part(type="reasoning", reasoning=thought, details=details))
    if "tool-invocation" not in kinds:
        calls = _listed(owner, "toolInvocations", where)
        tools = [{"type": "tool-invocation", "toolInvocation": call} for call in calls]
        before += read_own_parts(tools, f"{where}.toolInvocations")
    behind: list[Part] = []
    if not kinds & _FILES:
        given = _listed(owner, "experimental_attachments", where)
        behind = [_attachment(one, f"{where}.experimental_attachments.{i}") for i, one in enumerate(given)]
    return [*before, *parts, *behind]


def _listed(owner: Mapping[str, Any], key: str, where: str) -> list[Any]:
    given = owner.get(key)
    if not isinstance(given, list | None):
        raise InvalidMessageError(f"{where}.{key}", f"is of type {type(given).__name__}; give a list")
    return given or []


def _attachment(given: Any, where: str) -> Part:
    url = given.get("url") if isinstance(given, Mapping) else None
    if not isinstance(url, str) or not url:
        raise InvalidMessageError(f"{where}.url", "is missing; give a URL or a data URI")
    media = given.get("contentType") or media_type(url, "application/octet-stream")
    named = {"filename": given["name"]} if given.get("name") else {}
    return cast("Part", {"type": "file", "data": url, "mimeType": media, **named})
