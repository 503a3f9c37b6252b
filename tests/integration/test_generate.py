"""Model calls of processors: from a service over the bus to the gateway and over HTTP to the model."""

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from procession.services import ModelCallError, ModelRequest
from procession_schemas import subjects
from procession_schemas.generate import GenerateReply, GenerateRequest
from procession_schemas.offers import ReplicaOffer
from procession_services.bus import Bus, RequestTimeoutError, alive
from procession_services.processor_host.models import GatewayModels
from procession_services.runtime.embedded import EmbeddedServers
from tests.support.system import System

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}


def request(model: str = "openai/mock:chunks=3", **fields: object) -> ModelRequest:
    prompt = [{"role": "user", "content": "what?"}]
    return ModelRequest(**{"model": model, "prompt": prompt, **fields})  # type: ignore[arg-type]


@pytest_asyncio.fixture(loop_scope="session")
async def models(system: System):
    bus = await Bus.connect(system.servers.nats_url, "test")
    yield GatewayModels(bus)
    await bus.close()


async def test_an_answer_comes_with_usage_and_chunks(models):
    answer = await models.generate(request(), tenant="acme")
    assert answer.text
    assert answer.finish_reason == "stop"
    assert answer.usage["totalTokens"]
    assert "".join(c["payload"]["text"] for c in answer.chunks if c["type"] == "text-delta") == answer.text


async def test_many_questions_are_answered_at_the_same_time(models):
    answers = await asyncio.gather(*(models.generate(request(), tenant="acme") for _ in range(20)))
    assert len({answer.text for answer in answers}) == 1


async def test_a_model_that_does_not_exist_is_named(models):
    with pytest.raises(ModelCallError, match="unknown model 'nonsense'"):
        await models.generate(request("nonsense"), tenant="acme")


async def test_a_provider_that_refuses_is_a_failed_call(models):
    with pytest.raises(ModelCallError, match="failed"):
        await models.generate(request("anthropic/claude-nothing"), tenant="acme")


async def test_a_question_that_is_too_long_says_so(models):
    prompt = [{"role": "user", "content": "x" * 20_000_000}]
    with pytest.raises(ModelCallError, match="bytes, but NATS accepts at most"):
        await models.generate(request(prompt=prompt), tenant="acme")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"prompt": "what?"}, r"is invalid: prompt: "),
        ({"prompt": ["what?"]}, r"is invalid: prompt\.0: "),
        ({"schema": "object"}, r"is invalid: schema: "),
        (
            {"model_settings": {"temperature": "hot"}},
            r"is invalid: model_settings: `temperature` must be a number",
        ),
        (
            {"model_settings": {"temprature": 0}},
            r"is invalid: model_settings\.temprature: unknown setting, .* did you mean 'temperature'\?",
        ),
        ({"prompt": [{"role": "user", "content": "\ud83d"}]}, "cannot be written as JSON: "),
        ({"prompt": [{"role": "user", "content": object()}]}, "cannot be written as JSON: "),
    ],
)
async def test_a_question_that_cannot_be_sent_is_a_failed_call(models, wrong, told):
    """Guards expect a `ModelCallError`, whatever the reason: their `errorStrategy` decides about it."""
    with pytest.raises(ModelCallError, match=f"the request to openai/mock:chunks=3 {told}"):
        await models.generate(request(**wrong), tenant="acme")


async def test_without_a_gateway_the_call_fails_when_its_time_is_up(servers):
    bus = await Bus.connect(servers.nats_url, "alone")
    try:
        subject_of_nobody = GatewayModels(bus)
        with pytest.raises(ModelCallError, match="gave no answer within"):
            await subject_of_nobody.generate(
                request("openai/mock:chunks=100,delay=1000", timeout=0.3), tenant="nobody"
            )
    finally:
        await bus.close()


async def test_a_gateway_that_falls_silent_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(alive, "_SILENT_SECONDS", 0.2)
    asked: list[str] = []

    def silent(subject, _body, _reply):
        asked.append(subject)

    def offers(_subject, _body, reply):
        bus.post(reply, ReplicaOffer(replica="two").to_json())

    def answers(subject, body, reply):
        asked.append(subject)
        question = GenerateRequest.model_validate_json(body)
        assert question.timeout < 30 - 0.2, "what is left of it"
        bus.post(question.beats or "", b"")
        bus.post(reply, GenerateReply(text="hello").to_json())

    anybody = subjects.api("llm_gateway", "t", "generate")
    async with EmbeddedServers(tmp_path, redis=False) as servers:
        bus = await Bus.connect(servers.endpoints.nats_url, "test")
        await bus.subscribe(anybody, silent, queue="llm_gateway")
        await bus.subscribe(f"{anybody}.two", answers)
        await bus.subscribe(subjects.offer("llm_gateway"), offers)
        answer = await GatewayModels(bus).generate(request(timeout=30), tenant="t")
        await bus.close()
    assert (answer.text, asked) == ("hello", [anybody, f"{anybody}.two"])


async def test_a_gateway_whose_signs_of_life_come_late_is_asked_once(tmp_path, monkeypatch):
    """NATS stood still: what it says of others may come before what they have said."""
    monkeypatch.setattr(alive, "_SILENT_SECONDS", 0.2)
    asked: list[Any] = []

    def asks(subject, body, reply):
        asked.append((subject, GenerateRequest.model_validate_json(body).beats, reply))

    def offers(_subject, _body, offering):
        [(_, beats, reply)] = asked
        bus.post(beats, b"")
        bus.post(offering, ReplicaOffer(replica="two").to_json())
        bus.post(reply, GenerateReply(text="hello").to_json())

    anybody = subjects.api("llm_gateway", "t", "generate")
    async with EmbeddedServers(tmp_path, redis=False) as servers:
        bus = await Bus.connect(servers.endpoints.nats_url, "test")
        await bus.subscribe(anybody, asks, queue="llm_gateway")
        await bus.subscribe(f"{anybody}.two", asks)
        await bus.subscribe(subjects.offer("llm_gateway"), offers)
        answer = await GatewayModels(bus).generate(request(timeout=30), tenant="t")
        await bus.close()
    assert (answer.text, [subject for subject, *_ in asked]) == ("hello", [anybody])


async def test_a_gateway_that_takes_its_time_is_asked_once(system, models, monkeypatch):
    monkeypatch.setattr(alive, "_SILENT_SECONDS", 0.3)
    monkeypatch.setattr(alive, "_BEAT_SECONDS", 0.05)
    model = system.script({"chunks": ["slow"], "delay_ms": 1500}, {"chunks": ["asked again"]})
    answer = await models.generate(request(model), tenant="acme")
    assert (answer.text, len(system.requests(model))) == ("slow", 1)


async def test_a_service_that_comes_up_late_is_waited_for(servers):
    bus = await Bus.connect(servers.nats_url, "test")
    subject = subjects.api("nobody", "t", "late")
    with pytest.raises(RequestTimeoutError):
        await alive.request_when_up(bus, subject, b"?", 0.3)
    asking = asyncio.create_task(alive.request_when_up(bus, subject, b"?", 20))
    await asyncio.wait([asking], timeout=0.3)
    await bus.subscribe(subject, lambda _subject, _body, reply: bus.post(reply, b"here"))
    assert await asking == b"here"
    await bus.close()
