"""How chunks, messages, prompts and hook arguments are written down: the formats of `expected/`.

Pure functions from the contract's plain dicts to the recording's. Ids, times and whatever else differs from
run to run is left out; what is undefined in the reference is absent here.
"""

import re
from typing import Any, Final

from tests.conformance.javascript import UNDEFINED, json_text, without_undefined

__all__ = [
    "chunk_of", "db_of", "db_text", "error_info", "error_text", "essentials", "model_name", "prompt_of",
    "scrub", "system_of", "text_of", "usage_of", "visible",
]  # fmt: skip

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_BOOKKEEPING: Final = frozenset(
    {"createdAt", "modelId", "provider", "usage", "stepUsage", "startedAt", "completedAt", "mastra"}
)


def scrub(value: Any) -> Any:
    """Replaces generated ids by `<uuid>`."""
    if isinstance(value, str):
        return _UUID.sub("<uuid>", value)
    if isinstance(value, list):
        return [scrub(each) for each in value]
    return {k: scrub(v) for k, v in value.items()} if isinstance(value, dict) else value


def visible(state: dict[str, Any] | None) -> dict[str, Any] | None:
    """A processor's state without private keys; None when nothing is left."""
    shown = {k: v for k, v in (state or {}).items() if not k.startswith("__")}
    return dict(without_undefined(shown)) or None


def error_text(error: Any) -> Any:
    """The message of an error in any of its forms; undefined when there is none."""
    if error is None:
        return UNDEFINED
    if isinstance(error, str):
        return error
    message = error.get("message") if isinstance(error, dict) else getattr(error, "message", None)
    return message if message is not None else str(error)


def error_info(error: Any) -> dict[str, Any]:
    """Message and, where there is one, HTTP status."""
    info = {"message": error_text(error)}
    status = _status(error)
    if status is None:
        status = _status(_member(error, "cause"))
    if status is not None:
        info["statusCode"] = status
    return info


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def _status(error: Any) -> Any:
    return _member(error, "statusCode") if isinstance(error, dict) else _member(error, "status_code")


