from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.observed import observed
from procession_services.llm_gateway.providers.retrying import stream_with_retries
from procession_services.runtime.telemetry import installed
from procession_services.runtime.telemetry.live import LiveObserver
from procession_services.runtime.telemetry.meters import Meters
from procession_services.runtime.telemetry.spans import Spans, new_tracer_provider

CALL = ModelCall("openai/gpt", [])
FINISH = {
    "type": "finish",
    "payload": {"stepResult": {"reason": "stop"}, "output": {"usage": {"inputTokens": 3}}},
}


class Scripted:
    """A provider that fails so often before it answers."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.closed = failures, 0

    async def stream(self, call: ModelCall) -> AsyncGenerator[list[Any], None]:
        try:
            if self.failures:
                self.failures -= 1
                raise ProviderError("secret", status_code=503, retryable=True)
            yield [{"type": "text-delta", "payload": {"text": "hi"}}]
            yield [FINISH]
        finally:
            self.closed += 1

    def knows(self, model: str) -> bool:
        return model == "openai/gpt"

    def cost(self, call: ModelCall, usage: Any) -> float | None:
        return 0.5

    async def aclose(self) -> None:
        pass


@pytest.fixture
def watched():
    spans, provider, meters = InMemorySpanExporter(), new_tracer_provider(), Meters()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with installed(LiveObserver(Spans(provider), meters)):
        yield spans.get_finished_spans, meters.registry


def test_a_provider_that_nobody_observes_is_left_alone():
    provider = Scripted()
    assert observed(provider) is provider


async def test_each_attempt_is_a_span(watched):
    spans, registry = watched

    async def at_once(seconds):
        pass

    chunks = [batch async for batch in stream_with_retries(observed(Scripted(1)), CALL, 1, at_once)]
    assert len(chunks) == 2
    assert [span.attributes["procession.model.outcome"] for span in spans()] == ["failed", "finished"]
    assert spans()[0].attributes["error.type"] == "503"
    assert "secret" not in spans()[0].to_json()
    labels = {"model": "openai/gpt", "outcome": "failed"}
    assert registry.get_sample_value("procession_model_calls_total", labels) == 1


async def test_an_answer_that_is_left_is_closed_and_counted(watched):
    spans, _ = watched
    provider = Scripted()
    async with aclosing(observed(provider).stream(CALL)) as answer:
        await anext(answer)
    assert provider.closed == 1
    assert spans()[0].attributes["procession.model.outcome"] == "cancelled"
    assert spans()[0].status.is_ok


def test_costs_are_counted_where_they_are_asked_for(watched):
    _, registry = watched
    assert observed(Scripted()).cost(CALL, {}) == 0.5
    assert registry.get_sample_value("procession_model_cost_dollars_total", {"model": "openai/gpt"}) == 0.5
