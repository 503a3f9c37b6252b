"""When a plan is made, and when one is there already."""

import asyncio
import threading
from typing import Any

import pytest

from procession.processor import Options, Processor
from procession.registry import Registry
from procession_schemas.agent import Agent
from procession_schemas.run import RunRequest
from procession_schemas.validation import RefusedError
from procession_services.memory.history import MessageHistory
from procession_services.memory.input_filter import MemoryInputFilter
from procession_services.orchestrator.core.plan import opening
from procession_services.orchestrator.planner import Planner
from procession_services.runs.state import Plan
from procession_services.runtime.reload import Watched
from procession_services.runtime.settings import Settings


class Upper(Processor[Options]):
    """A processor of the input."""

    id = "upper"

    def process_input(self, args):
        return args.messages


class Office:
    """A planner with one configured agent."""

    def __init__(self, unlisted: bool = True, /, **agent: Any) -> None:
        self.calls = 0
        registry = self.registry = Registry()
        for processor in (Upper, MemoryInputFilter, MessageHistory):
            registry.add_processor(processor)
        registry.factories["made"] = self._made
        self.agents = Watched("agents", None, lambda _path: {}, {"a": self.agent(**agent)})
        bases = ("https://more/v1", "https://other/v1")
        settings = Settings(api_base="https://default/v1", api_bases=bases, unlisted_api_bases=unlisted)
        self.planner = Planner(registry, settings, self.agents)

    def agent(self, **fields: Any) -> Agent:
        return Agent.model_validate({"name": "a", "model": "m/one", "inputProcessors": ["upper"], **fields})

    def _made(self, _context: Any, _options: Any) -> list[Any]:
        self.calls += 1
        return ["upper"]

    async def plan(self, **request: Any) -> Plan:
        asked = RunRequest.model_validate({"input": "hello", **request})
        agent = asked.agent or self.agents.value["a"]
        return await self.planner.plan(asked, agent, opening(asked, agent)[0])


async def test_a_factory_that_gives_nothing_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("procession_services.processor_host.factories._SECONDS", 0.05)

    async def hangs(_context: Any, _options: Any) -> list[Any]:
        await asyncio.Event().wait()
        return []

    office = Office(inputProcessors={"factory": "made"})
    office.registry.factories["made"] = hangs
    with pytest.raises(RefusedError, match="nothing within") as refused:
        await office.plan()
    assert (refused.value.failure.code, refused.value.failure.field) == (
        "FACTORY_FAILED",
        "inputProcessors.factory",
    )


async def test_requests_that_differ_in_what_is_said_share_a_plan():
    office = Office(memory={"lastMessages": 3}, instructions="Be kind.")
    first = await office.plan(runId="1", input="one", memory={"thread": "t1", "resource": "r1"})
    assert first is await office.plan(
        runId="2",
        input=["two"],
        memory={"thread": "t2", "resource": "r2"},
        context=["c"],
        system="s",
        instructions="Be brief.",
        requestContext={"k": 1},
        tracingContext={"t": 1},
        timeout=5,
    )


@pytest.mark.parametrize(
    "request_",
    [
        {"model": "m/two"},
        {"inputProcessors": []},
        {"modelSettings": {"temperature": 1}},
        {"maxSteps": 9},
        {"stream": False},
        {"includeRawChunks": True},
        {"memory": {"thread": "t", "resource": "r"}},
        {"memory": {"thread": "t", "resource": "r", "lastMessages": 7}},
    ],
)
async def test_requests_that_ask_for_something_else_have_another_plan(request_):
    office, alone = Office(memory={"lastMessages": 3}), Office(memory={"lastMessages": 3})
    plain = await office.plan()
    other = await office.plan(**request_)
    assert other == await alone.plan(**request_)
    assert other != plain or request_.get("memory")
    assert await office.plan() is plain
    assert await office.plan(**request_) is other


async def test_an_agent_that_is_read_anew_is_planned_anew():
    office = Office()
    await office.plan()
    office.agents.value = {"a": office.agent(inputProcessors=[])}
    assert (await office.plan()).input == []


async def test_an_agent_that_comes_along_is_planned_each_time():
    office = Office()
    configured = await office.plan()
    brought = await office.plan(agent={"name": "a", "model": "m/two"})
    assert (brought.config.model, brought.input) == ("m/two", [])
    assert await office.plan() is configured


@pytest.mark.parametrize("fields", [{"agent": {}}, {"request": {}}])
async def test_a_factory_is_called_for_each_request(fields):
    """R-CF-2."""
    made = {"inputProcessors": {"factory": "made"}}
    office = Office(**made) if "agent" in fields else Office()
    asked = made if "request" in fields else {}
    for times in (1, 2):
        assert [placed.ref.id for placed in (await office.plan(**asked)).input] == ["upper"]
        assert office.calls == times


async def test_a_wrong_request_is_refused_each_time():
    office = Office()
    for _ in range(2):
        with pytest.raises(RefusedError, match="none-such"):
            await office.plan(inputProcessors=["none-such"])


async def test_so_many_plans_are_kept_and_no_more():
    office = Office()
    plain = await office.plan()
    assert await office.plan() is plain
    for number in range(300):
        await office.plan(maxSteps=number + 1)
    again = await office.plan()
    assert again is not plain
    assert again == plain


async def test_a_plan_for_long_options_is_not_kept():
    office = Office()
    long = {"modelSettings": {"stopSequences": ["x" * 5000]}}
    assert await office.plan(**long) is not await office.plan(**long)


@pytest.mark.parametrize("base", [None, "https://default/v1", "https://configured/v1", "https://other/v1"])
async def test_keys_go_where_the_operator_has_said(base):
    office = Office(apiBase="https://configured/v1")
    plan = await office.plan(agent={"name": "a", "model": "m/one", "apiBase": base})
    assert (plan.api_base, plan.keyless) == (base or "https://default/v1", False)
    assert not (await office.plan()).keyless


async def test_no_key_goes_where_a_request_says():
    plan = await Office().plan(agent={"name": "a", "model": "m/one", "apiBase": "https://mine/v1"})
    assert (plan.api_base, plan.keyless) == ("https://mine/v1", True)


async def test_an_operator_may_allow_only_the_addresses_that_are_listed():
    office = Office(False)
    for base in (None, "https://more/v1"):
        await office.plan(agent={"name": "a", "model": "m/one", "apiBase": base})
    with pytest.raises(
        RefusedError, match="the operator allows only the API bases of configured agents"
    ) as refused:
        await office.plan(agent={"name": "a", "model": "m/one", "apiBase": "http://169.254.169.254/v1"})
    assert refused.value.failure.field == "agent.apiBase"


@pytest.mark.parametrize(
    ("of_agent", "of_request", "beside"),
    [("x", "x", False), ("x" * 5_000, "x", True), ("x", "x" * 5_000, True)],
)
async def test_much_is_planned_beside_the_event_loop(of_agent, of_request, beside):
    loop, where = threading.current_thread(), []

    class Texts(Options):
        text: str

    class Noting(Processor[Texts]):
        id = "noting"

        def __init__(self, options: Texts) -> None:
            super().__init__(options)
            where.append(threading.current_thread() is not loop)

        def process_input(self, args):
            return args.messages

    office = Office(outputProcessors=[])
    office.registry.add_processor(Noting)
    noting = [{"id": "noting", "options": {"text": of_agent}}]
    office.agents.value = {"a": office.agent(inputProcessors=noting)}
    await office.plan(inputProcessors=[*noting, {"id": "noting", "as": "b", "options": {"text": of_request}}])
    assert where == [beside, beside]
