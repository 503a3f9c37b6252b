"""`token-cost-control` over the bus: the gateway books what a call costs, the input side reads it before the next."""

import pytest

from procession_services.processor_host.service import hosted
from procession_services.runtime.ledger import Ledger

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

TOOL = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
DONE = {"chunks": ["done"]}
HOUR = 3600


def guarded(model, **options):
    control = {"id": "token-cost-control", "options": options}
    return {"model": model, "inputProcessors": [control], "tools": ["echo"]}


def priced(system, *calls):
    """A model whose every token costs a dollar."""
    import litellm  # noqa: PLC0415 - the gateway has loaded it in its own way

    model = system.script(*calls)
    price = {
        "input_cost_per_token": 1,
        "output_cost_per_token": 1,
        "litellm_provider": "openai",
        "mode": "chat",
    }
    litellm.register_model({model: price})
    return model


async def test_a_run_ends_before_the_step_that_its_calls_have_paid_for(system):
    agent = guarded(priced(system, TOOL, DONE), maxCost=1, scope="run")
    result, _ = await system.run(agent=agent)
    assert (result.status, len(system.requests(agent["model"]))) == ("blocked", 1)
    assert result.tripwire.metadata["usage"]["estimatedCost"] > 1


async def test_the_cost_of_a_user_ends_the_next_run(system):
    model = priced(system, DONE, DONE, DONE)
    agent = guarded(model, maxCost=1, scope="user", window="1h")
    statuses = [
        (await system.run(agent=agent, request_context={"userId": user}))[0].status
        for user in ("a", "a", "b")
    ]
    assert statuses == ["finished", "blocked", "finished"]


async def test_a_price_that_nobody_knows_is_decided_about(system):
    model = system.script(DONE, DONE)
    agent = guarded(model, maxCost=1, scope="user", unknown="block")
    statuses = [(await system.run(agent=agent, request_context={"userId": "c"}))[0].status for _ in range(2)]
    assert statuses == ["finished", "blocked"]


async def test_a_call_that_fails_before_it_begins_to_answer_costs_nothing(system):
    model = system.script({"error": {"status": 400, "message": "no"}}, DONE)
    agent = guarded(model, maxCost=1, scope="user", unknown="block")
    statuses = [(await system.run(agent=agent, request_context={"userId": "e"}))[0].status for _ in range(2)]
    assert statuses == ["failed", "finished"]


async def test_what_processors_ask_models_is_booked_for_the_tenant_alone(system):
    judge, model = priced(system, DONE), priced(system, DONE)
    detector = {"id": "moderation", "options": {"model": judge, "errorStrategy": "warn"}}
    agent = {"model": model, "inputProcessors": [detector]}
    ledger, tenant = Ledger(system.redis), system.client.tenant
    before = await ledger.read(tenant, "tenant", tenant, HOUR)
    result, _ = await system.run(agent=agent, request_context={"userId": "d"})
    assert (result.status, len(system.requests(judge))) == ("finished", 1)
    booked = await ledger.read(tenant, "tenant", tenant, HOUR)
    assert booked.calls - before.calls == 2
    assert {judge, model} <= {usage.model for usage in booked.breakdown if usage.cost}
    assert (await ledger.read(tenant, "user", "d", HOUR)).calls == 1


async def test_a_limiter_trims_what_the_model_gets_and_cuts_what_the_client_gets(system):
    model = system.script({"chunks": ["one ", "two ", "three ", "four"]})
    words = " ".join(f"word{number}" for number in range(60))
    agent = {
        "model": model,
        "inputProcessors": [{"id": "token-limiter", "options": {"limit": 60}}],
        "outputProcessors": [{"id": "token-limiter", "as": "answer-limiter", "options": {"limit": 2}}],
    }
    messages = [
        {"role": "user", "content": words},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "hi"},
    ]
    result, chunks = await system.run(agent=agent, text=messages)
    assert "word1" not in str(system.requests(model)[0])
    assert result.text == "one two "
    (told,) = [chunk for chunk in chunks if chunk["type"] == "data-token-limit-reached"]
    assert told["data"]["tokens"] == 3


async def test_a_service_that_stops_has_booked_all(system):
    async def nothing(_host):
        pass

    async with hosted("tools", system.settings("stops"), nothing) as host:
        host.ledger.add(system.client.tenant, {"run": "stopped"}, "a/b", {"inputTokens": 1}, 0.5)
    assert (await Ledger(system.redis).read(system.client.tenant, "run", "stopped", None)).calls == 1
