"""What a processor's question to a model is answered."""

import asyncio
from typing import Any

import orjson
import pytest

from procession_services.llm_gateway import embed
from procession_services.llm_gateway.core.failures import ProviderError
from procession_services.llm_gateway.embed import EmbeddingAnswers
from procession_services.llm_gateway.generate import CONCURRENCY, Generator
from procession_services.llm_gateway.providers.litellm_embeddings import Embeddings
from procession_services.runtime.telemetry import installed
from procession_services.runtime.telemetry.live import LiveObserver
from procession_services.runtime.telemetry.meters import Meters
from procession_services.runtime.telemetry.spans import Spans
from tests.support.waiting import until


class Provider:
    def __init__(self, *chunks):
        self.chunks = [*chunks]

    def knows(self, _model):
        return True

    def cost(self, *_of):
        return None

    async def stream(self, _call):
        yield self.chunks


class Ledger:
    def __init__(self):
        self.tenants = []

    def add(self, tenant, *_booked):
        self.tenants.append(tenant)


async def nowhere(_subject, _body):
    pass


def generator(*chunks, ledger=None):
    provider: Any = Provider(*chunks)
    booked: Any = ledger or Ledger()
    return Generator(provider, booked, nowhere, None, max_reply=10_000)


async def answered(retries):
    body = b'{"model": "m/x", "prompt": [], "timeout": 5, "modelSettings": {"maxRetries": %b}}' % retries
    return orjson.loads(await generator().answer("procession.v1.api.llm_gateway.t.generate", body))


@pytest.mark.parametrize("retries", [b'"many"', b"[1]", b"1e400", b'"2"', b"0.5", b"-1", b"true"])
async def test_retries_that_are_no_number_are_told(retries):
    assert (await answered(retries))["error"] == "modelSettings: maxRetries must be a whole number, 0 or more"


@pytest.mark.parametrize("retries", [b"null", b"0", b"2"])
async def test_retries_that_are_a_number_are_taken(retries):
    assert (await answered(retries)).get("error") is None


async def test_of_a_request_that_cannot_be_read_the_fields_are_told_but_not_what_they_hold():
    body = b'{"model": "m/x", "prompt": "secret", "jsonPromptInjection": "secret"}'
    told = orjson.loads(await generator().answer("procession.v1.api.llm_gateway.t.generate", body))["error"]
    assert told.startswith("the request cannot be read: prompt: ")
    assert "jsonPromptInjection: " in told
    assert "secret" not in told


async def test_an_answer_that_ended_with_an_error_is_none():
    text = {"type": "text-delta", "payload": {"id": "t", "text": '{"safe": true}'}}
    finish = {"type": "finish", "payload": {"stepResult": {"reason": "error"}}}
    body = b'{"model": "m/x", "prompt": [], "timeout": 5}'
    answer = orjson.loads(
        await generator(text, finish).answer("procession.v1.api.llm_gateway.t.generate", body)
    )
    assert answer["error"].startswith("m/x failed: the answer ended with finish reason 'error'")
    assert not answer.get("text")


async def test_an_answer_that_ended_with_an_error_has_been_paid_all_the_same():
    usage = {"inputTokens": 5, "outputTokens": 7, "totalTokens": 12}
    finish = {"type": "finish", "payload": {"stepResult": {"reason": "error"}, "output": {"usage": usage}}}
    ledger, body = Ledger(), b'{"model": "m/x", "prompt": [], "timeout": 5}'
    told = orjson.loads(await generator(finish, ledger=ledger).answer(subject("t"), body))
    assert ledger.tenants == ["t"]
    assert told["usage"] == usage


@pytest.mark.parametrize("replica", ["", ".gateway-2"])
async def test_what_an_answer_costs_is_booked_for_the_tenant_whoever_was_asked(replica):
    ledger = Ledger()
    body = b'{"model": "m/x", "prompt": [], "timeout": 5}'
    await generator(ledger=ledger).answer(f"procession.v1.api.llm_gateway.t.generate{replica}", body)
    assert ledger.tenants == ["t"]


