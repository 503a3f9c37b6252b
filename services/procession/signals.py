"""Signals: context that the runtime or a processor puts into a conversation (builtins.md 27.1, R-PRE-4, R-PRE-5).

A signal is a message of role `signal`. Its text is what the model reads, as a user turn inside a tag; what else is
known about it stands in `content.metadata.signal`: `type`, `tagName`, `attributes`, `metadata`, `transient`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Required, TypedDict, cast
from xml.sax.saxutils import escape

from procession.errors import ProcessionError
from procession.parts import copy_json
from procession_schemas.messages import Message

if TYPE_CHECKING:
    from procession.message_list import MessageList  # whose prompts are made with this module

ROLE: Final = "signal"
CHUNK: Final = "data-signal"

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_QUOTE: Final = {'"': "&quot;"}
_TAGS: Final = {"reactive": "system-reminder", "user": "", "user-message": ""}
"""The tags of signals without a name for it, where it is not their type."""


class Signal(TypedDict, total=False):
    """What `args.services.send_signal` takes.

    Keys:
        contents: The text for the model; the only key that must be there.
        type: `reactive` (default), `state`, `notification`, or one of your own.
        tagName: The tag around the text; default: the type, `system-reminder` for `reactive`.
        attributes: Attributes of the tag: texts, numbers, booleans.
        metadata: Any JSON for processors and clients; the model does not see it.
        transient: True: part of this run, never saved (R-HIST-8).
    """

    contents: Required[str]
    type: str
    tagName: str
    attributes: dict[str, Any]
    metadata: dict[str, Any]
    transient: bool


_KINDS: Final[dict[str, tuple[type, str]]] = {
    "contents": (str, "a string"),
    "type": (str, "a string"),
    "tagName": (str, "a string"),
    "attributes": (dict, "an object"),
    "metadata": (dict, "an object"),
    "transient": (bool, "true or false"),
}


class InvalidSignalError(ProcessionError):
    """A signal that cannot be sent; the message names the key and what is wrong with it."""


def to_message(signal: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the message of a signal; a `MessageList` gives it its id and time.

    Raises:
        InvalidSignalError: A key is missing, unknown or of a wrong type, or a name cannot be a tag's.
    """
    _check(signal)
    about = {"type": "reactive"}
    about |= {
        key: copy_json(value) for key, value in signal.items() if key != "contents" and value is not None
    }
    parts = [{"type": "text", "text": signal["contents"]}]
    return {"role": ROLE, "content": {"format": 2, "parts": parts, "metadata": {"signal": about}}}


def _check(signal: Any) -> None:
    if not (isinstance(signal, Mapping) and isinstance(signal.get("contents"), str)):
        raise InvalidSignalError('a signal needs `contents`, the text for the model: {"contents": "..."}')
    for key, value in signal.items():
        if key not in _KINDS:
            raise InvalidSignalError(f"a signal has no key {key!r}; its keys are {', '.join(_KINDS)}")
        kind, name = _KINDS[key]
        if value is not None and not isinstance(value, kind):
            raise InvalidSignalError(f"`{key}` of a signal must be {name}, not {type(value).__name__}")
    names = [signal["tagName"]] if signal.get("tagName") else []
    for name in [*names, *(signal.get("attributes") or {})]:
        if not _NAME.fullmatch(name):
            raise InvalidSignalError(
                f"{name!r} cannot name a tag or an attribute; use letters, digits, -, _ and ., with a letter or _ first"
            )


def about(message: Mapping[str, Any]) -> dict[str, Any]:
    """What a message says about itself as a signal; empty for any other message."""
    found = (message["content"].get("metadata") or {}).get("signal")
    return found if isinstance(found, dict) else {}


def contents(message: Mapping[str, Any]) -> str:
    """The text of a signal, without its tag."""
    return "".join(part.get("text") or "" for part in message["content"]["parts"] if part["type"] == "text")


