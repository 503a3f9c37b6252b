"""What becomes a span, and what a series."""

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from procession.errors import TripWire
from procession.tools import ToolSuspended
from procession_schemas.run import Failure, HookReport, RunResult, Tripwire
from procession_schemas.work import EmitOp, HookOp, WorkCommand, WorkResult
from procession_services.llm_gateway.core.call import ModelCall
from procession_services.runtime.telemetry.live import LiveObserver
from procession_services.runtime.telemetry.meters import Meters
from procession_services.runtime.telemetry.spans import Spans, model_attributes, new_tracer_provider

BEGUN = "2026-01-02T03:04:05.000Z"


class Watched:
    """An observer, its spans and its series."""

    def __init__(self, *, content: bool = False, ratio: float = 1.0, labels: tuple[str, ...] = ()) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = new_tracer_provider(sampler=ParentBased(TraceIdRatioBased(ratio)))
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = Meters(labels)
        self.observer = LiveObserver(Spans(self.provider, content=content), self.meters)

    @property
    def spans(self) -> dict[str, Any]:
        return {span.name: span for span in self._exporter.get_finished_spans()}

    def value(self, name: str, **labels: str) -> float | None:
        return self.meters.registry.get_sample_value(f"procession_{name}", labels)


def ended(**fields: Any) -> RunResult:
    return RunResult(**{"run_id": "r", "agent": "a", "status": "finished", "finish_reason": "stop", **fields})


def command(**fields: Any) -> WorkCommand:
    given = {
        "run": "r",
        "tenant": "t",
        "agent": "a",
        "seq": 3,
        "service": "tools",
        "version": 1,
        "out_seq": 10,
    }
    ops = [HookOp(hook="processInput", processors=[]), EmitOp(chunks=[])]
    return WorkCommand(**{**given, "message_id": "m", "ops": ops, **fields})


def result(**fields: Any) -> WorkResult:
    given = {
        "run": "r",
        "tenant": "t",
        "seq": 3,
        "service": "tools",
        "outcome": "ok",
        "version": 2,
        "out_seq": 15,
    }
    return WorkResult(**{**given, **fields})


def test_the_run_span_has_the_id_that_was_sent_ahead():
    watched = Watched()
    trace = watched.observer.run_begins(None)
    with watched.observer.command(command(), 1, trace.traceparent):
        pass
    watched.observer.run_ends("t", ended(usage={"inputTokens": 5, "outputTokens": None}), trace, BEGUN)
    run, work = watched.spans["invoke_agent a"], watched.spans["command tools"]
    assert trace.traceparent == f"00-{run.context.trace_id:032x}-{run.context.span_id:016x}-01"
    assert work.parent.span_id == run.context.span_id
    assert run.start_time == 1_767_323_045_000_000_000
    assert run.attributes["gen_ai.usage.input_tokens"] == 5
    assert "gen_ai.usage.output_tokens" not in run.attributes


def test_two_runs_have_two_traces():
    watched = Watched()
    assert watched.observer.run_begins(None) != watched.observer.run_begins(None)


def test_a_run_that_is_not_sampled_leaves_nothing():
    watched = Watched(ratio=0.0)
    trace = watched.observer.run_begins(None)
    assert trace.traceparent is not None
    assert trace.traceparent.endswith("-00")
    with watched.observer.command(command(), 1, trace.traceparent):
        pass
    watched.observer.run_ends("t", ended(), trace, BEGUN)
    assert watched.spans == {}
    assert watched.value("runs_total", status="finished") == 1


def test_a_run_that_waits_is_counted_and_has_no_span_yet():
    watched = Watched()
    watched.observer.run_ends("t", ended(status="suspended"), watched.observer.run_begins(None), BEGUN)
    assert watched.spans == {}
    assert watched.value("runs_total", status="suspended") == 1
    assert watched.value("run_seconds_count", status="suspended") is None


