"""The key of a cached answer: a digest of all that decides what a model says (R-RC-2, D-23)."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from procession.args import ModelInfo

_PREFIX: Final = "mastra:agent-response"
_UNKNOWN: Final = "unknown"
_INTERNAL: Final = "mastra"
_RUNTIME: Final = frozenset({"maxRetries", "timeout"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInputs:
    """What a key is made of.

    Attributes:
        agent_id: The option `agentId`.
        step_number: The step, from 0.
        scope: Whose answers these are; None shares them.
        model: The model that is called.
        prompt: The prompt as the provider would get it.
        call: What else decides the answer, by name: tools, settings, schema, ...; what is not there does not count.
        spec_version: Version of the provider interface, where there is one.
    """

    agent_id: str
    step_number: int
    scope: str | None
    model: ModelInfo
    prompt: list[dict[str, Any]]
    call: Mapping[str, Any] = field(default_factory=dict)
    spec_version: str = ""


def response_key(inputs: CacheInputs) -> str:
    """`mastra:agent-response:<agent>[:<8 hex of the scope>]:<32 hex>`."""
    model = inputs.model
    scope = inputs.scope or ""
    payload: dict[str, Any] = {
        "agent": inputs.agent_id,
        "step": inputs.step_number,
        "scope": scope,
        "model": ":".join(part or _UNKNOWN for part in (model.provider, model.model_id, inputs.spec_version)),
        "prompt": without_internal(inputs.prompt),
    }
    if inputs.call:
        payload["call"] = inputs.call
    stable = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    mine = f":{_digest(scope)[:8]}" if scope else ""
    return f"{_PREFIX}:{inputs.agent_id}{mine}:{_digest(stable)[:32]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def without_internal(value: Any) -> Any:
    """A prompt without `providerOptions.mastra`, which no provider sees, and without empty `providerOptions`."""
    if isinstance(value, list):
        return [without_internal(each) for each in value]
    if not isinstance(value, dict):
        return value
    made = {}
    for key, each in value.items():
        if key == "providerOptions" and isinstance(each, dict):
            rest = {name: options for name, options in each.items() if name != _INTERNAL}
            if rest:
                made[key] = without_internal(rest)
        else:
            made[key] = without_internal(each)
    return made


def call_facts(
    *,
    agent: str,
    tools: Mapping[str, Mapping[str, Any]],
    tool_choice: Any,
    active_tools: list[str] | None,
    model_settings: Mapping[str, Any],
    provider_options: Mapping[str, Any],
    structured_output: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What of a call decides its answer beside prompt and model; what has its default is left out (D-23)."""
    shown = {
        name: {key: tool[key] for key in ("description", "parameters") if tool.get(key)}
        for name, tool in tools.items()
    }
    told = {
        "agent": agent,
        "tools": shown,
        "toolChoice": None if tool_choice == "auto" else tool_choice,
        "modelSettings": {name: value for name, value in model_settings.items() if name not in _RUNTIME},
        "providerOptions": {name: value for name, value in provider_options.items() if name != _INTERNAL},
        "structuredOutput": dict(structured_output or {}),
    }
    facts = {name: value for name, value in told.items() if value}
    return facts if active_tools is None else {**facts, "activeTools": active_tools}
