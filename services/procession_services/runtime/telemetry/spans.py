"""Spans of the work, with OpenTelemetry's names for what agents do (GenAI semantic conventions).

A run's own span is ended by another process than the one that began it: the orchestrator only chooses its id, stores it
with the run, and sends it along with every command; whoever ends the run makes the span with that id and the times.

No exception and no text of one is recorded: it may hold what was said. Content goes into spans only when asked for.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final

import orjson
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

__all__ = [
    "Attributes", "RunSpanIds", "Spans", "as_json", "context_of", "current_traceparent", "failed",
    "model_attributes", "new_tracer_provider", "told",
]  # fmt: skip

Attributes = Mapping[str, Any]
_PROVIDERS: Final = {
    "azure": "azure.ai.openai", "azure_ai": "azure.ai.inference", "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini", "mistral": "mistral_ai", "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai", "xai": "x_ai",
}  # fmt: skip
"""LiteLLM's names of providers where OpenTelemetry has others."""
_chosen: ContextVar[tuple[int, int] | None] = ContextVar("chosen ids", default=None)


class RunSpanIds(IdGenerator):
    """Random ids, but for the span of a run, whose ids were chosen when it began."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()

    def generate_trace_id(self) -> int:
        """The id of a new trace."""
        chosen = _chosen.get()
        return chosen[0] if chosen else self._random.generate_trace_id()

    def generate_span_id(self) -> int:
        """The id of a new span."""
        chosen = _chosen.get()
        return chosen[1] if chosen else self._random.generate_span_id()


def new_tracer_provider(**options: Any) -> TracerProvider:
    """A provider that `Spans` can use; its sampler and limits come from the variables `OTEL_*`."""
    return TracerProvider(id_generator=RunSpanIds(), **options)


class Spans:
    """Makes spans. Without a provider they are recorded nowhere."""

    def __init__(self, provider: TracerProvider | None, *, content: bool = False) -> None:
        self._provider, self.content = provider, content
        tracers: trace.TracerProvider = provider or trace.NoOpTracerProvider()
        self._tracer = tracers.get_tracer("procession")

    @property
    def recorded(self) -> bool:
        """Whether anybody gets them."""
        return self._provider is not None

    def chosen(self, traceparent: str | None) -> tuple[str, str | None] | None:
        """The trace context of a new run's span and the id of its parent; None where the run is not traced."""
        if self._provider is None:
            return None
        ids, caller = self._provider.id_generator, context_of(traceparent)
        above = trace.get_current_span(caller).get_span_context()
        trace_id = above.trace_id if above.is_valid else ids.generate_trace_id()
        decision = self._provider.sampler.should_sample(caller, trace_id, "invoke_agent").decision
        sampled = decision is Decision.RECORD_AND_SAMPLE
        own = f"00-{trace_id:032x}-{ids.generate_span_id():016x}-{sampled:02x}"
        return own, f"{above.span_id:016x}" if above.is_valid else None

    def run(
        self, traceparent: str, parent: str | None, name: str, begun: datetime, attributes: Attributes
    ) -> Span:
        """The span of a run, begun at that time; the caller ends it."""
        own = trace.get_current_span(context_of(traceparent)).get_span_context()
        above = Context()
        if parent is not None:
            flags = f"{int(own.trace_flags):02x}"
            above = context_of(f"00-{own.trace_id:032x}-{parent}-{flags}")
        chosen = _chosen.set((own.trace_id, own.span_id))
        try:
            return self._tracer.start_span(
                name, above, SpanKind.SERVER, told(attributes), start_time=int(begun.timestamp() * 1e9)
            )
        finally:
            _chosen.reset(chosen)

    def begun(
        self,
        name: str,
        attributes: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        above: Context | None = None,
        start: int | None = None,
    ) -> Span:
        """A span that the caller ends, below `above` or what runs now; `start` in nanoseconds since the epoch."""
        return self._tracer.start_span(name, above, kind, told(attributes), start_time=start)

    @contextmanager
    def current(
        self,
        name: str,
        attributes: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
        *,
        above: Context | None = None,
    ) -> Iterator[Span]:
        """A span around the block, and above whatever is begun in it."""
        span = self.begun(name, attributes, kind, above=above)
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            yield span


def context_of(traceparent: str | None) -> Context:
    """The context in which a span of another process is the current one; an empty one without a traceparent."""
    if traceparent is None:
        return Context()
    _, trace_id, span_id, flags = traceparent.split("-")
    above = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)))  # noqa: FBT003 - remote
    return trace.set_span_in_context(NonRecordingSpan(above), Context())


def current_traceparent() -> str | None:
    """The trace context of the span that runs now."""
    now = trace.get_current_span().get_span_context()
    if not now.is_valid:
        return None
    return f"00-{now.trace_id:032x}-{now.span_id:016x}-{int(now.trace_flags):02x}"


def told(attributes: Attributes) -> dict[str, Any]:
    """The attributes that have a value."""
    return {name: value for name, value in attributes.items() if value is not None}


def failed(span: Span, kind: str) -> None:
    """Marks a span as failed; `kind` is a class or a code, never a text of somebody's."""
    span.set_status(Status(StatusCode.ERROR))
    span.set_attribute("error.type", kind)


def as_json(value: Any) -> str:
    """Content as it stands in an attribute."""
    return orjson.dumps(value, default=str).decode()


def model_attributes(model: str) -> dict[str, Any]:
    """What is said of a model called `provider/name`."""
    provider, slash, name = model.partition("/")
    if not slash:
        return {"gen_ai.request.model": model}
    return {"gen_ai.provider.name": _PROVIDERS.get(provider, provider), "gen_ai.request.model": name}