def rendered(message: Mapping[str, Any]) -> str:
    """The text as the model reads it: `<tag name="value">contents</tag>` (R-PRE-5).

    The text cannot close its own tag. Without a tag name the type names the tag, but for what users say; a name that
    is none, as a recalled message may have it, leaves the text alone.
    """
    text, signal = contents(message), about(message)
    kind = signal.get("type")
    tag = signal.get("tagName") or (_TAGS.get(kind, kind) if isinstance(kind, str) else None)
    if not isinstance(tag, str) or not _NAME.fullmatch(tag):
        return text
    given = signal.get("attributes")
    attributes = given.items() if isinstance(given, dict) else ()
    shown = "".join(_attribute(name, value) for name, value in attributes if _NAME.fullmatch(str(name)))
    return f"<{tag}{shown}>{escape(text)}</{tag}>" if text else f"<{tag}{shown} />"


def _attribute(name: str, value: Any) -> str:
    if not isinstance(value, str | int | float):
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f' {name}="{escape(text, _QUOTE)}"'


def to_chunk(message: Message) -> dict[str, Any]:
    """The `data-signal` chunk that tells the client; transient, since the message itself is kept."""
    shown = {key: value for key, value in about(message).items() if key != "after"}
    data = {"id": message["id"], **shown, "contents": contents(message), "createdAt": message["createdAt"]}
    return {"type": CHUNK, "data": copy_json(data), "transient": True}


# --- the place of a signal in a conversation ---------------------------------------------------------


def add(messages: "MessageList", signal: Mapping[str, Any], *, response_id: str) -> Message:
    """Adds a signal at the end of a conversation and returns its message, which is saved like input.

    All steps of a run go into one assistant message, `response_id`; so `after` in the metadata says how many parts
    of it came before the signal.

    Raises:
        InvalidSignalError: As `to_message`.
    """
    made = to_message(signal)
    response = next((m for m in reversed(messages.get.all.db()) if m["id"] == response_id), None)
    if response is not None:
        place = {"message": response_id, "parts": len(response["content"]["parts"])}
        made["content"]["metadata"]["signal"]["after"] = place
    return messages.add(made, "input").get.all.db()[-1]


def cut_back(messages: Iterable[Message], response: Message) -> None:
    """Moves signals of a rejected attempt to where that attempt began, once its parts are gone."""
    left = len(response["content"]["parts"])
    for message in messages:
        place = _place(message)
        if place and place["message"] == response["id"]:
            place["parts"] = min(place["parts"], left)


def in_place(messages: Iterable[Message]) -> list[Message]:
    """The messages in the order in which the model reads them: a signal sent between two steps stands between them.

    An assistant message with signals inside comes as several copies of it, each with the parts between two signals.
    """
    listed = list(messages)
    inside: dict[str, list[tuple[int, Message]]] = {}
    sizes = {m["id"]: len(m["content"]["parts"]) for m in listed if m["role"] == "assistant"}
    for message in listed:
        place = _place(message)
        if place and place["parts"] < sizes.get(place["message"], 0):
            inside.setdefault(place["message"], []).append((place["parts"], message))
    if not inside:
        return listed
    moved = {id(message) for group in inside.values() for _, message in group}
    ordered: list[Message] = []
    for message in listed:
        if id(message) not in moved:
            ordered += _split(message, inside[message["id"]]) if message["id"] in inside else [message]
    return ordered


def _split(message: Message, signals: list[tuple[int, Message]]) -> list[Message]:
    parts, pieces, start = message["content"]["parts"], [], 0
    for end, signal in sorted(signals, key=lambda each: each[0]):
        pieces += [_piece(message, parts[start:end]), signal]
        start = end
    return [*pieces, _piece(message, parts[start:])]


def _piece(message: Message, parts: list[Any]) -> Message:
    return cast("Message", {**message, "content": {**message["content"], "parts": parts}})


def _place(message: Message) -> dict[str, Any] | None:
    """Where a signal stands inside an assistant message; None for one that stands by itself, and for others."""
    if message["role"] != ROLE:
        return None
    place = about(message).get("after")
    if not isinstance(place, dict) or not isinstance(place.get("message"), str):
        return None
    return place if isinstance(place.get("parts"), int) and place["parts"] >= 0 else None
