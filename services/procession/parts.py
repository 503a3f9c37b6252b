"""Parts of messages: copying them, and reading those of other formats.

The own format is core.md 7.2. Read as well: content parts of the AI SDK (prompt and UI form) and of OpenAI's
chat completions and responses. A part of an unknown type is kept untouched.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any, Final, TypeVar, cast

from procession.errors import ProcessionError
from procession.merging import advance
from procession_schemas.messages import Part

T = TypeVar("T")
MAPPINGS: Final = (dict, Mapping)
"""What `isinstance` is asked for: nearly all are dicts, and to ask the abstract class takes a call of Python."""
_CONTAINERS: Final = (dict, list, tuple)  # a union would be made anew for each value

MAX_DEPTH: Final = 200
"""Levels of nesting that a message may have; JSON encoders give up not far beyond."""
AROUND_DEPTH: Final = MAX_DEPTH + 8
"""More than prompts and steps have, with what they put around what a message holds."""

_AUDIO_TYPES: Final = {"mp3": "audio/mpeg", "wav": "audio/wav"}
_NAMES: Final[dict[type, str]] = {str: "a string", dict: "an object", list: "a list"}
OPTIONAL_TEXT: Final = (str, NoneType)
_OPTIONAL_MAP: Final = (dict, NoneType)
_FIELDS: Final[dict[str, dict[str, tuple[type, ...]]]] = {
    "text": {"text": (str,)},
    "reasoning": {"reasoning": OPTIONAL_TEXT, "details": (list, NoneType)},
    "image": dict.fromkeys(("image", "mimeType", "mediaType"), OPTIONAL_TEXT),
    "file": dict.fromkeys(("data", "url", "mimeType", "mediaType", "filename"), OPTIONAL_TEXT),
    "source": {"source": (dict,)},
    "tool-invocation": {"toolInvocation": (dict,)},
}
"""What readers of the own format rely on, per type of part."""
_PROVIDER_OPTIONS: Final = (
    "providerMetadata",
    "callProviderMetadata",
    "providerOptions",
    "experimental_providerMetadata",
)
"""What the AI SDK calls what is for the provider, in its versions and kinds of parts."""
_ABOUT_CALLS: Final = frozenset({"tool-approval-request", "tool-approval-response", "tool-error"})
"""Parts of the AI SDK that begin like those of tools."""
_UI_STATES: Final = {
    "input-streaming": "partial-call",
    "input-available": "call",
    "output-available": "result",
}


class InvalidMessageError(ProcessionError):
    """A message that cannot be read (R-ML-10); `field` is the path of what is wrong: `messages.2.content`."""

    code: Final = "INVALID_MESSAGE_CONTENT"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field, self.problem = field, problem


def copy_json(value: T, levels: int = MAX_DEPTH) -> T:
    """Returns a deep copy of a JSON value.

    Raises:
        ValueError: The value nests deeper than `levels`.
    """
    copied: T = _copied(value, levels, levels)
    return copied


def _copied(value: Any, left: int, levels: int) -> Any:
    if not isinstance(value, _CONTAINERS):
        return value
    if not left:
        raise ValueError(f"nests deeper than {levels} levels")
    left -= 1
    if isinstance(value, dict):
        return {k: v if type(v) is str else _copied(v, left, levels) for k, v in value.items()}
    return [_copied(item, left, levels) for item in value]


def tool_part(invocation: Mapping[str, Any], **extra: Any) -> Part:
    """Returns a `tool-invocation` part; extra keys that are None are left out."""
    part = {"type": "tool-invocation", "toolInvocation": dict(invocation)}
    return cast("Part", part | {key: value for key, value in extra.items() if value is not None})


def read_own_parts(parts: list[Any], where: str) -> list[Part]:
    """Copies parts of the own format and checks what every reader relies on.

    Raises:
        InvalidMessageError: A part has no type, a text part no text, or a tool part no invocation.
    """
    return [_own_part(part, f"{where}.{i}") for i, part in enumerate(parts)]


def read_foreign_parts(parts: list[Any], where: str) -> list[Part]:
    """Translates content parts of the AI SDK, its UI messages or OpenAI; a tool's result and its call become one.

    Raises:
        InvalidMessageError: A part is not an object, has no type, or lacks what its type needs.
    """
    out: list[Part] = []
    for i, part in enumerate(parts):
        read = _foreign_part(_typed(part, f"{where}.{i}"), f"{where}.{i}")
        invocation = read.get("toolInvocation")
        known = _part_of(out, invocation["toolCallId"]) if invocation else None
        if known is None:
            out.append(read)
        else:
            _join(known, read, asked=part["type"] == "tool-call")
    return out


def read_tool_calls(calls: Any, where: str) -> list[Part]:
    """Translates OpenAI's `tool_calls`; arguments that are no JSON object stay as they are.

    Raises:
        InvalidMessageError: `calls` is not a list, or one of them has no id or no function name.
    """
    if not isinstance(calls, list):
        raise InvalidMessageError(where, f"is {_kind(calls)}; give a list of tool calls")
    parts = []
    for i, call in enumerate(calls):
        path = f"{where}.{i}"
        call_id = _string(call if isinstance(call, Mapping) else {}, "id", path)
        function = call.get("function")
        name = _called(function if isinstance(function, Mapping) else {}, "name", f"{path}.function")
        arguments = parse_json(function.get("arguments") or {})
        parts.append(tool_part({"state": "call", "toolCallId": call_id, "toolName": name, "args": arguments}))
    return parts


def read_tool_answer(message: Mapping[str, Any], where: str) -> Part:
    """Translates an OpenAI message of role `tool` with plain content into a finished tool part.

    Raises:
        InvalidMessageError: `tool_call_id` is missing.
    """
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return tool_part(
        {
            "state": "result",
            "toolCallId": _string(message, "tool_call_id", where),
            "toolName": message.get("name") or "unknown",
            "args": {},
            "result": content,
        }
    )


def _part_of(parts: list[Part], call_id: str) -> Part | None:
    return next((p for p in parts if p.get("toolInvocation", {}).get("toolCallId") == call_id), None)


def _join(known: Part, read: Part, *, asked: bool) -> None:
    """Makes one part of a call and its outcome, whichever stands first; arguments are those of the call."""
    if asked:
        call = read["toolInvocation"]
        known["toolInvocation"].update({"args": call["args"], "toolName": call["toolName"]})
    advance(known, read["toolInvocation"])
    if "providerMetadata" in read:
        known["providerMetadata"] = {**known.get("providerMetadata", {}), **read["providerMetadata"]}


def check_parts(parts: Iterable[Any], where: str) -> None:
    """Checks what every reader of parts of the own format relies on.

    Raises:
        InvalidMessageError: As in `read_own_parts`.
    """
    for i, part in enumerate(parts):
        if not is_common(part):
            _check_part(part, f"{where}.{i}")


def is_common(part: Any) -> bool:
    """Whether it is a text, call or step as nearly all are, and nothing is wrong with it: to know that costs little."""
    if type(part) is not dict or "providerMetadata" in part:
        return False
    kind = part.get("type")
    if kind != "tool-invocation":
        plain = kind == "step-start" or (kind == "text" and type(part.get("text")) is str)
        return plain and "toolInvocation" not in part
    if type(call := part.get("toolInvocation")) is not dict or "approval" in call or "errorText" in call:
        return False
    named = type(id_ := call.get("toolCallId")) is str and id_ and type(call.get("toolName")) is str
    return bool(named and type(state := call.get("state")) is str and state)


def _own_part(part: Any, where: str) -> Part:
    typed = _typed(part, where)
    if typed["type"] != "tool-invocation":
        typed.pop("toolInvocation", None)  # readers go by it, whatever the type
    _check_part(typed, where)
    if "toolInvocation" in typed:
        typed["toolInvocation"].setdefault("args", {})
    return cast("Part", typed)


def _check_part(part: Any, where: str) -> None:
    kind = _kind_of_part(part, where)
    for key, kinds in {"providerMetadata": _OPTIONAL_MAP, **_FIELDS.get(kind, {})}.items():
        _check(part, key, kinds, where)
    for i, detail in enumerate(part.get("details") or () if kind == "reasoning" else ()):
        _check({"": detail}, "", (dict,), f"{where}.details.{i}")
        _check(detail, "text", OPTIONAL_TEXT, f"{where}.details.{i}")
    if "toolInvocation" in part:
        _check(part, "toolInvocation", (dict,), where)
        path, invocation = f"{where}.toolInvocation", part["toolInvocation"]
        for key in ("state", "toolCallId"):
            _string(invocation, key, path)
        _called(invocation, "toolName", path)
        _check(invocation, "errorText", OPTIONAL_TEXT, path)
        _check(invocation, "approval", _OPTIONAL_MAP, path)


def _foreign_part(part: dict[str, Any], where: str) -> Part:
    kind = part["type"]
    reader = _READERS.get(kind)
    if reader is None and _is_ui_tool(part):
        reader = _ui_tool
    read = reader(part, where) if reader else part
    options = next((part[key] for key in _PROVIDER_OPTIONS if part.get(key)), None)
    if reader and options:
        read["providerMetadata"] = options
    return _own_part(read, where)


def _is_ui_tool(part: dict[str, Any]) -> bool:
    """Whether it is a call in a UI message, whose type names the tool, and no other part about a call."""
    named = part["type"] == "dynamic-tool" or part["type"].startswith("tool-")
    return named and "toolCallId" in part and ("state" in part or part["type"] not in _ABOUT_CALLS)


def _text(part: dict[str, Any], where: str) -> dict[str, Any]:
    return {"type": "text", "text": _string(part, "text", where, empty=True)}


def _reasoning(part: dict[str, Any], where: str) -> dict[str, Any]:
    if "reasoning" in part:
        return part
    text = _string(part, "text", where, empty=True)
    detail = {"type": "text", "text": text}
    if isinstance(part.get("signature"), str):
        detail["signature"] = part["signature"]
    return {"type": "reasoning", "reasoning": text, "details": [detail]}


def _redacted(part: dict[str, Any], _where: str) -> dict[str, Any]:
    return {"type": "reasoning", "reasoning": "", "details": [{"type": "redacted", "data": part.get("data")}]}


def _image(part: dict[str, Any], where: str) -> dict[str, Any]:
    read = {"type": "image", "image": _string(part, "image", where)}
    media = part.get("mediaType") or part.get("mimeType")
    return read | ({"mimeType": media} if media else {})


def _image_url(part: dict[str, Any], where: str) -> dict[str, Any]:
    given = part.get("image_url")
    url = (
        given
        if isinstance(given, str)
        else _string(given if isinstance(given, Mapping) else {}, "url", f"{where}.image_url")
    )
    return {"type": "image", "image": url}


def _file(part: dict[str, Any], where: str) -> dict[str, Any]:
    own = part["file"] if isinstance(part.get("file"), Mapping) else part
    data = own.get("data") or own.get("url") or own.get("file_data") or own.get("file_id")
    if not isinstance(data, str):
        raise InvalidMessageError(where, "has no data; give `data` as base64 text, a data URI or a URL")
    media = own.get("mediaType") or own.get("mimeType") or media_type(data, "application/octet-stream")
    read = {"type": "file", "data": data, "mimeType": media}
    return read | ({"filename": own["filename"]} if own.get("filename") else {})


def _audio(part: dict[str, Any], where: str) -> dict[str, Any]:
    audio = part.get("input_audio")
    data = _string(audio if isinstance(audio, Mapping) else {}, "data", f"{where}.input_audio")
    form = str(audio.get("format") or "wav") if audio else "wav"
    return {"type": "file", "data": data, "mimeType": _AUDIO_TYPES.get(form, f"audio/{form}")}


def _tool_call(part: dict[str, Any], where: str) -> dict[str, Any]:
    args = part.get("input") if "input" in part else part.get("args", {})
    call = {"state": "call", **_call_names(part, where), "args": args}
    return cast("dict[str, Any]", tool_part(call, providerExecuted=part.get("providerExecuted")))


def _tool_result(part: dict[str, Any], where: str) -> dict[str, Any]:
    output = part.get("output") if "output" in part else part.get("result")
    failed = bool(part.get("isError"))
    if isinstance(output, Mapping) and "value" in output and isinstance(output.get("type"), str):
        failed = failed or output["type"].startswith("error")
        output = output["value"]
    call = {**_call_names(part, where), "args": part.get("input", part.get("args", {}))}
    outcome = (
        {"state": "output-error", "errorText": _as_text(output)}
        if failed
        else {"state": "result", "result": output}
    )
    return cast("dict[str, Any]", tool_part({**call, **outcome}))


def _ui_tool(part: dict[str, Any], where: str) -> dict[str, Any]:
    state = str(part.get("state") or "input-available")
    call = {
        "state": _UI_STATES.get(state, state),
        "toolCallId": _string(part, "toolCallId", where),
        "toolName": part.get("toolName") or part["type"].removeprefix("tool-"),
        "args": part.get("input", part.get("rawInput", {})),
    }
    renamed = {"output": "result", "errorText": "errorText", "approval": "approval"}
    call |= {own: part[theirs] for theirs, own in renamed.items() if theirs in part}
    read = tool_part(call, providerExecuted=part.get("providerExecuted"), title=part.get("title"))
    return cast("dict[str, Any]", read)


def _source_url(part: dict[str, Any], _where: str) -> dict[str, Any]:
    source = {
        "sourceType": "url",
        "id": part.get("sourceId"),
        "url": part.get("url"),
        "title": part.get("title"),
    }
    return {"type": "source", "source": source}


_READERS: Final[dict[str, Callable[[dict[str, Any], str], dict[str, Any]]]] = {
    "text": _text,
    "input_text": _text,
    "output_text": _text,
    "reasoning": _reasoning,
    "redacted-reasoning": _redacted,
    "image": _image,
    "image_url": _image_url,
    "input_image": _image_url,
    "file": _file,
    "input_file": _file,
    "input_audio": _audio,
    "tool-call": _tool_call,
    "tool-result": _tool_result,
    "source-url": _source_url,
}


def media_type(data: str, default: str) -> str:
    """Returns the media type that a data URI names, else the default."""
    named = data[5:].partition(",")[0].partition(";")[0] if data.startswith("data:") else ""
    return named or default


def parse_json(value: Any) -> Any:
    """Parses JSON text; anything else, also text that is no JSON, comes back as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _call_names(part: dict[str, Any], where: str) -> dict[str, Any]:
    return {"toolCallId": _string(part, "toolCallId", where), "toolName": _called(part, "toolName", where)}