def subject(tenant, operation="generate"):
    return f"procession.v1.api.llm_gateway.{tenant}.{operation}"


async def test_a_provider_that_hangs_for_one_tenant_holds_up_no_other():
    hanging = []

    class Hangs(Provider):
        async def stream(self, call):
            if call.model == "m/hangs":
                hanging.append(call)
                await asyncio.Event().wait()
            yield self.chunks

    generator = Generator(Hangs(), Ledger(), nowhere, None, max_reply=10_000)  # type: ignore[arg-type]
    body = b'{"model": "m/%s", "prompt": [], "timeout": 5}'
    asking = [
        asyncio.create_task(generator.answer(subject("one"), body % b"hangs")) for _ in range(CONCURRENCY + 1)
    ]
    await until(lambda: len(hanging) == CONCURRENCY)
    async with asyncio.timeout(2):
        answer = orjson.loads(await generator.answer(subject("other"), body % b"x"))
    assert answer.get("error") is None
    for task in asking:
        task.cancel()


async def test_an_embedder_that_hangs_for_one_tenant_holds_up_no_other(monkeypatch):
    hanging = []

    async def embedded(_provider, model, _texts, *_more):
        if model == "m/hangs":
            hanging.append(model)
            await asyncio.Event().wait()
        return Embeddings([[1.0]], None, None)

    monkeypatch.setattr(embed, "embed", embedded)
    answers = EmbeddingAnswers(Provider(), Ledger(), nowhere, None, max_reply=10_000)  # type: ignore[arg-type]
    body = b'{"model": "m/%s", "texts": ["a"], "timeout": 5}'
    asking = [
        asyncio.create_task(answers.answer(subject("one", "embed"), body % b"hangs"))
        for _ in range(embed.CONCURRENCY + 1)
    ]
    await until(lambda: len(hanging) == embed.CONCURRENCY)
    async with asyncio.timeout(2):
        answer = orjson.loads(await answers.answer(subject("other", "embed"), body % b"x"))
    assert answer.get("error") is None
    for task in asking:
        task.cancel()


async def test_calls_of_embedding_models_are_counted_as_those_of_others(monkeypatch):
    async def embedded(_provider, model, _texts, *_more):
        if model == "m/fails":
            raise ProviderError("no", status_code=429)
        return Embeddings([[1.0]], 7, 0.25)

    monkeypatch.setattr(embed, "embed", embedded)
    answers = EmbeddingAnswers(Provider(), Ledger(), nowhere, None, max_reply=10_000)  # type: ignore[arg-type]
    meters = Meters()
    with installed(LiveObserver(Spans(None), meters)):
        for model in (b"x", b"fails"):
            body = b'{"model": "m/%s", "texts": ["a"], "timeout": 5}' % model
            await answers.answer(subject("t", "embed"), body)
    number = meters.registry.get_sample_value
    assert number("procession_model_calls_total", {"model": "m/x", "outcome": "finished"}) == 1
    assert number("procession_model_calls_total", {"model": "m/fails", "outcome": "failed"}) == 1
    assert number("procession_model_tokens_total", {"model": "m/x", "type": "input"}) == 7
    assert number("procession_model_cost_dollars_total", {"model": "m/x"}) == 0.25


class Priceless(Provider):
    def cost(self, *_of):
        raise OverflowError("of a price")


async def test_whatever_fails_is_answered(caplog):
    """Else another gateway would be asked for the same."""
    failing: Any = Priceless(
        {"type": "text-delta", "payload": {"id": "t", "text": "a"}}, {"type": "finish", "payload": {}}
    )
    ledger: Any = Ledger()
    body = b'{"model": "m/x", "prompt": [], "timeout": 5}'
    asked = Generator(failing, ledger, nowhere, None, max_reply=10_000)
    told = orjson.loads(await asked.answer("procession.v1.api.llm_gateway.t.generate", body))
    assert told["error"] == "m/x failed: OverflowError"
    assert "OverflowError: of a price" in caplog.text
