"""Conversation messages as plain dicts (core.md 7.1): reading, making, copying and rewriting them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

from procession import flat_fields
from procession.parts import (
    MAPPINGS,
    OPTIONAL_TEXT,
    InvalidMessageError,
    check_parts,
    copy_json,
    is_common,
    read_foreign_parts,
    read_own_parts,
    read_tool_answer,
    read_tool_calls,
)
from procession_schemas.messages import Message, Part

__all__ = [
    "InvalidMessageError",
    "check_stored",
    "clone",
    "is_readable",
    "map_text",
    "new_message",
    "normalise",
    "refresh_flat",
    "system_text",
    "text_of",
    "texts_of",
    "timestamp",
    "user_message",
    "without_stale_flat",
]

_ROLES: Final = ("user", "assistant", "system", "tool", "signal")
_STORED_ROLES: Final = ("user", "assistant", "signal")
_STAMP: Final = len("2026-01-31T12:00:00.000Z")
_NOTHING: Final[dict[str, Any]] = {}
_END_OF_TIME: Final = "9999"  # a message after it could not get a later time
_PROVIDER_OPTIONS: Final = ("providerOptions", "providerMetadata", "experimental_providerMetadata")
_KEPT: Final = ("threadId", "resourceId", "type")


def text_of(message: Mapping[str, Any]) -> str:
    """Returns the text of a message: its text parts joined, else its flat `content.content` (R-DM-1)."""
    content = message["content"]
    text = "".join(_texts(content))
    flat = content.get("content")
    return text if text or not isinstance(flat, str) else flat


def texts_of(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the text of each message, in order."""
    return [text_of(message) for message in messages]


def system_text(message: Mapping[str, Any]) -> str:
    """Returns the text of a system message: the flat string, else its text parts by newlines (R-IN-7)."""
    content = message["content"]
    if isinstance(content, str):
        return content
    flat = content.get("content")
    return flat if isinstance(flat, str) else "\n".join(_texts(content))


def new_message(
    role: str,
    content: str | Sequence[Mapping[str, Any]],
    *,
    id: str | None = None,  # noqa: A002 - the contract's name
    created_at: str | None = None,
) -> dict[str, Any]:
    """Makes a message out of a text or of parts.

    Without `id` and `created_at` it lacks them; a `MessageList` fills them in when it takes the message.
    """
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else copy_json(list(content))
    message: dict[str, Any] = {"role": role, "content": {"format": 2, "parts": parts}}
    if id is not None:
        message["id"] = id
    if created_at is not None:
        message["createdAt"] = created_at
    return message


def user_message(
    content: str | Sequence[Mapping[str, Any]],
    *,
    id: str | None = None,  # noqa: A002 - the contract's name
    created_at: str | None = None,
) -> dict[str, Any]:
    """Makes a user message, as `new_message` does."""
    return new_message("user", content, id=id, created_at=created_at)


def clone(message: Message) -> Message:
    """Returns a deep copy that can be edited freely."""
    return copy_json(message)


def map_text(message: Message, rewrite: Callable[[str], str]) -> Message:
    """Returns a copy in which each text part went through `rewrite`; all other parts stay (D-6)."""
    copy = clone(message)
    content = cast("dict[str, Any]", copy["content"])
    texts = [part for part in content.get("parts", ()) if part["type"] == "text"]
    for part in texts:
        part["text"] = rewrite(part["text"])
    if texts:
        refresh_flat(copy)
    elif isinstance(content.get("content"), str):
        content["content"] = rewrite(content["content"])
    return copy


def refresh_flat(message: Message) -> None:
    """Brings `content.content` in line with the parts, if the message has it.

    The flat copy is for old readers only. Left behind, it would keep what a processor took out of the parts.
    """
    content = message["content"]
    if "content" in content:
        texts = _texts(content)
        if texts:
            content["content"] = texts[-1]
        else:
            del content["content"]


def without_stale_flat(like: Mapping[str, Any], stored: Message) -> Mapping[str, Any]:
    """Returns the message without a flat copy that would bring back text taken out of its parts.

    That is a copy left as it is in the stored message, on a message without any text part.
    """
    content = like.get("content")
    if not isinstance(content, Mapping) or not isinstance(content.get("parts"), list):
        return like
    if "content" not in content or content["content"] != stored["content"].get("content"):
        return like
    if any(isinstance(part, Mapping) and part.get("type") == "text" for part in content["parts"]):
        return like
    return {**like, "content": {key: value for key, value in content.items() if key != "content"}}


