"""Turns a `ModelCall` into the arguments of LiteLLM's `acompletion`."""

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.messages import openai_messages

_SETTINGS: Final = {
    "temperature": "temperature",
    "maxOutputTokens": "max_tokens",
    "topP": "top_p",
    "topK": "top_k",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "stopSequences": "stop",
    "seed": "seed",
}

_NAMED_OPTIONS: Final = {
    "logitBias": "logit_bias",
    "logprobs": "logprobs",
    "maxCompletionTokens": "max_completion_tokens",
    "parallelToolCalls": "parallel_tool_calls",
    "prediction": "prediction",
    "promptCacheKey": "prompt_cache_key",
    "reasoningEffort": "reasoning_effort",
    "safetyIdentifier": "safety_identifier",
    "serviceTier": "service_tier",
    "store": "store",
    "thinking": "thinking",
    "topLogprobs": "top_logprobs",
    "user": "user",
    "webSearchOptions": "web_search_options",
}
"""Options that LiteLLM translates for each provider; both spellings are taken."""

_NO_TOP_K: Final = frozenset({"azure", "groq", "mistral"})
"""Providers in OpenAI's dialect that refuse `top_k`, besides OpenAI itself."""

_KNOWN: Final = {**_NAMED_OPTIONS, **{name: name for name in _NAMED_OPTIONS.values()}}

_OLLAMA: Final = frozenset({"ollama", "ollama_chat"})
_OLLAMA_OPTIONS: Final = frozenset(
    {
        "f16_kv", "frequency_penalty", "low_vram", "main_gpu", "min_p", "mirostat", "mirostat_eta", "mirostat_tau",
        "num_batch", "num_ctx", "num_gpu", "num_keep", "num_predict", "num_thread", "numa", "penalize_newline",
        "presence_penalty", "repeat_last_n", "repeat_penalty", "seed", "stop", "temperature", "tfs_z", "top_k", "top_p",
        "typical_p", "use_mlock", "use_mmap", "vocab_only",
    }
)  # fmt: skip
"""What belongs into Ollama's `options`, though somebody gives it beside them."""
_OLLAMA_NAMES: Final = dict.fromkeys(
    ("max_tokens", "max_completion_tokens", "maxCompletionTokens"), "num_predict"
)

_TAKEN: Final = frozenset({"model", "messages", "stream", "stream_options", "tools", "tool_choice"})
"""Fields of the request body that belong to the call itself."""


class UnsendableSettingError(ValueError):
    """A `setting` of the step that cannot be sent."""

    def __init__(self, told: str, setting: str) -> None:
        super().__init__(told)
        self.setting = setting


class Timeouts(msgspec.Struct, frozen=True):
    """How long a provider may take, in seconds; None waits for ever."""

    whole: float | None = None
    first: float | None = None
    between: float | None = None


def litellm_kwargs(call: ModelCall) -> dict[str, Any]:
    """Return the keyword arguments for `litellm.acompletion`.

    The answer is always asked for as a stream with usage at its end (D-37). LiteLLM never retries (retries
    are the gateway's, R-MS-3) and drops parameters that the provider does not know.

    Raises:
        UnsendableSettingError: when a provider option or the tool choice cannot be sent; says which and why.
        ValueError: when the prompt cannot.
    """
    kwargs: dict[str, Any] = {
        "model": call.model,
        "messages": openai_messages(call.prompt, call.model, call.tools),
        "stream": True,
        "stream_options": {"include_usage": True},
        "num_retries": 0,
        "max_retries": 0,
        "drop_params": True,
        **({} if call.provider in _OLLAMA else _settings(call)),
        **_tools(call),
        **_options(call),
    }
    headers = merged_headers(call.model_settings.get("headers") or {}, call.headers)
    if headers:
        kwargs["extra_headers"] = headers
    if call.response_format is not None:
        schema = {"name": "response", "schema": call.response_format}
        kwargs["response_format"] = {"type": "json_schema", "json_schema": schema}
        if call.provider == "groq":
            del kwargs["stream_options"]  # it has no streams of these, so LiteLLM asks for all at once
    if call.api_base:
        kwargs["api_base"] = call.api_base
    if call.api_key:
        kwargs["api_key"] = call.api_key
    return kwargs


