"""`model` events: what really went to the provider, written down as the reference writes its prompts.

The source is the body of the HTTP request. OpenAI's protocol says less than the contract's prompt; four
things are restored, some of them from notes that the scripted hooks and tools leave on the board:

* the type of a tool's output (`text`, `json`, `error-text`): from what the tool returned or threw, and from
  what `processToolResult` made of it. A call of which nothing is known never ran, so it is an error.
* `toolChoice: none`: OpenAI allows no tool choice without tools, so "none" shows as their absence. It is
  taken from the run's options or the last `set-tool-choice` of the attempt, and believed only when no tools
  were sent.
* the name of a tool result: from the assistant's call with that id;
* arguments that the model garbled: they are undefined in the contract's prompt, an empty object in OpenAI's.

Messages of one tool round, which OpenAI separates, are one entry again. Reasoning is not part of OpenAI's
messages.
"""

import json
from collections.abc import Collection
from typing import Any, Final

from tests.conformance.javascript import UNDEFINED, json_text
from tests.conformance.record import model_name

__all__ = ["ScriptPlan", "garbled_calls", "model_event", "playable"]

_SETTINGS: Final = {
    "temperature": "temperature",
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "top_p": "topP",
    "seed": "seed",
}
_OWN: Final = frozenset(
    {
        "model", "messages", "stream", "stream_options", "tools", "tool_choice", "response_format", "n",
        "stop", "top_k", "presence_penalty", "frequency_penalty",
    }
)  # fmt: skip
_CAMEL: Final = {"reasoning_effort": "reasoningEffort", "parallel_tool_calls": "parallelToolCalls"}

ScriptPlan = list[dict[str, Any]]
"""The calls of a scenario's `model_script`, as the model server plays them."""


def playable(script: ScriptPlan, *, paced: bool) -> ScriptPlan:
    """A scenario's model script as the model server takes it.

    Args:
        script: The scenario's calls.
        paced: Whether the answer comes slowly, so that a cancellation finds the next chunk unsent.
    """
    return [_call(call, paced=paced) for call in script] or [{}]


def _call(call: dict[str, Any], *, paced: bool) -> dict[str, Any]:
    slow = {"delay_ms": call.get("delay_ms", 0) + 100, "chunk_delay_ms": 150} if paced else {}
    if error := call.get("error"):
        told = {k: error[k] for k in ("status", "retryable", "headers", "network") if k in error}
        message = error.get("message") or f"mock error {error.get('status')}"
        return {"error": told | {"message": message}} | {k: call[k] for k in ("delay_ms",) if k in call}
    known = ("chunks", "reasoning", "tool_calls", "stream_tool_input", "finish_reason", "usage", "delay_ms")
    out = {k: call[k] for k in known if k in call} | slow
    if broken := call.get("mid_error"):
        out.pop("tool_calls", None)
        kind = "drop" if broken.get("kind") == "drop" else "event"
        out["mid_error"] = {"kind": kind, "message": broken.get("message") or "mid-stream error"}
    return out


def garbled_calls(script: ScriptPlan) -> frozenset[str]:
    """The ids of the script's tool calls whose arguments are not JSON."""
    calls = [call for step in script for call in step.get("tool_calls") or []]
    return frozenset(
        call["id"] for call in calls if isinstance(call.get("arguments"), str) and _garbled(call["arguments"])
    )


def _garbled(arguments: str) -> bool:
    return bool(arguments.strip()) and _parsed(arguments) is UNDEFINED


def model_event(
    body: dict[str, Any],
    events: list[dict[str, Any]],
    run_choice: Any,
    call: int,
    garbled: Collection[str] = (),
) -> dict[str, Any]:
    """The event of a request body.

    Args:
        body: What the model server received.
        events: The board so far.
        run_choice: The tool choice of the run's options.
        call: Number of the call in the scenario, from 0.
        garbled: Ids of calls whose arguments are not JSON (`garbled_calls`).
    """
    event: dict[str, Any] = {
        "ev": "model",
        "call": call,
        "model": model_name(body.get("model") or ""),
        "prompt": _Prompt(body.get("messages") or [], _outcomes(events), garbled).entries(),
    }
    if tools := body.get("tools"):
        event["tools"] = [tool["function"]["name"] for tool in tools]
    choice = body.get("tool_choice")
    if choice is None and not tools and _choice(events, run_choice) == "none":
        choice = "none"
    if choice not in (None, "auto"):
        event["toolChoice"] = {"tool": choice["function"]["name"]} if isinstance(choice, dict) else choice
    if settings := {ours: body[theirs] for theirs, ours in _SETTINGS.items() if body.get(theirs) is not None}:
        event["settings"] = settings
    if (body.get("response_format") or {}).get("type", "text") != "text":
        event["responseFormat"] = "json"
    extra = {_CAMEL.get(k, k): v for k, v in body.items() if k not in _OWN and k not in _SETTINGS}
    if extra:
        event["providerOptions"] = {"mock-provider": extra}
    return event