def test_a_command_tells_what_its_result_tells():
    watched = Watched()
    report = HookReport(processor="p", hook="processInput", calls=2, micros=3e6, aborts=1, errors=1)
    tripwire = Tripwire(reason="secret", processor_id="p")
    with watched.observer.command(command(), 2, None) as told:
        assert watched.value("commands_in_flight", service="tools") == 1
        told(result(outcome="tripwire", tripwire=tripwire, reports=[report]))
    span = watched.spans["command tools"]
    assert span.attributes["procession.command.operations"] == ("hook processInput", "emit")
    assert span.attributes["procession.tripwire.processor"] == "p"
    assert span.attributes["procession.command.attempt"] == 2
    assert "secret" not in span.to_json()
    labels = {"processor": "p", "hook": "processInput"}
    assert watched.value("tripwires_total", **labels) == 1
    assert watched.value("processor_errors_total", **labels) == 1
    assert watched.value("processor_calls_total", **labels) == 2
    assert watched.value("processor_seconds_total", **labels) == 3
    assert watched.value("chunks_total", service="tools") == 5
    assert watched.value("commands_in_flight", service="tools") == 0
    assert watched.value("command_seconds_count", service="tools", outcome="tripwire") == 1


def test_a_command_that_raises_is_marked_without_the_text():
    watched = Watched()
    with pytest.raises(ValueError, match="secret"), watched.observer.command(command(), 1, None):
        raise ValueError("secret")
    span = watched.spans["command tools"]
    assert (span.status.is_ok, span.attributes["error.type"]) == (False, "ValueError")
    assert "secret" not in span.to_json()
    assert watched.value("command_seconds_count", service="tools", outcome="raised") == 1


@pytest.mark.parametrize(
    ("happens", "outcome"),
    [
        (lambda tally: None, "unchanged"),
        (lambda tally: setattr(tally, "changed", 1), "changed"),
        (lambda tally: setattr(tally, "errors", 1), "skipped"),
    ],
)
def test_a_hooks_outcome_is_read_from_its_tally(happens, outcome):
    watched, tally = Watched(), HookReport(processor="p", hook="processInput")
    with watched.observer.hook("p", "processInput", tally):
        happens(tally)
    assert watched.spans["processInput p"].attributes["procession.hook.outcome"] == outcome


@pytest.mark.parametrize(
    ("error", "outcome", "is_ok"),
    [
        (TripWire("secret"), "tripwire", True),
        (TripWire("secret", retry=True), "retry", True),
        (KeyError("secret"), "failed", False),
    ],
)
def test_an_abort_of_a_hook_is_no_failure(error, outcome, is_ok):
    watched = Watched()
    report = HookReport(processor="p", hook="processInput")
    with pytest.raises(type(error)), watched.observer.hook("p", "processInput", report):
        raise error
    span = watched.spans["processInput p"]
    assert (span.attributes["procession.hook.outcome"], span.status.is_ok) == (outcome, is_ok)
    assert "secret" not in span.to_json()


def test_a_tool_that_asks_a_person_has_not_failed():
    watched = Watched()
    with pytest.raises(ToolSuspended), watched.observer.tool("book", "c1", {}):
        raise ToolSuspended({"question": "secret"})
    assert watched.spans["execute_tool book"].status.is_ok
    assert watched.value("tool_calls_total", tool="book", outcome="suspended") == 1


def test_content_is_told_only_when_asked_for():
    call = ModelCall("openai/gpt", [{"role": "user", "content": "asked"}])
    answer = [{"type": "text-delta", "payload": {"text": "answered"}}]
    for content in (True, False):
        watched = Watched(content=content)
        watch = watched.observer.model(call)
        watch.chunks(answer)
        watch.end()
        with watched.observer.tool("add", "c1", {"x": "argument"}) as done:
            done({"result": "sum"})
        told = "".join(span.to_json() for span in watched.spans.values())
        assert [word in told for word in ("asked", "answered", "argument", "sum")] == [content] * 4


def test_content_has_opentelemetrys_shape():
    watched = Watched(content=True)
    prompt = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    watch = watched.observer.model(ModelCall("openai/gpt", prompt))
    watch.chunks([{"type": "text-delta", "payload": {"text": "yo"}}])
    watch.end()
    span = watched.spans["chat gpt"]
    message = {"role": "user", "parts": [{"type": "text", "content": "hi"}]}
    assert json.loads(span.attributes["gen_ai.input.messages"]) == [message]
    message = {"role": "assistant", "parts": [{"type": "text", "content": "yo"}]}
    assert json.loads(span.attributes["gen_ai.output.messages"]) == [message]


