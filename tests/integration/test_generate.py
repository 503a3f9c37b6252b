"""Model calls of processors: from a service over the bus to the gateway and over HTTP to the model."""

import asyncio

import pytest
import pytest_asyncio

from procession.services import ModelCallError, ModelRequest
from procession_services.bus import Bus
from procession_services.processor_host.models import GatewayModels
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
    with pytest.raises(ModelCallError, match="bytes; the broker takes"):
        await models.generate(request(prompt=prompt), tenant="acme")


async def test_without_a_gateway_the_call_fails_when_its_time_is_up(servers):
    bus = await Bus.connect(servers.nats_url, "alone")
    try:
        subject_of_nobody = GatewayModels(bus)
        with pytest.raises(ModelCallError, match=r"gave no answer within|no llm_gateway is up"):
            await subject_of_nobody.generate(
                request("openai/mock:chunks=100,delay=1000", timeout=0.3), tenant="nobody"
            )
    finally:
        await bus.close()