def _choice(events: list[dict[str, Any]], run_choice: Any) -> Any:
    """The tool choice of the attempt: what its hooks set, else what the run's options say."""
    for event in reversed(events):
        if event["ev"] == "_choice":
            return event["choice"]
        if event["ev"] in ("model", "run"):
            break
    return run_choice


def _outcomes(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Every outcome of each call id, the newest first; an id may be used again."""
    outcomes: dict[str, list[dict[str, Any]]] = {}
    for event in reversed(events):
        if event["ev"] == "_outcome":
            outcomes.setdefault(event["id"], []).append(event)
    return outcomes


class _Prompt:
    """Reads OpenAI's messages as entries of a recorded prompt."""

    def __init__(
        self,
        messages: list[dict[str, Any]],
        outcomes: dict[str, list[dict[str, Any]]],
        garbled: Collection[str],
    ) -> None:
        self._garbled = garbled
        self._messages = messages
        self._outcomes = outcomes
        self._names: dict[str, str] = {}

    def entries(self) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = []
        before = ""
        for message in self._messages:
            role = message["role"]
            if role == "tool":
                if before != "tool":
                    out.append({"role": "tool", "tool_results": []})
                out[-1]["tool_results"].append(self._result(message))
            else:
                out.append(self._entry(message))
            before = role
        return out

    def _entry(self, message: dict[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else (content or [])
        entry: dict[str, Any] = {"role": message["role"]}
        texts = [part["text"] for part in parts if part["type"] == "text"]
        if texts == [""] and message["role"] == "assistant":
            texts = []
        if texts:
            entry["text"] = texts[0] if len(texts) == 1 else texts
        if calls := message.get("tool_calls"):
            entry["tool_calls"] = [self._call(call) for call in calls]
        if files := [_media_type(part) for part in parts if part["type"] != "text"]:
            entry["files"] = files
        return entry

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        name = call["function"]["name"]
        self._names[call["id"]] = name
        try:
            args = json.loads(call["function"]["arguments"] or "{}")
        except ValueError:
            args = call["function"]["arguments"]
        if call["id"] in self._garbled and args == {}:
            return {"id": call["id"], "name": name}
        return {"id": call["id"], "name": name, "args": args}

    def _result(self, message: dict[str, Any]) -> dict[str, Any]:
        call_id = message["tool_call_id"]
        output = self._output(call_id, message.get("content") or "")
        return {"id": call_id, "name": self._names.get(call_id, ""), "output": output}

    def _output(self, call_id: str, content: Any) -> dict[str, Any]:
        known = self._outcomes.get(call_id, [])
        for outcome in known:
            if content == outcome.get("error"):
                return {"type": "error-text", "value": content}
            result = outcome.get("result", UNDEFINED)
            if isinstance(result, str) and content == result:
                return {"type": "text", "value": content}
            if (
                "result" in outcome
                and _parsed(content) is not UNDEFINED
                and json_text(_parsed(content)) == json_text(result)
            ):
                return {"type": "json", "value": result}
        if not known or "error" in known[0]:
            return {"type": "error-text", "value": content}
        value = _parsed(content)
        if isinstance(known[0]["result"], str) or value is UNDEFINED:
            return {"type": "text", "value": content}
        return {"type": "json", "value": value}


def _parsed(content: Any) -> Any:
    try:
        return json.loads(content)
    except (ValueError, TypeError):
        return UNDEFINED


def _media_type(part: dict[str, Any]) -> str | None:
    url = (part.get("image_url") or {}).get("url") or (part.get("file") or {}).get("file_data") or ""
    if url.startswith("data:"):
        return str(url[5:].partition(";")[0])
    if part["type"] == "image_url":
        return "image/*"
    file_format = (part.get("file") or {}).get("format") or (part.get("input_audio") or {}).get("format")
    return str(file_format) if file_format else None
