"""The observer that observes: every event becomes a span and a count. Loaded only where a setting asks for it."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version
from threading import Thread
from typing import Any, Final

from opentelemetry import context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Span, SpanKind
from prometheus_client import start_http_server

from procession.errors import TripWire
from procession.processor import Hook
from procession.tools import ToolSuspended
from procession_schemas.run import HookReport, RunResult
from procession_schemas.work import HookOp, WorkCommand, WorkResult
from procession_services.runtime.clock import monotonic_ns, seconds, seconds_since
from procession_services.runtime.settings import Settings, SettingsError
from procession_services.runtime.telemetry import Observer, StreamSession, Trace
from procession_services.runtime.telemetry.meters import Meters
from procession_services.runtime.telemetry.model_watch import LiveModelWatch, kind_of
from procession_services.runtime.telemetry.spans import (
    Spans,
    as_json,
    context_of,
    current_traceparent,
    failed,
    model_attributes,
    new_tracer_provider,
)

__all__ = ["LiveObserver", "observing"]

_FLUSH_SECONDS: Final = 2.0


class LiveObserver(Observer):
    """Tells spans and series what happens."""

    enabled = True

    def __init__(self, spans: Spans, meters: Meters, *, metered: bool = True) -> None:
        self._spans, self._meters, self.metered = spans, meters, metered

    def headers(self) -> dict[str, str] | None:
        """The trace context of the span that runs now."""
        traceparent = current_traceparent()
        return None if traceparent is None else {"traceparent": traceparent}

    @contextmanager
    def continued(self, traceparent: str | None) -> Iterator[None]:
        """Does what follows as a part of another process's span; one that cannot be read is left alone."""
        well_formed = super().run_begins(traceparent).traceparent
        if well_formed is None:
            yield
            return
        token = context.attach(context_of(well_formed))
        try:
            yield
        finally:
            context.detach(token)

    def run_begins(self, traceparent: Any) -> Trace:
        """Chooses the span of a run, in the caller's trace or in one of its own."""
        given = super().run_begins(traceparent)
        chosen = self._spans.chosen(given.traceparent)
        return given if chosen is None else Trace(*chosen)

    def run_accepted(self, tenant: str, agent: str) -> None:
        """Counts it."""
        labels = self._meters.run_labels(tenant, agent)
        (self._meters.accepted.labels(**labels) if labels else self._meters.accepted).inc()

    def request_rejected(self, tenant: str, limit: str) -> None:
        """Counts it."""
        self._meters.rejected.labels(limit=limit, **self._meters.tenant_labels(tenant)).inc()

    def run_waited(self, tenant: str, seconds: float) -> None:
        """Counts how long."""
        labels, meter = self._meters.tenant_labels(tenant), self._meters.wait_seconds
        (meter.labels(**labels) if labels else meter).observe(seconds)

    def queues(self, running: Mapping[str, int], waiting: Mapping[str, int]) -> None:
        """Sets what is now; tenants that have nothing any more are dropped."""
        for gauge, counts in ((self._meters.at_work, running), (self._meters.queued, waiting)):
            if not self._meters.by_tenant:
                gauge.set(sum(counts.values()))
                continue
            sums: Counter[str] = Counter()
            for tenant, number in counts.items():
                sums[self._meters.name("tenant", tenant)] += number
            gauge.clear()
            for tenant, number in sums.items():
                gauge.labels(tenant=tenant).set(number)

    def run_ends(self, tenant: str, result: RunResult, trace: Trace, accepted_at: str) -> None:
        """Counts it, and makes the span of a run that has ended."""
        meters = self._meters
        labels = meters.run_labels(tenant, result.agent)
        meters.runs.labels(status=result.status, **labels).inc()
        if result.status == "suspended":
            return
        meters.run_seconds.labels(status=result.status, **labels).observe(seconds_since(accepted_at))
        (meters.retries.labels(**labels) if labels else meters.retries).inc(result.retries)
        if trace.traceparent is not None and self._spans.recorded:
            self._run_span(tenant, result, trace, datetime.fromisoformat(accepted_at))

    def _run_span(self, tenant: str, result: RunResult, trace: Trace, begun: datetime) -> None:
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": result.agent,
            "gen_ai.response.finish_reasons": [result.finish_reason],
            "gen_ai.usage.input_tokens": result.usage.get("inputTokens"),
            "gen_ai.usage.output_tokens": result.usage.get("outputTokens"),
            "procession.run.id": result.run_id,
            "procession.tenant": tenant,
            "procession.run.status": result.status,
            "procession.run.steps": len(result.steps),
            "procession.run.retries": result.retries,
            "procession.tripwire.processor": result.tripwire and result.tripwire.processor_id,
        }
        assert trace.traceparent is not None
        name = f"invoke_agent {result.agent}"
        span = self._spans.run(trace.traceparent, trace.parent, name, begun, attributes)
        if result.error is not None:
            failed(span, result.error.code)
        span.end()

    @contextmanager
    def command(
        self, command: WorkCommand, attempt: int, traceparent: str | None
    ) -> Iterator[Callable[[WorkResult], None]]:
        """A span, its time, and all that its result tells."""
        above = None if traceparent is None else context_of(super().run_begins(traceparent).traceparent)
        attributes = {
            "gen_ai.agent.name": command.agent,
            "procession.service": command.service,
            "procession.run.id": command.run,
            "procession.tenant": command.tenant,
            "procession.command.seq": command.seq,
            "procession.command.attempt": attempt,
            "procession.command.operations": [
                f"hook {op.hook}" if isinstance(op, HookOp) else op.op for op in command.ops
            ],
        }
        name, started, outcome = f"command {command.service}", monotonic_ns(), "none"
        busy = self._meters.in_flight.labels(command.service)
        with (
            busy.track_inprogress(),
            self._spans.current(name, attributes, SpanKind.CONSUMER, above=above) as span,
        ):

            def done(result: WorkResult) -> None:
                nonlocal outcome
                outcome = result.outcome
                self._result(command, result, span)

            try:
                yield done
            except BaseException as error:
                outcome = "raised"
                failed(span, type(error).__name__)
                raise
            finally:
                span.set_attribute("procession.command.outcome", outcome)
                took = (monotonic_ns() - started) / 1e9
                self._meters.command_seconds.labels(command.service, outcome).observe(took)

    def _result(self, command: WorkCommand, result: WorkResult, span: Span) -> None:
        meters = self._meters
        meters.chunks.labels(command.service).inc(max(0, result.out_seq - command.out_seq))
        for report in result.reports:
            key = (meters.name("processor", report.processor), report.hook)
            meters.calls.labels(*key).inc(report.calls)
            meters.busy.labels(*key).inc(report.micros / 1e6)
            for counted, number in (
                (meters.errors, report.errors),
                (meters.tripwires, report.aborts),
                (meters.warnings, report.warnings),
            ):
                if number:
                    counted.labels(*key).inc(number)
        if result.tripwire is not None:
            span.set_attribute("procession.tripwire.processor", result.tripwire.processor_id)
        if result.error is not None:
            failed(span, result.error.code)

    @contextmanager
    def hook(self, processor: str, hook: str, tally: HookReport) -> Iterator[None]:
        """A span; what came of it is told by the tally."""
        errors, changed = tally.errors, tally.changed
        attributes = {"procession.processor.id": processor, "procession.hook": hook}
        outcome = "unchanged"
        with self._spans.current(f"{hook} {processor}", attributes) as span:
            try:
                yield
            except TripWire as tripwire:
                outcome = "retry" if tripwire.retry else "tripwire"
                raise
            except BaseException as error:
                outcome = "failed"
                failed(span, type(error).__name__)
                raise
            finally:
                if outcome == "unchanged" and tally.errors > errors:
                    outcome = "skipped"
                elif outcome == "unchanged" and tally.changed > changed:
                    outcome = "changed"
                span.set_attribute("procession.hook.outcome", outcome)

    @contextmanager
    def tool(self, name: str, call_id: str, args: Any) -> Iterator[Callable[[Mapping[str, Any]], None]]:
        """A span and a count; arguments and result only where content is asked for."""
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": call_id,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.arguments": as_json(args) if self._spans.content else None,
        }
        outcome, started, label = "ok", monotonic_ns(), self._meters.name("tool", name)
        with self._spans.current(f"execute_tool {name}", attributes) as span:

            def done(told: Mapping[str, Any]) -> None:
                if self._spans.content and "result" in told:
                    span.set_attribute("gen_ai.tool.call.result", as_json(told["result"]))

            try:
                yield done
            except ToolSuspended:
                outcome = "suspended"
                raise
            except BaseException as error:
                outcome = "failed"
                failed(span, type(error).__name__)
                raise
            finally:
                span.set_attribute("procession.tool.outcome", outcome)
                self._meters.tool_calls.labels(label, outcome).inc()
                self._meters.tool_seconds.labels(label).observe((monotonic_ns() - started) / 1e9)

    @contextmanager
    def stream(self, session: StreamSession) -> Iterator[None]:
        """A span, and one below it for each processor, as long as the stream: its hook runs for every chunk."""
        start = int(seconds() * 1e9)
        attributes = {
            "procession.stream.kind": session.kind,
            "procession.stream.attempt": session.attempt,
        }
        with self._spans.current(f"stream {session.kind}", attributes) as span:
            try:
                yield
            except BaseException as error:  # the sender went to another replica, or is gone
                failed(span, type(error).__name__)
                raise
            finally:
                span.set_attribute("procession.stream.chunks", session.processed)
                for tally in session.calls.reports.values():
                    if tally.hook == Hook.OUTPUT_STREAM:
                        self._stream_hook(tally, start)

    def _stream_hook(self, tally: HookReport, start: int) -> None:
        attributes = {
            "procession.processor.id": tally.processor,
            "procession.hook": tally.hook,
            "procession.hook.outcome": _stream_outcome(tally),
            "procession.hook.calls": tally.calls,
            "procession.hook.busy_ms": round(tally.micros / 1000, 3),
            "procession.hook.changed": tally.changed,
            "procession.hook.dropped": tally.dropped,
        }
        span = self._spans.begun(f"{tally.hook} {tally.processor}", attributes, start=start)
        if tally.errors:
            failed(span, "processor")
        span.end()

    def model(self, call: Any) -> LiveModelWatch:
        """A span and counts of one call."""
        return LiveModelWatch(call, self._spans, self._meters)

    def cost(self, model: str, dollars: float | None) -> None:
        """Counts it."""
        if dollars:
            self._meters.dollars.labels(self._meters.name("model", model)).inc(dollars)

    @contextmanager
    def embedding(self, model: str) -> Iterator[Callable[[int | None, float | None], None]]:
        """A span and counts."""
        attributes = {"gen_ai.operation.name": "embeddings", **model_attributes(model)}
        meters, label, started = self._meters, self._meters.name("model", model), monotonic_ns()
        outcome = "finished"
        name = f"embeddings {attributes['gen_ai.request.model']}"
        with self._spans.current(name, attributes, SpanKind.CLIENT) as span:

            def done(tokens: int | None, dollars: float | None) -> None:
                if tokens is not None:
                    span.set_attribute("gen_ai.usage.input_tokens", tokens)
                    meters.tokens.labels(label, "input").inc(tokens)
                self.cost(model, dollars)

            try:
                yield done
            except BaseException as error:
                outcome = "cancelled"
                if isinstance(error, Exception):
                    outcome = "failed"
                    failed(span, kind_of(error))
                raise
            finally:
                span.set_attribute("procession.model.outcome", outcome)
                meters.model_calls.labels(label, outcome).inc()
                meters.model_seconds.labels(label).observe((monotonic_ns() - started) / 1e9)

    def failover(self) -> None:
        """Counts it, and marks the span of the command."""
        self._meters.failovers.inc()
        trace.get_current_span().add_event("stream failover")

    def delivered(self, consumer: str, attempt: int) -> None:
        """Counts what came again."""
        if attempt > 1:
            self._meters.redeliveries.labels(consumer).inc()

    def dead_letter(self, consumer: str) -> None:
        """Counts it."""
        self._meters.dead.labels(consumer).inc()

    def configured_by(self, file: str, *, refused: bool) -> None:
        """Shows it."""
        self._meters.refused.labels(file).set(refused)

    def lag(self, stream: str, consumer: str, waiting: int, unacknowledged: int) -> None:
        """Shows both numbers."""
        self._meters.waiting.labels(stream, consumer).set(waiting)
        self._meters.unacknowledged.labels(stream, consumer).set(unacknowledged)