def timestamp(value: datetime) -> str:
    """Returns ISO-8601 in UTC with milliseconds and `Z`; a time without zone counts as UTC."""
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    return aware.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def normalise(
    like: Any, *, new_id: Callable[[], str], now: Callable[[], str], where: str = "message"
) -> Message:
    """Returns a new stored message out of whatever stands for one.

    Understood are a string (a user message), `{"role", "content"}` with a string or with content parts of the
    AI SDK or OpenAI, OpenAI's `tool_calls` and role `tool`, a UI message (`{"role", "parts"}`, of AI SDK 4 with
    fields beside them), and a full message. What only a flat field says becomes a part (D-28).

    Args:
        like: The message; it is copied, never kept.
        new_id: Makes the id if there is none.
        now: Makes the timestamp if there is none.
        where: Path of the message, for errors.

    Raises:
        InvalidMessageError: Content is missing or null, something has a wrong type, or the role is unknown
            (R-ML-10).
    """
    if isinstance(like, str):
        like = {"role": "user", "content": like}
    if not isinstance(like, MAPPINGS):
        raise InvalidMessageError(
            where, f"is {type(like).__name__}; give a string, or an object with role and content"
        )
    role = like.get("role")
    if role not in _ROLES:
        raise InvalidMessageError(f"{where}.role", f"is {role!r}; use one of {', '.join(_ROLES)}")
    try:
        content = _content(like, where)
    except ValueError as error:
        raise InvalidMessageError(f"{where}.content", str(error)) from None
    fields: dict[str, Any] = {
        "id": _optional(like, "id", where) or new_id(),
        "role": "assistant" if role == "tool" else role,
        "createdAt": _created_at(like.get("createdAt"), where) or now(),
        "content": content,
    }
    for key in _KEPT:
        if (value := _optional(like, key, where)) is not None:
            fields[key] = value
    message = cast("Message", fields)
    refresh_flat(message)
    return message


def check_stored(messages: Iterable[Mapping[str, Any]]) -> None:
    """Checks what every reader of stored messages relies on, which an edit in place may have spoilt.

    Raises:
        InvalidMessageError: As in `normalise`, which lets nothing else in.
    """
    for i, message in enumerate(messages):
        if not _is_common(message):
            _check_stored(message, f"messages.{i}")


def is_readable(message: Mapping[str, Any]) -> bool:
    """Whether there is nothing wrong with a stored message."""
    try:
        check_stored([message])
    except InvalidMessageError:
        return False
    return True


def _is_common(message: Mapping[str, Any]) -> bool:
    """Whether it is as nearly all are, with nothing wrong: a whole conversation is looked at behind each hook."""
    stamp, content = message.get("createdAt"), message.get("content")
    if type(stamp) is not str or len(stamp) != _STAMP or stamp[-1] != "Z":
        return False
    if type(content) is not dict or type(parts := content.get("parts")) is not list:
        return False
    if type(id_ := message.get("id")) is not str or not id_ or message.get("role") not in _STORED_ROLES:
        return False
    return type(content.get("metadata", _NOTHING)) is dict and all(map(is_common, parts))


def _check_stored(message: Mapping[str, Any], where: str) -> None:
    if message.get("role") not in _STORED_ROLES:
        told = f"is {message.get('role')!r}; use one of {', '.join(_STORED_ROLES)}"
        raise InvalidMessageError(f"{where}.role", told)
    if not _optional(message, "id", where):
        raise InvalidMessageError(f"{where}.id", "is missing; give a string")
    try:
        datetime.fromisoformat(message["createdAt"])
    except (KeyError, TypeError, ValueError):
        raise _no_time(message.get("createdAt"), where) from None
    content = message.get("content")
    if not isinstance(content, dict) or not isinstance(content.get("parts"), list):
        told = "is not an object with a list of `parts`; to change a message, change its parts"
        raise InvalidMessageError(f"{where}.content", told)
    _check_metadata(content, f"{where}.content")
    check_parts(content["parts"], f"{where}.content.parts")


