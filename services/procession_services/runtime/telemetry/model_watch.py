"""One call of a model: a `chat` span, its times, tokens and end."""

from typing import Any, Final

from opentelemetry.trace import Span, SpanKind

from procession_services.runtime.clock import monotonic_ns
from procession_services.runtime.telemetry.meters import Meters
from procession_services.runtime.telemetry.spans import Spans, as_json, failed, model_attributes, told

__all__ = ["LiveModelWatch", "kind_of"]

_SETTINGS: Final = {
    "temperature": "gen_ai.request.temperature",
    "maxOutputTokens": "gen_ai.request.max_tokens",
    "topP": "gen_ai.request.top_p",
    "topK": "gen_ai.request.top_k",
    "frequencyPenalty": "gen_ai.request.frequency_penalty",
    "presencePenalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
}
_TOKENS: Final = {
    "inputTokens": ("input", "gen_ai.usage.input_tokens"),
    "outputTokens": ("output", "gen_ai.usage.output_tokens"),
    "cachedInputTokens": ("cached", "gen_ai.usage.cache_read.input_tokens"),
    "reasoningTokens": ("reasoning", "gen_ai.usage.reasoning.output_tokens"),
}


class LiveModelWatch:
    """Follows a call; chunks are only looked at for its first and its last one, and for content that is asked for."""

    def __init__(self, call: Any, spans: Spans, meters: Meters) -> None:
        self._model, self._spans, self._meters = call.model, spans, meters
        self._started, self._answering = monotonic_ns(), False
        self._texts: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._finished = False
        self._span = self._begun(call)

    def _begun(self, call: Any) -> Span:
        settings = call.model_settings
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.stream": True,
            **model_attributes(call.model),
            **{key: settings.get(name) for name, key in _SETTINGS.items()},
        }
        if call.response_format is not None:
            attributes["gen_ai.output.type"] = "json"
        if self._spans.content:
            attributes["gen_ai.input.messages"] = as_json([_message(entry) for entry in call.prompt])
        name = f"chat {attributes['gen_ai.request.model']}"
        return self._spans.begun(name, told(attributes), SpanKind.CLIENT)

    def chunks(self, batch: list[Any]) -> None:
        """Takes a batch of the answer's chunks."""
        if not self._answering:
            self._begin(batch)
        if self._spans.content:
            self._keep(batch)
        if batch and batch[-1]["type"] == "finish":
            self._finish(batch[-1].get("payload") or {})

    @property
    def _label(self) -> str:
        return self._meters.name("model", self._model)

    def _begin(self, batch: list[Any]) -> None:
        """Looks at what comes before the answer, and notes when that begins."""
        for chunk in batch:
            if chunk["type"] == "response-metadata":
                said = chunk.get("payload") or {}
                known = {"gen_ai.response.id": said.get("id"), "gen_ai.response.model": said.get("modelId")}
                self._span.set_attributes(told(known))
            elif chunk["type"] != "raw" and not self._answering:
                self._answering = True
                waited = (monotonic_ns() - self._started) / 1e9
                self._meters.first_chunk.labels(self._label).observe(waited)
                self._span.set_attribute("gen_ai.response.time_to_first_chunk", waited)

    def _finish(self, payload: dict[str, Any]) -> None:
        self._finished = True
        reason = (payload.get("stepResult") or {}).get("reason") or "other"
        self._span.set_attribute("gen_ai.response.finish_reasons", [reason])
        usage = (payload.get("output") or {}).get("usage") or {}
        for name, (kind, key) in _TOKENS.items():
            number = usage.get(name)
            if number is not None:
                self._span.set_attribute(key, number)
                self._meters.tokens.labels(self._label, kind).inc(number)

    def end(self, error: BaseException | None = None) -> None:
        """Takes the end of the call; the error's text is left alone: it may repeat the prompt."""
        outcome = "finished" if self._finished else "cancelled"
        if isinstance(error, Exception):
            outcome = "failed"
            failed(self._span, kind_of(error))
        if self._spans.content:
            self._span.set_attribute("gen_ai.output.messages", as_json([self._answer()]))
        self._span.set_attribute("procession.model.outcome", outcome)
        self._span.end()
        self._meters.model_calls.labels(self._label, outcome).inc()
        self._meters.model_seconds.labels(self._label).observe((monotonic_ns() - self._started) / 1e9)

    def _keep(self, batch: list[Any]) -> None:
        for chunk in batch:
            payload = chunk.get("payload") or {}
            if chunk["type"] == "text-delta":
                self._texts.append(payload.get("text") or "")
            elif chunk["type"] == "tool-call":
                call = {"type": "tool_call", "id": payload.get("toolCallId"), "name": payload.get("toolName")}
                self._calls.append({**call, "arguments": payload.get("args")})

    def _answer(self) -> dict[str, Any]:
        text = "".join(self._texts)
        parts = [{"type": "text", "content": text}] if text else []
        return {"role": "assistant", "parts": [*parts, *self._calls]}


def kind_of(error: Exception) -> str:
    """The HTTP status or the kind of a provider's error; the class of any other."""
    known = getattr(error, "status_code", None) or getattr(error, "kind", None)
    return str(known or type(error).__name__)


def _message(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of the prompt in OpenTelemetry's words: a text is a part with `content`."""
    content = entry.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    named = [
        {"type": "text", "content": part.get("text")} if part.get("type") == "text" else part
        for part in parts
    ]
    return {"role": entry.get("role"), "parts": named}