def _stream_outcome(tally: HookReport) -> str:
    outcomes = {"tripwire": tally.aborts, "skipped": tally.errors, "changed": tally.changed + tally.dropped}
    return next((name for name, number in outcomes.items() if number), "unchanged")


@contextmanager
def observing(service: str, settings: Settings) -> Iterator[LiveObserver]:
    """An observer as the settings want it; what it has of spans is sent when the block ends.

    Raises:
        SettingsError: The port of the metrics is taken.
    """
    meters = Meters(settings.metrics_labels)
    with _served(meters, settings), _traced(service, settings) as provider:
        spans = Spans(provider, content=settings.telemetry_content)
        yield LiveObserver(spans, meters, metered=settings.metrics_port is not None)


@contextmanager
def _traced(service: str, settings: Settings) -> Iterator[TracerProvider | None]:
    if settings.telemetry == "off":
        yield None
        return
    provider = new_tracer_provider(resource=_resource(service, settings.replica))
    provider.add_span_processor(BatchSpanProcessor(_exporter(settings.telemetry)))
    try:
        yield provider
    finally:
        # A collector that is gone must not hold up the end of the service.
        last = Thread(target=provider.shutdown, daemon=True)
        last.start()
        last.join(_FLUSH_SECONDS)


def _resource(service: str, replica: str) -> Resource:
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": service}
    own = {"service.namespace": "procession", "service.instance.id": replica}
    return Resource.create({**named, **own, "service.version": version("procession")})


def _exporter(kind: str) -> SpanExporter:
    if kind == "console":
        return ConsoleSpanExporter(out=sys.stderr)  # on stdout a service says that it is ready
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - it loads an HTTP client
        OTLPSpanExporter,
    )

    return OTLPSpanExporter()


@contextmanager
def _served(meters: Meters, settings: Settings) -> Iterator[None]:
    if settings.metrics_port is None:
        yield
        return
    host, port = settings.metrics_host, settings.metrics_port
    try:
        server, thread = start_http_server(port, host, meters.registry)
    except OSError as error:
        other = "set another PROCESSION_METRICS_PORT or PROCESSION_METRICS_HOST"
        text = f"metrics cannot be served on {host}:{port} ({error.strerror}): {other}"
        raise SettingsError(text) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