def test_a_model_call_has_its_settings_tokens_and_end():
    watched = Watched()
    watch = watched.observer.model(
        ModelCall("openai/gpt", [], model_settings={"temperature": 0.5, "topP": 1})
    )
    watch.chunks([{"type": "response-metadata", "payload": {"id": "x", "modelId": "gpt-1"}}])
    assert watched.value("model_first_chunk_seconds_count", model="openai/gpt") is None
    watch.chunks([{"type": "text-delta", "payload": {"text": "hi"}}])
    usage = {"inputTokens": 7, "outputTokens": 2, "cachedInputTokens": None}
    watch.chunks(
        [{"type": "finish", "payload": {"stepResult": {"reason": "length"}, "output": {"usage": usage}}}]
    )
    watch.end()
    facts = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt",
        "gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 1, "gen_ai.response.id": "x",
        "gen_ai.response.model": "gpt-1", "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 2, "procession.model.outcome": "finished",
    }  # fmt: skip
    assert facts.items() <= watched.spans["chat gpt"].attributes.items()
    assert watched.value("model_tokens_total", model="openai/gpt", type="input") == 7
    assert watched.value("model_calls_total", model="openai/gpt", outcome="finished") == 1
    assert watched.value("model_first_chunk_seconds_count", model="openai/gpt") == 1


def test_a_call_of_an_embedding_model_has_its_tokens_and_its_end():
    watched = Watched()
    with watched.observer.embedding("openai/small") as done:
        done(7, None)
    with pytest.raises(ValueError, match="secret"), watched.observer.embedding("openai/large"):
        raise ValueError("secret")
    facts = {
        "gen_ai.operation.name": "embeddings", "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "small", "gen_ai.usage.input_tokens": 7,
        "procession.model.outcome": "finished",
    }  # fmt: skip
    assert facts == watched.spans["embeddings small"].attributes
    large = watched.spans["embeddings large"]
    assert (large.attributes["error.type"], large.events) == ("ValueError", ())
    assert watched.value("model_seconds_count", model="openai/large") == 1


@dataclass
class Session:
    kind: str = "model"
    attempt: int = 2
    part: int = 0
    processed: int = 0
    calls: Any = field(default_factory=lambda: SimpleNamespace(reports={}))


def test_a_stream_has_one_span_for_each_processor():
    watched, session = Watched(), Session()
    with watched.observer.stream(session):
        session.processed = 40
        tally = HookReport(processor="mask", hook="processOutputStream", calls=40, micros=8000, changed=3)
        session.calls.reports = {1: tally, 2: HookReport(processor="mask", hook="processInput")}
    stream, hook = watched.spans["stream model"], watched.spans["processOutputStream mask"]
    assert hook.parent.span_id == stream.context.span_id
    assert (hook.attributes["procession.hook.calls"], hook.attributes["procession.hook.busy_ms"]) == (40, 8.0)
    assert hook.attributes["procession.hook.outcome"] == "changed"
    assert (
        stream.attributes["procession.stream.chunks"],
        stream.attributes["procession.stream.attempt"],
    ) == (40, 2)
    assert len(watched.spans) == 2


def test_a_failed_run_is_marked_with_its_code():
    watched = Watched()
    error = Failure(code="MODEL_FAILED", message="secret")
    watched.observer.run_ends(
        "t", ended(status="failed", error=error), watched.observer.run_begins(None), BEGUN
    )
    span = watched.spans["invoke_agent a"]
    assert (span.status.is_ok, span.attributes["error.type"]) == (False, "MODEL_FAILED")
    assert "secret" not in span.to_json()


def test_tenants_and_agents_are_labels_when_asked_for():
    watched = Watched(labels=("tenant", "agent"))
    watched.observer.run_accepted("t", "a")
    watched.observer.run_ends("t", ended(retries=2), watched.observer.run_begins(None), BEGUN)
    assert watched.value("runs_accepted_total", tenant="t", agent="a") == 1
    assert watched.value("runs_total", status="finished", tenant="t", agent="a") == 1
    assert watched.value("run_retries_total", tenant="t", agent="a") == 2


