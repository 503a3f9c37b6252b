"""Turns the contract's prompt (core.md 6.1) into the messages of OpenAI's chat completions."""

import json
import re
from collections.abc import Collection, Iterable
from typing import Any, Final

import orjson

_SIGNED_REASONING: Final = frozenset({"anthropic", "bedrock", "vertex_ai", "azure_ai", "databricks"})
"""Providers that want their own signed reasoning back."""

_PLAIN_REASONING: Final = frozenset({"deepseek", "moonshot"})
"""Providers that want their reasoning back as text; to all others it is not repeated."""

_NO_REASONING: Final = " "
"""The least that they take with a call, as of another model's."""

_THOUGHT: Final = "__thought__"
"""Behind it, LiteLLM keeps a thought signature of Gemini in the id of a call."""

_KEEP_THOUGHTS: Final = frozenset({"gemini", "vertex_ai", "vertex_ai_beta", "litellm_proxy"})

_CACHING: Final = frozenset({"anthropic", "bedrock", "openrouter"})
"""Providers that keep what is read up to a mark, and read it for a tenth of the price the next time."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""A tool's name as every provider takes it."""

_NO_LETTER: Final = re.compile(r"[^A-Za-z0-9_-]")

_IMAGE_STARTS: Final = {"/9j/": "image/jpeg", "R0lG": "image/gif", "UklG": "image/webp"}
"""How the base64 of a picture begins."""

_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""For what orjson does not write, as an integer of more than 64 bits."""
_AUDIO_FORMATS: Final = {"audio/mpeg": "mp3", "audio/mp3": "mp3", "audio/wav": "wav", "audio/x-wav": "wav"}


def openai_messages(
    prompt: list[dict[str, Any]], model: str = "", tools: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the prompt as chat messages; the prompt itself is left as it is.

    Left out is what would be a message of nothing, which providers refuse: thoughts without an answer, as of a model
    that was cut off while it thought, and files of an assistant, which no chat message holds.

    Args:
        prompt: Entries of role system, user, assistant and tool.
        model: The model asked, `provider/name`, or the provider alone; it decides what is repeated of the reasoning.
        tools: Names of the tools that there are; these go to the provider as they are.

    Raises:
        ValueError: when an entry has another role.
    """
    messages: list[dict[str, Any]] = []
    provider = model.partition("/")[0]
    for entry in prompt:
        role, content, mark = entry.get("role"), entry.get("content"), _mark(entry, provider)
        if role == "system":
            text = _text(_parts(content))
            said = [{"type": "text", "text": text, **mark}] if mark else text
            messages.append({"role": "system", "content": said})
        elif role == "user":
            if said := _user_content(content, mark, provider):
                messages.append({"role": "user", "content": said})
        elif role == "assistant":
            message = {**_assistant(content, model, tools), **mark}
            if message["content"] or "tool_calls" in message:
                messages.append(message)
        elif role == "tool":
            messages.extend(
                _tool_message(part, model) for part in _parts(content) if part.get("type") == "tool-result"
            )
        else:
            raise ValueError(f"a prompt entry has the role {role!r}; use system, user, assistant or tool")
    return messages


