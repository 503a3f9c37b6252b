"""What hooks may use beside their arguments, and what of it is counted."""

from typing import Any

import pytest

from procession.calls import Calls
from procession.errors import ProcessionError, ProcessorError
from procession.processor import Hook
from procession.services import ModelAnswer, ModelCallError, ModelRequest, conversation_key, object_of
from procession.testing import DictStore, ProcessorKit, ScriptedModels, environment
from procession.tools import ToolContext
from tests.unit.procession.making import context, link, processor

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
ASK = ModelRequest(model="m/judge", prompt=[{"role": "user", "content": "?"}], schema=SCHEMA)


def asks(seen, ask):
    async def hook(args):
        seen.append(await ask(args.services))

    return processor("asker", process_input=hook)


async def test_a_model_call_goes_to_the_models_of_the_process_and_is_counted():
    models = ScriptedModels([ModelAnswer(text="yes", usage={"totalTokens": 7}, cost=0.5)])
    seen: list[Any] = []
    kit = ProcessorKit(asks(seen, lambda services: services.generate(ASK)), environment=environment(models))
    await kit.input("hello")
    await kit.input("again")
    assert [answer.text for answer in seen] == ["yes", "yes"]
    assert models.requests == [ASK, ASK]
    (tally,) = kit.calls.reports.values()
    assert (tally.model_calls, tally.model_tokens, tally.model_cost) == (2, 14, 1.0)


async def test_usage_of_a_scope_that_there_is_not_is_an_error():
    """Its sum was nothing, so a limit did not hold."""

    async def hook(args):
        with pytest.raises(
            ValueError, match="unknown usage scope 'theard'; use one of run, resource, thread"
        ):
            await args.services.usage("theard", "t", None)
        assert (await args.services.usage("tenant", args.services.tenant, 60)).calls == 0

    await ProcessorKit(processor("asker", process_input=hook)).input("hello")


async def test_services_that_are_printed_tell_nothing_of_the_run():
    ctx = context()
    ctx.messages.add("a secret", "input")
    services = Calls(clock=lambda: 0).services(ctx, link(processor()), Hook.INPUT)
    assert repr(services) == "LinkServices(tenant='t', agent='a')"


async def test_an_object_is_parsed_and_validated():
    seen: list[Any] = []
    kit = ProcessorKit(
        asks(seen, lambda services: services.generate_object(ASK)),
        environment=environment(ScriptedModels(['```json\n{"ok": true}\n```'])),
    )
    await kit.input("hello")
    assert seen == [{"ok": True}]


@pytest.mark.parametrize("method", ["generate", "generate_object"])
async def test_what_is_no_request_is_told_with_what_would_be_and_counts_as_no_call(method):
    kit = ProcessorKit(asks([], lambda services: getattr(services, method)("Is this true?")))
    with pytest.raises(
        ProcessorError, match=r"was given a value of type str; give a `ModelRequest\(model=..., prompt=\["
    ):
        await kit.input("hello")
    (tally,) = kit.calls.reports.values()
    assert tally.model_calls == 0


@pytest.mark.parametrize("text", ["yes", '{"ok": "maybe"}', "{}", ""])
def test_an_answer_that_does_not_fit_is_a_failed_call(text):
    with pytest.raises(ModelCallError):
        object_of(ModelAnswer(text=text), SCHEMA)


async def test_a_failed_call_is_counted_too():
    def told(request):
        return ModelCallError(f"{request.model} is away")

    async def hook(args):
        with pytest.raises(ModelCallError, match="m/judge is away"):
            await args.services.generate(ASK)

    kit = ProcessorKit(processor("asker", process_input=hook), environment=environment(ScriptedModels(told)))
    await kit.input("hello")
    assert [tally.model_calls for tally in kit.calls.reports.values()] == [1]