def _typed(part: Any, where: str) -> dict[str, Any]:
    _kind_of_part(part, where)
    return copy_json(dict(part))


def _kind_of_part(part: Any, where: str) -> str:
    if not isinstance(part, MAPPINGS):
        raise InvalidMessageError(where, f"is {_kind(part)}; a part is an object with a type")
    return _string(part, "type", where)


def _called(call: Mapping[str, Any], key: str, where: str) -> str:
    """The name of a tool; models call tools without one, too (R-TL-4)."""
    return _string(call, key, where, empty=True)


def _string(owner: Mapping[str, Any], key: str, where: str, *, empty: bool = False) -> str:
    value = owner.get(key)
    if isinstance(value, str) and (value or empty):
        return value
    raise InvalidMessageError(f"{where}.{key}", f"is {_kind(value)}; give a string")


def _check(owner: Mapping[str, Any], key: str, kinds: tuple[type, ...], where: str) -> None:
    value = owner.get(key)
    if not isinstance(value, kinds):
        wanted = _NAMES[kinds[0]]
        raise InvalidMessageError(f"{where}.{key}".rstrip("."), f"is {_kind(value)}; give {wanted}")


def _kind(value: Any) -> str:
    if value is None:
        return "missing"
    return "empty" if value == "" else f"of type {type(value).__name__}"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
