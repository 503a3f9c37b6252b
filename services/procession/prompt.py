"""Turns a conversation into the prompt of a provider call (core.md 6.1).

Entries are `system` (text), `user` (text and file parts), `assistant` (text, reasoning, file and tool-call
parts) and `tool` (tool-result parts). Nothing in a prompt is shared with the conversation (R-RQ-4), but for whoever
only reads it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from procession import signals
from procession.merging import is_open
from procession.parts import AROUND_DEPTH, copy_json, media_type
from procession_schemas.messages import Message, Part, ToolInvocation

if TYPE_CHECKING:
    from procession.message_list import MessageList  # its `core()` views are made here

Prompt = list[dict[str, Any]]

_OPENING: Final = "."
_DENIED: Final = "The user did not approve this tool call."
_OUTPUT_TYPES: Final = frozenset({"text", "json", "error-text", "error-json", "content"})


def to_prompt(messages: "MessageList") -> Prompt:
    """Returns system entries, then the conversation.

    A conversation that starts with an assistant turn gets a minimal user turn in front (R-ML-11); of an empty
    one the system entries alone remain (R-IN-8).
    """
    return copy_json(shared_prompt(messages), AROUND_DEPTH)


def shared_prompt(messages: "MessageList") -> Prompt:
    """`to_prompt` for whoever changes nothing in it: what parts hold is the conversation's."""
    entries = _entries(messages.get.all.db())
    if entries and entries[0]["role"] == "assistant":
        entries.insert(0, {"role": "user", "content": [{"type": "text", "text": _OPENING}]})
    system = messages.get_all_system_messages()
    return [
        *({"role": "system", "content": m["content"]} for m in system if m["content"].strip()),
        *entries,
    ]


def conversation_entries(messages: Iterable[Message]) -> Prompt:
    """Returns the entries of stored messages; messages of which a model sees nothing are left out."""
    return copy_json(_entries(messages), AROUND_DEPTH)


def _entries(messages: Iterable[Message]) -> Prompt:
    placed = list(signals.in_place(messages))
    waiting = _waiting_calls(placed)
    entries: Prompt = []
    for message in placed:
        parts = message["content"]["parts"]
        if message["role"] in ("user", signals.ROLE):
            content = [e for part in parts for e in _content(part) if e["type"] != "reasoning"]
            if message["role"] == signals.ROLE:
                content = _tagged(message, content)
            made: Prompt = [{"role": "user", "content": content}] if content else []
        else:
            made = list(_turns(parts, waiting))
        options = message["content"].get("providerMetadata")
        for entry in [entry for entry in made if entry["role"] != "tool"][-1:] if options else ():
            entry["providerOptions"] = options
        entries += made
    _part_ids(entries)
    return entries


def _waiting_calls(messages: Iterable[Message]) -> dict[str, ToolInvocation]:
    """Calls without outcome, which stay out of the prompt; their outcome may be in another message (R-ML-7)."""
    calls = [p["toolInvocation"] for m in messages for p in m["content"]["parts"] if "toolInvocation" in p]
    return {call["toolCallId"]: call for call in calls if is_open(call)}


def _part_ids(entries: Prompt) -> None:
    """Gives a call whose id an earlier one has another id, and its result too: providers take an id only once."""
    calls = [
        part["toolCallId"] for entry in entries for part in entry["content"] if part["type"] == "tool-call"
    ]
    if len(set(calls)) == len(calls):
        return
    seen: set[str] = set()
    own: dict[tuple[str, bool], list[str]] = {}
    for entry in entries:
        inline = entry["role"] == "assistant"  # where results of what the provider ran stand
        if inline:
            own = {}
        for part in entry["content"]:
            if part["type"] == "tool-call":
                told, times = part["toolCallId"], 1
                while part["toolCallId"] in seen:
                    times += 1
                    part["toolCallId"] = f"{told}_{times}"
                seen.add(part["toolCallId"])
                own.setdefault((told, bool(part.get("providerExecuted"))), []).append(part["toolCallId"])
            elif part["type"] == "tool-result":
                part["toolCallId"] = own[part["toolCallId"], inline].pop(0)