async def test_a_violation_without_an_abort_is_told_and_stored():
    heard = []

    async def hook(args):
        await args.services.violation("too loud", {"score": 1})

    kind = processor(
        "guard", process_input=hook, on_violation=lambda _self, violation: heard.append(violation)
    )
    kit = ProcessorKit(kind)
    outcome = await kit.input("HELLO")
    assert outcome.tripwire is None
    assert [(v.processor_id, v.message, v.detail) for v in heard] == [("guard", "too loud", {"score": 1})]
    assert kit.violations == heard


async def test_a_warning_is_counted_and_logged_with_the_id():
    lines: list[str] = []

    def hook(args):
        args.services.warn("the model is away")

    kit = ProcessorKit(processor("guard", process_input=hook), environment=environment(log=lines.append))
    await kit.input("hello")
    assert lines == ["guard: the model is away"]
    assert [tally.warnings for tally in kit.calls.reports.values()] == [1]


async def test_the_store_is_the_tenants():
    stores: dict[str, DictStore] = {}
    world = environment()
    calls = Calls(
        clock=lambda: 0,
        environment=type(world)(
            models=world.models, store=lambda tenant: stores.setdefault(tenant, DictStore()), now=world.now
        ),
    )
    services = calls.services(context(), link(processor("p", process_input=lambda _args: None)), Hook.INPUT)
    await services.store.put("p:x", {"n": 1})
    assert services.tenant == "t"
    assert await stores["t"].get("p:x") == {"n": 1}
    assert list(stores) == ["t"]


async def test_outside_a_service_there_is_neither_model_nor_store():
    services = Calls(clock=lambda: 0).services(
        context(), link(processor("p", process_input=lambda _args: None)), Hook.INPUT
    )
    with pytest.raises(ModelCallError, match="outside a service"):
        await services.generate(ASK)
    with pytest.raises(ProcessionError, match=r"`store\.get` is not available"):
        await services.store.get("x")
    writer: object = None
    tool = ToolContext(tool_call_id="c", tool_name="t", run_id="r", tenant="t", writer=writer)  # type: ignore[arg-type]
    with pytest.raises(ProcessionError, match=r"`store\.get` is not available"):
        await tool.store.get("x")


class Dollars(float):
    """As the numbers of numpy, which JSON encoders do not take."""


@pytest.mark.parametrize(
    "counts", [{"calls": 1.5}, {"tokens": "5"}, {"tokens": 2**70}, {"cost": float("nan")}, {"cost": None}]
)
def test_what_is_counted_are_numbers_else_nobody_could_read_the_run(counts):
    calls = Calls(clock=lambda: 0)
    at = link(processor("p", process_input=lambda _args: None))
    services = calls.services(context(), at, Hook.INPUT)
    with pytest.raises(TypeError, match=f"count_model: `{next(iter(counts))}` is .*; give a"):
        services.count_model(**counts)
    services.count_model(calls=1, tokens=5, cost=Dollars(1))
    report = calls.report(at, Hook.INPUT)
    assert (report.model_calls, report.model_tokens, report.model_cost) == (1, 5, 1)
    assert type(report.model_cost) is float


class TestDictStore:
    async def test_values_expire(self):
        now = [0.0]
        store = DictStore(lambda: now[0])
        assert await store.put("a", 1, ttl=5)
        assert not await store.put("a", 2, only_new=True)
        now[0] = 5
        assert await store.get("a") is None
        assert await store.put("a", 2, only_new=True)

    async def test_numbers_and_sets(self):
        store = DictStore()
        assert [await store.add("n", 1.5), await store.add("n", 2)] == [1.5, 3.5]
        await store.insert("s", "a", "b")
        await store.insert("s", "b", "c")
        assert await store.members("s") == {"a", "b", "c"}
        await store.delete("s", "n")
        assert (await store.members("s"), await store.get("n")) == (set(), None)


def test_no_two_conversations_have_one_key():
    assert conversation_key("a:b", "c") != conversation_key("a", "b:c")
    assert conversation_key("user 1/2", "\ud800") == "user%201%2F2:%ED%A0%80"