def test_refusals_and_queues_are_counted_for_all_tenants_together():
    watched = Watched()
    watched.observer.request_rejected("t", "waitingRuns")
    watched.observer.run_waited("t", 1.5)
    watched.observer.queues({"t": 2, "u": 1}, {"t": 7})
    assert watched.value("requests_rejected_total", limit="waitingRuns") == 1
    assert watched.value("run_wait_seconds_sum") == 1.5
    assert (watched.value("runs_running"), watched.value("runs_waiting")) == (3, 7)


def test_refusals_and_queues_are_told_for_each_tenant_when_asked_for():
    watched = Watched(labels=("tenant",))
    watched.observer.request_rejected("t", "waitingRuns")
    watched.observer.run_waited("t", 1.5)
    watched.observer.queues({"t": 2, "u": 1}, {"t": 7})
    assert watched.value("requests_rejected_total", limit="waitingRuns", tenant="t") == 1
    assert watched.value("run_wait_seconds_count", tenant="t") == 1
    assert [watched.value("runs_running", tenant=tenant) for tenant in "tu"] == [2, 1]
    watched.observer.queues({"u": 1}, {})
    assert watched.value("runs_running", tenant="t") is None
    assert watched.value("runs_waiting", tenant="t") is None


def test_names_from_requests_cannot_fill_the_memory():
    watched = Watched()
    for number in range(1000):
        with watched.observer.tool(f"t{number}", "c", {}):
            pass
    (calls,) = (each for each in watched.meters.registry.collect() if each.name == "procession_tool_calls")
    assert len({sample.labels["tool"] for sample in calls.samples}) == 201
    assert watched.value("tool_calls_total", tool="other", outcome="ok") == 800


def test_a_refused_file_shows_until_it_is_mended():
    watched = Watched()
    watched.observer.configured_by("agents", refused=True)
    assert watched.value("configuration_refused", file="agents") == 1
    watched.observer.configured_by("agents", refused=False)
    assert watched.value("configuration_refused", file="agents") == 0


def test_queues_are_counted():
    watched = Watched()
    for attempt in (1, 2, 3):
        watched.observer.delivered("tools", attempt)
    watched.observer.dead_letter("tools")
    watched.observer.lag("WORK", "tools", 4, 2)
    watched.observer.failover()
    watched.observer.cost("openai/gpt", 0.25)
    watched.observer.cost("openai/gpt", None)
    assert watched.value("redeliveries_total", consumer="tools") == 2
    assert watched.value("dead_letters_total", consumer="tools") == 1
    assert watched.value("consumer_lag", stream="WORK", consumer="tools") == 4
    assert watched.value("consumer_unacknowledged", stream="WORK", consumer="tools") == 2
    assert watched.value("stream_failovers_total") == 1
    assert watched.value("model_cost_dollars_total", model="openai/gpt") == 0.25


@pytest.mark.parametrize(
    ("model", "provider", "name"),
    [
        ("openai/gpt", "openai", "gpt"),
        ("bedrock/anthropic/claude", "aws.bedrock", "anthropic/claude"),
        ("gpt", None, "gpt"),
    ],
)
def test_models_are_told_in_opentelemetrys_words(model, provider, name):
    told = model_attributes(model)
    assert (told.get("gen_ai.provider.name"), told["gen_ai.request.model"]) == (provider, name)


def test_work_that_is_continued_belongs_to_the_callers_span():
    watched = Watched()
    assert watched.observer.headers() is None
    with watched.observer.command(command(), 1, None):
        sent = watched.observer.headers()
    assert sent is not None
    with watched.observer.continued(sent["traceparent"]), watched.observer.tool("add", "c", {}):
        pass
    above = watched.spans["command tools"].context
    assert watched.spans["execute_tool add"].parent.span_id == above.span_id
    with watched.observer.continued("nonsense"):
        assert watched.observer.headers() is None