def _tagged(message: Message, content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a model sees of a signal: its text in its tag, then whatever else it has (R-PRE-5)."""
    text = signals.rendered(message)
    others = [entry for entry in content if entry["type"] != "text"]
    return [{"type": "text", "text": text}, *others] if text.strip() else others


def _turns(parts: Iterable[Part], waiting: Mapping[str, ToolInvocation]) -> Iterator[dict[str, Any]]:
    """Splits an assistant message: a step ends at `step-start` or where content follows tool results."""
    said: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for part in parts:
        if part["type"] == "tool-invocation":
            call, result = _tool(part, waiting)
            if result is None:
                continue
            said.append(call)
            (said if part.get("providerExecuted") else results).append(result)
            continue
        content = _content(part)
        if part["type"] == "step-start" or (results and content):
            yield from _flush(said, results)
            said, results = [], []
        said += content
    yield from _flush(said, results)


def _flush(said: list[dict[str, Any]], results: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    if said:
        yield {"role": "assistant", "content": said}
    if results:
        yield {"role": "tool", "content": results}


def _content(part: Part) -> list[dict[str, Any]]:
    """Returns what a model sees of a part that is no tool part; sources, errors and data are not for it.

    Nor are blank texts and files without data, which providers refuse.
    """
    own = cast("dict[str, Any]", part)
    options = {"providerOptions": own["providerMetadata"]} if own.get("providerMetadata") else {}
    match own["type"]:
        case "text":
            return [{"type": "text", "text": own["text"], **options}] if own["text"].strip() else []
        case "reasoning":
            return [{**entry, **options} for entry in _reasoning(own)]
        case "file" | "image":
            file = _file(own)
            return [{**file, **options}] if file["data"] else []
        case _:
            return []


def _reasoning(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns one entry per detail, with its signature; edited reasoning is one entry without any."""
    details, text = part.get("details") or [], part.get("reasoning")
    if not details or (text is not None and text != "".join(d.get("text") or "" for d in details)):
        return [{"type": "reasoning", "text": text}] if text else []
    entries = []
    for detail in details:
        if detail.get("type") == "redacted":
            entries.append({"type": "reasoning", "text": "", "redactedData": detail.get("data")})
        elif detail.get("text") or detail.get("signature"):
            signature = {"signature": detail["signature"]} if detail.get("signature") else {}
            entries.append({"type": "reasoning", "text": detail.get("text") or "", **signature})
    return entries


def _file(part: dict[str, Any]) -> dict[str, Any]:
    default = "image/*" if part["type"] == "image" else "application/octet-stream"
    data = part.get("data") or part.get("url") or part.get("image") or ""
    media = part.get("mimeType") or part.get("mediaType") or media_type(str(data), default)
    entry = {"type": "file", "data": data, "mediaType": media}
    return entry | ({"filename": part["filename"]} if part.get("filename") else {})


def _tool(part: Part, waiting: Mapping[str, ToolInvocation]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Returns the call and, if there is an outcome, the result entry."""
    invocation = cast("dict[str, Any]", part["toolInvocation"])
    asked = waiting.get(invocation["toolCallId"])
    if asked and not invocation.get("args"):  # a result that came by itself, such as that of a client's tool
        invocation = {**invocation, "args": asked["args"], "toolName": asked["toolName"]}
    names = {"toolCallId": invocation["toolCallId"], "toolName": invocation["toolName"]}
    call = {"type": "tool-call", **names, "input": invocation.get("args")}
    if part.get("providerExecuted"):
        call["providerExecuted"] = True
    if part.get("providerMetadata"):
        call["providerOptions"] = part["providerMetadata"]
    output = _output(invocation)
    return call, None if output is None else {"type": "tool-result", **names, "output": output}


def _output(invocation: dict[str, Any]) -> dict[str, Any] | None:
    state, mapped = invocation["state"], invocation.get("modelOutput")
    if state == "output-error":
        return {"type": "error-text", "value": invocation.get("errorText") or ""}
    if state == "output-denied":
        return {"type": "text", "value": (invocation.get("approval") or {}).get("reason") or _DENIED}
    if state != "result":
        return None
    if isinstance(mapped, dict) and mapped.get("type") in _OUTPUT_TYPES and "value" in mapped:
        return mapped
    value = invocation.get("result") if mapped is None else mapped
    return {"type": "text" if isinstance(value, str) else "json", "value": value}
