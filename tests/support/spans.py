"""Spans of a test: kept in memory, and awaited."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from procession_services.runtime.telemetry import installed
from procession_services.runtime.telemetry.live import LiveObserver
from procession_services.runtime.telemetry.meters import Meters
from procession_services.runtime.telemetry.spans import Spans, new_tracer_provider

__all__ = ["Kept", "observed"]

_SECONDS = 60.0


class Kept(SpanExporter):
    """Keeps the spans that have ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self._changed = asyncio.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Takes spans; called by whoever ends them."""
        self.spans.extend(spans)
        self._changed.set()
        return SpanExportResult.SUCCESS

    async def until(self, enough: Callable[[list[ReadableSpan]], Any]) -> Any:
        """Waits until the spans are enough, and returns what says so."""
        async with asyncio.timeout(_SECONDS):
            while not (found := enough(self.spans)):
                self._changed.clear()
                await self._changed.wait()
        return found

    async def of_run(self, run: str) -> list[ReadableSpan]:
        """The whole trace of a run that has ended: its own span, and no command that is still open."""

        def trace(spans: list[ReadableSpan]) -> list[ReadableSpan]:
            mine = [span for span in spans if told(span).get("procession.run.id") == run]
            roots = [span for span in mine if span.name.startswith("invoke_agent")]
            if not roots:
                return []
            found = [span for span in spans if span.context.trace_id == roots[0].context.trace_id]
            ids = {span.context.span_id for span in found}
            parents = {span.parent.span_id for span in found if span.parent and span not in roots}
            return found if parents <= ids else []

        found: list[ReadableSpan] = await self.until(trace)
        return found


def told(span: ReadableSpan) -> dict[str, Any]:
    """The attributes of a span."""
    return dict(span.attributes or {})


@asynccontextmanager
async def observed(*, content: bool = False) -> AsyncIterator[Kept]:
    """Observes what happens in this process for the length of the block."""
    kept, provider = Kept(), new_tracer_provider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with installed(LiveObserver(Spans(provider, content=content), Meters())):
        yield kept
    provider.shutdown()