def usage_of(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """Tokens in, out and together; None when there is no usage at all."""
    if usage is None:
        return None
    return {short: usage.get(f"{short}Tokens") for short in ("input", "output", "total")}


def model_name(model: str) -> str:
    """The scenario's name of a model: what stands behind the `~` of `script:<id>~<name>`."""
    return model.rpartition("~")[2]


def prompt_of(prompt: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """A prompt of core.md 6.1 as roles with text, reasoning, tool calls, tool results and media types."""
    return [_prompt_entry(entry) for entry in prompt or []]


def _prompt_entry(entry: dict[str, Any]) -> dict[str, Any]:
    content = entry.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else (content or [])
    by_type: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        by_type.setdefault(part.get("type", ""), []).append(part)
    out: dict[str, Any] = {"role": entry["role"]}
    if texts := [part.get("text") for part in by_type.get("text", ())]:
        out["text"] = texts[0] if len(texts) == 1 else texts
    if reasoning := by_type.get("reasoning"):
        out["reasoning"] = "".join(part.get("text", "") for part in reasoning)
    if calls := by_type.get("tool-call"):
        out["tool_calls"] = [
            {
                "id": part.get("toolCallId"),
                "name": part.get("toolName"),
                "args": part.get("input", part.get("args")),
            }
            for part in calls
        ]
    if results := by_type.get("tool-result"):
        out["tool_results"] = [
            {
                "id": part.get("toolCallId"),
                "name": part.get("toolName"),
                "output": part.get("output", part.get("result")),
            }
            for part in results
        ]
    if files := by_type.get("file"):
        out["files"] = [part.get("mediaType") for part in files]
    return out


def db_of(messages: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Stored messages as role, parts and the metadata that people put there."""
    out = []
    for message in messages or []:
        content = message.get("content") or {}
        entry: dict[str, Any] = {
            "role": message["role"],
            "parts": [_part(part) for part in content.get("parts") or [] if part.get("type") != "step-start"],
        }
        metadata = {k: v for k, v in (content.get("metadata") or {}).items() if k not in _BOOKKEEPING}
        if metadata:
            entry["metadata"] = metadata
        out.append(entry)
    return out


def _part(part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type") or ""
    if kind == "text":
        return {"text": part.get("text")}
    if kind == "reasoning":
        told = part.get("reasoning", part.get("text"))
        if told is None:
            told = "".join(detail.get("text", "") for detail in part.get("details") or [])
        return {"reasoning": told}
    if kind == "tool-invocation":
        invocation = part["toolInvocation"]
        out = {
            "tool": invocation.get("toolName"),
            "id": invocation.get("toolCallId"),
            "state": invocation.get("state"),
            "args": invocation.get("args"),
        }
        if "result" in invocation:
            out["result"] = invocation["result"]
        if invocation.get("errorText") is not None:
            out["error"] = invocation["errorText"]
        return out
    if kind.startswith("data-"):
        return {"data": kind, "value": part.get("data")}
    if kind == "error":
        told = error_text(part.get("error") or part.get("data") or part.get("text") or part.get("message"))
        return {"error": True if told is UNDEFINED else told}
    return {"part": kind}


def system_of(messages: list[dict[str, Any]] | None) -> list[str]:
    """The texts of system messages."""
    return [
        m["content"]
        if isinstance(m.get("content"), str)
        else "".join(p.get("text") or "" for p in m["content"] or [])
        for m in messages or []
    ]


def db_text(messages: list[dict[str, Any]] | None) -> str:
    """The texts of stored messages, one line each."""
    return "\n".join(
        "".join(
            p.get("text", "") for p in (m.get("content") or {}).get("parts") or [] if p.get("type") == "text"
        )
        for m in messages or []
    )


def chunk_of(chunk: dict[str, Any]) -> dict[str, Any]:
    """Type and essentials of a chunk."""
    return dict(without_undefined(_chunk(chunk["type"], chunk, chunk.get("payload") or {})))


def _chunk(  # noqa: C901, PLR0912 - a table
    kind: str, chunk: dict[str, Any], payload: dict[str, Any]
) -> dict[str, Any]:
    def have(**keys: str) -> dict[str, Any]:
        return {"type": kind} | {name: payload.get(key, UNDEFINED) for name, key in keys.items()}

    match kind:
        case "text-delta" | "reasoning-delta":
            return have(text="text")
        case "tool-call":
            return have(id="toolCallId", name="toolName", args="args")
        case "tool-result":
            is_error = {"isError": True} if payload.get("isError") else {}
            return have(id="toolCallId", name="toolName", result="result") | is_error
        case "tool-error":
            return have(id="toolCallId", name="toolName") | {"error": error_text(payload.get("error"))}
        case "tool-call-input-streaming-start":
            return have(id="toolCallId", name="toolName")
        case "tool-call-delta":
            return have(id="toolCallId", delta="argsTextDelta")
        case "tool-call-input-streaming-end":
            return have(id="toolCallId")
        case "step-finish" | "finish":
            return _finish(kind, payload)
        case "tripwire":
            told = {k: payload[k] for k in ("retry", "metadata") if payload.get(k) is not None}
            return have(reason="reason", processorId="processorId") | told
        case "error":
            return {"type": kind, **error_info(payload.get("error"))}
        case "object" | "object-result":
            return {"type": kind, "object": chunk.get("object", UNDEFINED)}
        case _ if kind.startswith("data-"):
            return {"type": kind} | {k: chunk[k] for k in ("data", "transient") if k in chunk}
        case _:
            return {"type": kind}


def _finish(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    step = payload.get("stepResult") or {}
    out = {"type": kind, "reason": step.get("reason", UNDEFINED)}
    if kind == "step-finish":
        out["isContinued"] = step.get("isContinued", UNDEFINED)
    for key in ("retryReason", "retryProcessorId"):
        out[key] = UNDEFINED if step.get(key) is None else step[key]
    usage = usage_of((payload.get("output") or {}).get("usage"))
    return out if usage is None else out | {"usage": usage}


def text_of(hook: str, args: Any) -> str:
    """The text that `match` looks at."""
    match hook:
        case "processInput" | "processInputStep":
            return db_text(args.messages)
        case "processLLMRequest":
            texts = [entry.get("text", "") for entry in prompt_of(args.prompt)]
            return "\n".join(each if isinstance(each, str) else "".join(each) for each in texts)
        case "processLLMResponse":
            deltas = [chunk for chunk in args.chunks or [] if chunk["type"] == "text-delta"]
            return "".join((chunk.get("payload") or {}).get("text") or "" for chunk in deltas)
        case "processOutputStream":
            return _part_text(args.part)
        case "processOutputStep":
            return args.text or ""
        case "processToolResult":
            return json_text(args.result)
        case "processOutputResult":
            return args.result.text or ""
        case _:
            return error_text(args.error) or ""


def _part_text(part: dict[str, Any]) -> str:
    payload = part.get("payload") or {}
    if payload.get("text") is not None:
        return str(payload["text"])
    if part["type"].startswith("data-"):
        return json_text(part.get("data", UNDEFINED))
    return (error_text(payload.get("error")) or "") if part["type"] == "error" else ""


def essentials(hook: str, args: Any) -> dict[str, Any]:
    """What a hook was given, as far as it is recorded."""
    match hook:
        case "processInput":
            return {"messages": db_of(args.messages), "system": system_of(args.system_messages)}
        case "processInputStep":
            return _step_essentials(args)
        case "processLLMRequest":
            return {"prompt": prompt_of(args.prompt), "model": model_name(args.model.model_id)}
        case "processLLMResponse":
            types = [chunk["type"] for chunk in args.chunks or []]
            return {"chunks": types, "text": text_of(hook, args), "fromCache": args.from_cache}
        case "processOutputStream":
            return {"part": chunk_of(args.part), "seen": len(args.stream_parts)}
        case "processOutputStep":
            return {
                "text": args.text or "",
                "finishReason": args.finish_reason,
                "toolCalls": [call.get("toolName") for call in args.tool_calls or []],
                "messages": db_of(args.messages),
                "previousSteps": _earlier(args),
            }
        case "processToolResult":
            return {
                "toolName": args.tool_name,
                "id": args.tool_call_id,
                "args": args.args,
                "result": args.result,
            }
        case "processOutputResult":
            result = args.result
            return {
                "messages": db_of(args.messages),
                "text": result.text,
                "finishReason": result.finish_reason,
                "steps": len(result.steps),
            }
        case _:
            return {"error": error_info(args.error), "messages": len(args.messages)}


def _step_essentials(args: Any) -> dict[str, Any]:
    out = {
        "messages": db_of(args.messages),
        "system": system_of(args.system_messages),
        "model": model_name(args.model.model_id),
    }
    if args.tools:
        out["tools"] = list(args.tools)
    if args.tool_choice is not None:
        out["toolChoice"] = args.tool_choice
    if args.active_tools is not None:
        out["activeTools"] = args.active_tools
    return out | {"previousSteps": _earlier(args)}


def _earlier(args: Any) -> int:
    """The steps before this one; the contract's `steps` of processOutputStep hold this one too (A-11)."""
    return sum(step.get("stepNumber", 0) < args.step_number for step in args.steps)