def _content(like: Mapping[str, Any], where: str) -> dict[str, Any]:
    content, path = like.get("content"), f"{where}.content"
    if isinstance(content, MAPPINGS):
        return _full_content(content, path)
    if like["role"] == "tool" and "tool_call_id" in like:
        return {"format": 2, "parts": [read_tool_answer(like, where)]}
    calls = read_tool_calls(like["tool_calls"], f"{where}.tool_calls") if like.get("tool_calls") else []
    given, flat = like.get("parts"), None
    if isinstance(given, list) and (given or not isinstance(content, list)):
        # A UI message; AI SDK 4 gives the text of its parts once more.
        flat, content, path = content, given, f"{where}.parts"
    elif content is None:
        if not calls and not any(like.get(field) for field in flat_fields.FIELDS):
            raise InvalidMessageError(
                path, "is missing; give a string or a list of parts (an empty string is fine)"
            )
        content = []
    if isinstance(content, str):
        said = [Part(type="text", text=content)]
    elif isinstance(content, list):
        said = read_foreign_parts(content, path)
    else:
        raise InvalidMessageError(
            path, f"is of type {type(content).__name__}; give a string or a list of parts"
        )
    parts = _with_flat_text([*said, *calls], flat)
    return _with_rest({"format": 2, "parts": flat_fields.unfolded(like, parts, where)}, like)


def _full_content(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    given, flat = content.get("parts"), content.get("content")
    if given is None and flat is None and not any(content.get(field) for field in flat_fields.FIELDS):
        raise InvalidMessageError(where, "has neither parts nor content; give a list of parts")
    if not isinstance(given, list | None):
        raise InvalidMessageError(f"{where}.parts", f"is of type {type(given).__name__}; give a list")
    if not isinstance(flat, OPTIONAL_TEXT):
        raise InvalidMessageError(f"{where}.content", f"is of type {type(flat).__name__}; give a string")
    _check_metadata(content, where)
    parts = _with_flat_text(read_own_parts(given or [], f"{where}.parts"), flat)
    parts = flat_fields.unfolded(content, parts, where)
    gone = ("parts", *flat_fields.FIELDS)
    rest = {key: value for key, value in content.items() if value is not None and key not in gone}
    return copy_json(rest) | {"format": 2, "parts": parts}


def _check_metadata(content: Mapping[str, Any], where: str) -> None:
    if not isinstance(metadata := content.get("metadata"), Mapping | None):
        raise InvalidMessageError(
            f"{where}.metadata", f"is of type {type(metadata).__name__}; give an object"
        )


def _with_flat_text(parts: list[Part], flat: Any) -> list[Part]:
    """The flat text as a part in front, where no part is text; an empty one says nothing beside other parts."""
    if not isinstance(flat, str) or any(part["type"] == "text" for part in parts) or (parts and not flat):
        return parts
    return [Part(type="text", text=flat), *parts]


def _with_rest(content: dict[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """What a foreign message says beside its parts: metadata, annotations, and what is for the provider."""
    if isinstance(like.get("metadata"), MAPPINGS):
        content["metadata"] = copy_json(dict(like["metadata"]))
    if isinstance(like.get("annotations"), list):
        content["annotations"] = copy_json(like["annotations"])
    options = next((like[key] for key in _PROVIDER_OPTIONS if isinstance(like.get(key), MAPPINGS)), None)
    if options:
        content["providerMetadata"] = copy_json(dict(options))
    return content


def _optional(like: Mapping[str, Any], key: str, where: str) -> str | None:
    value = like.get(key)
    if not isinstance(value, OPTIONAL_TEXT):
        raise InvalidMessageError(f"{where}.{key}", f"is of type {type(value).__name__}; give a string")
    return value


def _created_at(value: Any, where: str) -> str | None:
    if value is None:
        return None
    try:
        stamp = timestamp(value if isinstance(value, datetime) else datetime.fromisoformat(value))
    except (TypeError, ValueError, OverflowError):
        stamp = _END_OF_TIME
    if stamp >= _END_OF_TIME:
        raise _no_time(value, where)
    return stamp


def _no_time(value: Any, where: str) -> InvalidMessageError:
    return InvalidMessageError(
        f"{where}.createdAt", f"is {value!r}; give a time such as 2026-01-31T12:00:00.000Z"
    )


def _texts(content: Mapping[str, Any]) -> list[str]:
    return [part.get("text") or "" for part in content.get("parts") or () if part.get("type") == "text"]
