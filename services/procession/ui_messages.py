"""Turns stored messages into UI messages of the AI SDK; `messages.normalise` reads them back (R-ML-2)."""

from typing import Any, Final

from procession import signals
from procession.parts import copy_json, media_type
from procession_schemas.messages import Message, Part

_STATES: Final = {"partial-call": "input-streaming", "call": "input-available", "result": "output-available"}


def to_ui(message: Message) -> dict[str, Any]:
    """Returns `{"id", "role", "createdAt", "parts", "metadata"?}`, sharing nothing with the message.

    The AI SDK knows no role `signal`: a signal is a message with the data part that the client got as a chunk.
    """
    content = message["content"]
    if message["role"] == signals.ROLE:
        told = signals.to_chunk(message)
        part = {"type": told["type"], "data": told["data"]}
        return {"id": message["id"], "role": "assistant", "createdAt": message["createdAt"], "parts": [part]}
    ui: dict[str, Any] = {
        "id": message["id"],
        "role": message["role"],
        "createdAt": message["createdAt"],
        "parts": [_part(part) for part in content["parts"]],
    }
    if content.get("metadata"):
        ui["metadata"] = copy_json(content["metadata"])
    return ui


def _part(part: Part) -> dict[str, Any]:
    own: dict[str, Any] = copy_json(dict(part))
    ui: dict[str, Any]
    match own["type"]:
        case "reasoning":
            ui = {"type": "reasoning", "text": own.get("reasoning", "")}
        case "tool-invocation":
            ui = _tool(own)
        case "file" | "image":
            ui = _file(own)
        case "source":
            ui = _source(own["source"])
        case _:
            return own
    if own.get("providerMetadata"):
        called = own["type"] == "tool-invocation"
        ui["callProviderMetadata" if called else "providerMetadata"] = own["providerMetadata"]
    return ui


def _tool(part: dict[str, Any]) -> dict[str, Any]:
    call = part["toolInvocation"]
    ui = {
        "type": f"tool-{call['toolName']}",
        "toolCallId": call["toolCallId"],
        "state": _STATES.get(call["state"], call["state"]),
        "input": call.get("args"),
    }
    renamed = {"result": "output", "errorText": "errorText", "approval": "approval"}
    ui |= {theirs: call[own] for own, theirs in renamed.items() if own in call}
    return ui | {key: part[key] for key in ("providerExecuted", "title") if key in part}


def _file(part: dict[str, Any]) -> dict[str, Any]:
    data = str(part.get("data") or part.get("url") or part.get("image") or "")
    media = part.get("mimeType") or part.get("mediaType") or media_type(data, "application/octet-stream")
    url = data if data.startswith(("data:", "http://", "https://")) else f"data:{media};base64,{data}"
    ui = {"type": "file", "url": url, "mediaType": media}
    return ui | ({"filename": part["filename"]} if part.get("filename") else {})


def _source(source: dict[str, Any]) -> dict[str, Any]:
    if source.get("sourceType") == "document":
        named = {
            "mediaType": source.get("mimeType"),
            "title": source.get("title"),
            "filename": source.get("filename"),
        }
        present = {key: value for key, value in named.items() if value is not None}
        return {"type": "source-document", "sourceId": source.get("id"), **present}
    return {
        "type": "source-url",
        "sourceId": source.get("id"),
        "url": source.get("url"),
        "title": source.get("title"),
    }