def merged_headers(*several: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of all; of those with one name, however it is written, the last one."""
    named = {name.lower(): (name, value) for headers in several for name, value in headers.items()}
    return dict(named.values())


def timeouts(model_settings: Mapping[str, Any]) -> Timeouts:
    """Read `modelSettings.timeout`: milliseconds for the whole answer, or limits by name.

    `totalMs` and `stepMs` limit the answer (the smaller one counts), `firstChunkMs` the wait for its first
    event, `chunkMs` the wait between two events. What is no positive number is no limit.
    """
    limits = model_settings.get("timeout")
    if not isinstance(limits, Mapping):
        return Timeouts(whole=_seconds(limits))
    whole = [value for name in ("totalMs", "stepMs") if (value := _seconds(limits.get(name)))]
    return Timeouts(
        whole=min(whole, default=None),
        first=_seconds(limits.get("firstChunkMs")),
        between=_seconds(limits.get("chunkMs")),
    )


def service_tier(call: ModelCall) -> str | None:
    """Return the class of service that the call asks for, which has prices of its own."""
    own = _object(call.provider_options.get(call.provider), call.provider)
    tier = own.get("service_tier", own.get("serviceTier"))
    return tier if isinstance(tier, str) else None


def visible_tools(call: ModelCall) -> dict[str, dict[str, Any]]:
    """Return the tools that the model gets to see, in order (R-TL-2, R-TL-3)."""
    if call.tool_choice == "none":
        return {}
    if call.active_tools is None:
        return call.tools
    return {name: tool for name, tool in call.tools.items() if name in call.active_tools}


def _seconds(millis: Any) -> float | None:
    if isinstance(millis, bool) or not isinstance(millis, int | float):
        return None
    return millis / 1000 if millis > 0 and math.isfinite(millis) else None


def _settings(call: ModelCall) -> dict[str, Any]:
    given = {
        name: value
        for setting, name in _SETTINGS.items()
        if (value := call.model_settings.get(setting)) is not None
    }
    if call.provider in _NO_TOP_K or (call.provider == "openai" and call.api_base is None):
        given.pop("top_k", None)  # LiteLLM would pass it on, and they would refuse the request
    return given


def _tools(call: ModelCall) -> dict[str, Any]:
    tools = visible_tools(call)
    if not tools:
        return {}
    return {
        "tools": [{"type": "function", "function": _function(name, tool)} for name, tool in tools.items()],
        "tool_choice": _choice(call.tool_choice, tools),
    }


def _function(name: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": name, "parameters": tool.get("parameters") or {"type": "object", "properties": {}}}
    if tool.get("description"):
        function["description"] = tool["description"]
    return function


def _choice(choice: Any, tools: Mapping[str, Any]) -> Any:
    if choice in (None, "auto", "required"):
        return choice or "auto"
    name = choice.get("toolName") if isinstance(choice, Mapping) else None
    if not isinstance(name, str):
        form = '{"type": "tool", "toolName": ...}'
        message = f'toolChoice is {choice!r}; use "auto", "none", "required" or {form}'
        raise UnsendableSettingError(message, "toolChoice")
    if name not in tools:
        message = f"toolChoice demands {name!r}, but the model sees only {', '.join(tools)}"
        raise UnsendableSettingError(message, "toolChoice")
    return {"type": "function", "function": {"name": name}}


def _options(call: ModelCall) -> dict[str, Any]:
    """Split the provider's options: those LiteLLM translates, and the rest, which joins the body as it is.

    Nothing becomes an argument of LiteLLM by accident, so an option can reach the provider but not our
    settings.
    """
    where = f"providerOptions.{call.provider}"
    own = _object(call.provider_options.get(call.provider), where)
    if call.provider in _OLLAMA:
        own = _of_ollama({**_settings(call), **own}, where)
    kwargs = {_KNOWN[name]: value for name, value in own.items() if name in _KNOWN}
    body = {name: value for name, value in own.items() if name not in _KNOWN}
    if taken := sorted(_TAKEN & body.keys()):
        told = f"{where} may not set {', '.join(taken)}: the call sets that itself"
        raise UnsendableSettingError(told, "providerOptions")
    if body and call.provider == "anthropic":
        told = f"{where} has no {', '.join(sorted(body))}; known: {', '.join(sorted(_KNOWN))}"
        raise UnsendableSettingError(told, "providerOptions")
    thinking = kwargs.get("thinking")
    if isinstance(thinking, Mapping) and "budgetTokens" in thinking:
        rest = {name: value for name, value in thinking.items() if name != "budgetTokens"}
        kwargs["thinking"] = {**rest, "budget_tokens": thinking["budgetTokens"]}
    return {**kwargs, "extra_body": body} if body else kwargs


def _of_ollama(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return settings and options with those in `options` that belong there.

    LiteLLM makes an object of that name of the settings, and would send ours in its place; and it makes a
    `frequency_penalty` the `repeat_penalty`, where 1 is none and 0 all.
    """
    named = {_OLLAMA_NAMES.get(name, name): value for name, value in given.items()}
    rest = {name: value for name, value in named.items() if name not in _OLLAMA_OPTIONS}
    options = {name: value for name, value in named.items() if name in _OLLAMA_OPTIONS}
    options |= _object(rest.pop("options", None), f"{where}.options")
    return {**rest, "options": options} if options else rest


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping | None):
        raise UnsendableSettingError(f"{where} must be an object", "providerOptions")
    return value or {}