def compact_json(value: Any) -> str:
    """Return JSON without blanks and without escapes that nobody needs."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return _COMPACT.encode(value)


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part for part in content or [] if isinstance(part, dict)]


def _text(parts: list[dict[str, Any]]) -> str:
    return "".join([part.get("text", "") for part in parts if part.get("type") == "text"])


def _user_content(content: Any, mark: dict[str, Any], provider: str) -> str | list[dict[str, Any]]:
    """Plain text stays a string, which every provider understands; a list is for what text cannot say."""
    parts = _parts(content)
    rendered = list(_rendered(parts, provider))
    if rendered and mark:
        rendered[-1] |= mark
    text = _text(parts)
    is_plain = len(parts) <= 1 and all(part.get("type") == "text" for part in parts)
    is_marked = any("cache_control" in part for part in rendered)
    return text if is_plain and not (text and is_marked) else rendered


def _rendered(parts: Iterable[dict[str, Any]], provider: str) -> Iterable[dict[str, Any]]:
    for part in parts:
        if part.get("type") == "text":
            yield {"type": "text", "text": part.get("text", ""), **_mark(part, provider)}
        elif part.get("type") in ("file", "image", "media"):
            yield {**_file(part), **_mark(part, provider)}


def _mark(of: dict[str, Any], provider: str) -> dict[str, Any]:
    """The field that says to keep what is read up to this part or entry of a prompt; none where nobody asks for it."""
    if provider not in _CACHING:
        return {}
    own = _metadata(of).get(provider)
    told = (own.get("cacheControl") or own.get("cache_control")) if isinstance(own, dict) else None
    return {"cache_control": told} if told else {}


def _file(part: dict[str, Any]) -> dict[str, Any]:
    data = str(part.get("data") or part.get("image") or part.get("url") or "")
    media_type = _media_type(part, data)
    remote = data.startswith(("http://", "https://"))
    url = data if remote or data.startswith("data:") else f"data:{media_type};base64,{data}"
    if media_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": url}}
    if media_type in _AUDIO_FORMATS and not remote:
        audio = {"data": url.partition(",")[2], "format": _AUDIO_FORMATS[media_type]}
        return {"type": "input_audio", "input_audio": audio}
    if remote:
        return {"type": "file", "file": {"file_id": url, "format": media_type}}
    return {"type": "file", "file": {"file_data": url, "filename": part.get("filename") or "file"}}


def _media_type(part: dict[str, Any], data: str) -> str:
    """Return the type that is told, or the one that the data shows; `image/*` tells nothing."""
    told = str(part.get("mediaType") or part.get("mimeType") or "image/*")
    if data.startswith("data:"):
        return data[5:].partition(";")[0] or told
    if told != "image/*" or data.startswith("http"):
        return told
    return next((kind for start, kind in _IMAGE_STARTS.items() if data.startswith(start)), "image/png")


def _assistant(content: Any, model: str, tools: Collection[str]) -> dict[str, Any]:
    provider = model.partition("/")[0]
    parts = _parts(content)
    own = [part for part in parts if part.get("type") == "tool-call" and not part.get("providerExecuted")]
    calls = [_tool_call(part, model, tools) for part in own]
    message: dict[str, Any] = {"role": "assistant", "content": _text(parts) or (None if calls else "")}
    if calls:
        message["tool_calls"] = calls
    for part in parts:
        message |= _mark(part, provider)
    if provider in _SIGNED_REASONING:
        signed = [block for part in parts if (block := _thinking_block(part))]
        if signed:
            message["thinking_blocks"] = signed
    if provider in _PLAIN_REASONING:
        told = "".join(part.get("text") or "" for part in parts if part.get("type") == "reasoning")
        if reasoning := told or (calls and _NO_REASONING):
            message["reasoning_content"] = reasoning
    return message


def _tool_call(part: dict[str, Any], model: str, tools: Collection[str]) -> dict[str, Any]:
    arguments = part.get("input")
    call = {
        "id": _call_id(part, model),
        "type": "function",
        "function": {
            "name": _name(part.get("toolName"), tools),
            "arguments": compact_json(arguments if isinstance(arguments, dict) else {}),
        },
    }
    own = _metadata(part).get(model.partition("/")[0])
    if own:
        call["provider_specific_fields"] = dict(own)
    return call


def _name(told: Any, tools: Collection[str]) -> str:
    """The name of a call; one that a model made up (`functions.f`) is changed to what providers accept."""
    name = told if isinstance(told, str) else ""
    return name if name in tools or _NAME.fullmatch(name) else _NO_LETTER.sub("_", name)[:64] or "_"


def _call_id(part: dict[str, Any], model: str) -> Any:
    """The id of a call, without the signature that is Gemini's alone: others refuse an id of that length."""
    told = part.get("toolCallId")
    if not isinstance(told, str) or _THOUGHT not in told:
        return told
    if model.partition("/")[0] in _KEEP_THOUGHTS or "gemini" in model.lower():
        return told
    return told.partition(_THOUGHT)[0]


def _thinking_block(part: dict[str, Any]) -> dict[str, Any] | None:
    """The signed form of a reasoning part; without a signature the provider would refuse it."""
    if part.get("type") != "reasoning":
        return None
    own = [part, *(entry for entry in _metadata(part).values() if isinstance(entry, dict))]
    signature = next((entry["signature"] for entry in own if entry.get("signature")), None)
    redacted = next((entry["redactedData"] for entry in own if entry.get("redactedData")), None)
    if redacted:
        return {"type": "redacted_thinking", "data": redacted}
    if signature:
        return {"type": "thinking", "thinking": part.get("text", ""), "signature": signature}
    return None


def _metadata(part: dict[str, Any]) -> dict[str, Any]:
    metadata = part.get("providerOptions") or part.get("providerMetadata")
    return metadata if isinstance(metadata, dict) else {}


def _tool_message(part: dict[str, Any], model: str) -> dict[str, Any]:
    provider = model.partition("/")[0]
    return {
        "role": "tool",
        "tool_call_id": _call_id(part, model),
        "content": _tool_output(part.get("output"), provider),
        **_mark(part, provider),
    }


def _tool_output(output: Any, provider: str) -> str | list[dict[str, Any]]:
    """Render a tool's output as the prompt encodes it; what has no such encoding counts as JSON."""
    if isinstance(output, dict) and "value" in output:
        value = output["value"]
        if output.get("type") in ("text", "error-text"):
            return value if isinstance(value, str) else compact_json(value)
        if output.get("type") == "content" and isinstance(value, list):
            return list(_rendered(_parts(value), provider))
        return compact_json(value)
    return output if isinstance(output, str) else compact_json(output)
