"""The trace of a run over all services, and what is not in it."""

import pytest
import pytest_asyncio

from tests.integration.test_guardrails import CLEAN, guard
from tests.support.spans import observed, told
from tests.support.system import SERVICES, finished, running_system

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

PROMPT, ARGUMENT, ANSWER, KEY = "purple-prompt", "amber-argument", "green-answer", "sk-red-secret"
CALL = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": ARGUMENT}}], "usage": {}}
DONE = {"chunks": [ANSWER, " two"]}
AGENT = {
    "instructions": f"instructions with {PROMPT}",
    "tools": ["echo"],
    "inputProcessors": ["unicode-normalizer"],
    "outputProcessors": ["upper"],
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def traced(servers, tmp_path_factory):
    """All services in this process, and what they tell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", KEY)
        async with (
            observed() as spans,
            running_system(servers, tmp_path_factory.mktemp("logs")) as system,
            system.inside(*SERVICES),
        ):
            yield system, spans


def named(spans, start):
    return [span for span in spans if span.name.startswith(start)]


def above(spans, span):
    return next(each for each in spans if span.parent and each.context.span_id == span.parent.span_id)


async def test_a_run_is_one_trace_over_all_services(traced):
    system, kept = traced
    result, _ = await system.run(CALL, DONE, text=PROMPT, agent=AGENT)
    assert result.text == f"{ANSWER} two".upper()
    spans = await kept.of_run(result.run_id)

    (root,) = named(spans, "invoke_agent test")
    assert root.parent is None
    facts = {"gen_ai.operation.name": "invoke_agent", "procession.run.status": "finished"}
    assert facts.items() <= told(root).items()

    commands = named(spans, "command ")
    assert [above(spans, each) for each in commands] == [root] * len(commands)
    services = [
        told(each)["procession.service"] for each in sorted(commands, key=lambda each: each.start_time)
    ]
    assert services == ["input_processors", "llm_gateway", "tools", "llm_gateway"]
    numbers = [told(each)["procession.command.seq"] for each in commands]
    assert sorted(numbers) == list(range(min(numbers), min(numbers) + 4))
    assert "hook processInput" in told(commands[0])["procession.command.operations"]
    assert {told(each)["procession.command.outcome"] for each in commands} == {"ok"}

    chats = named(spans, "chat script:")
    assert [above(spans, each).name for each in chats] == ["command llm_gateway"] * 2
    assert told(chats[0])["gen_ai.provider.name"] == "openai"
    assert [told(each)["gen_ai.response.finish_reasons"] for each in chats] == [("tool-calls",), ("stop",)]
    assert all(told(each)["gen_ai.usage.output_tokens"] > 0 for each in chats)

    (tool,) = named(spans, "execute_tool echo")
    assert above(spans, tool).name == "command tools"
    assert told(tool)["gen_ai.tool.call.id"] == "c1"

    (hook,) = named(spans, "processInput unicode-normalizer")
    assert above(spans, hook).name == "command input_processors"
    assert told(hook)["procession.hook.outcome"] in ("changed", "unchanged")

    streams = named(spans, "stream model")
    assert [above(spans, each).name for each in streams] == ["command llm_gateway"] * 2
    chains = named(spans, "processOutputStream upper")
    assert {above(spans, each).name for each in chains} <= {"stream model", "stream side"}
    assert sum(told(each)["procession.hook.changed"] for each in chains) == 2

    assert all(root.start_time <= each.start_time for each in spans)
    assert len({each.context.trace_id for each in spans}) == 1


async def test_a_run_through_every_service_is_one_trace(traced):
    """Memory, guards before and beside the model, a provider's error, a tool, stream hooks, a hook at the end."""
    system, kept = traced
    agent = {
        "memory": {"lastMessages": 5},
        "inputProcessors": ["unicode-normalizer", {"id": "beside", "options": {"then": "pass"}}],
        "errorProcessors": ["retry"],
        "tools": ["echo"],
        "outputProcessors": ["upper", "beside"],
    }
    failure = {"error": {"status": 400, "message": "not now"}}
    result, _ = await system.run(failure, CALL, DONE, agent=agent, memory={"thread": "t1", "resource": "r"})
    assert (result.status, result.retries) == ("finished", 1)
    spans = await kept.of_run(result.run_id)
    assert {span.context.trace_id for span in spans} == {spans[0].context.trace_id}

    (root,) = named(spans, "invoke_agent")
    commands = named(spans, "command ")
    commanded = {told(each)["procession.service"] for each in commands}
    assert commanded == {*SERVICES} - {"orchestrator", "output_processors"}  # which has leases instead
    assert {above(spans, each) for each in commands} == {root}
    places = [
        ("processInput unicode-normalizer", "command input_processors"),
        ("processInput beside", "command llm_gateway"),
        ("processInput message-history", "command memory"),
        ("processAPIError retry", "command error_recovery"),
        ("execute_tool echo", "command tools"),
        ("processOutputStream upper", "stream model"),
        ("processOutputResult beside", "stream model"),
        ("processOutputResult message-history", "command memory"),
    ]
    found = {(each.name, above(spans, each).name) for each in spans if each is not root}
    assert [place for place in places if place not in found] == []
    assert all(
        root.start_time <= each.start_time and each.end_time <= root.end_time for each in named(spans, "chat")
    )

    chats = sorted(named(spans, "chat"), key=lambda each: each.start_time)
    assert [told(each)["procession.model.outcome"] for each in chats] == ["failed", "finished", "finished"]
    assert {told(each)["gen_ai.operation.name"] for each in chats} == {"chat"}
    for each in chats[1:]:
        assert {"gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model", "gen_ai.response.id",
                "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens",
                "gen_ai.response.finish_reasons"} <= told(each).keys()  # fmt: skip
    tokens = [told(each)["gen_ai.usage.output_tokens"] for each in chats[1:]]
    assert told(root)["gen_ai.usage.output_tokens"] == sum(tokens)
    (tool,) = named(spans, "execute_tool")
    assert (told(tool)["gen_ai.operation.name"], told(tool)["gen_ai.tool.name"]) == ("execute_tool", "echo")
    assert told(root)["gen_ai.operation.name"] == "invoke_agent"
    content = ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions",
               "gen_ai.tool.call.arguments", "gen_ai.tool.call.result")  # fmt: skip
    assert [key for span in spans for key in content if key in told(span)] == []


async def test_neither_content_nor_secrets_are_told(traced):
    system, kept = traced
    result, _ = await system.run(CALL, DONE, text=PROMPT, agent=AGENT)
    failed, _ = await system.run(
        {"error": {"status": 400, "message": f"the prompt {PROMPT} is wrong"}}, text=PROMPT, agent=AGENT
    )
    assert failed.status == "failed"
    spans = [*await kept.of_run(result.run_id), *await kept.of_run(failed.run_id)]
    everything = "".join(span.to_json() for span in spans).lower()
    for word in (PROMPT, ARGUMENT, ANSWER, KEY):
        assert word not in everything
    (chat,) = [span for span in named(spans, "chat") if not span.status.is_ok]
    assert told(chat)["error.type"] == "400"
    (root,) = [span for span in named(spans, "invoke_agent") if not span.status.is_ok]
    assert told(root)["error.type"] == "MODEL_FAILED"


async def test_a_run_goes_on_in_the_trace_of_its_caller(traced):
    system, kept = traced
    trace, parent = "1234567890abcdef" * 2, "fedcba0987654321"
    tracing = {"traceparent": f"00-{trace}-{parent}-01"}
    result, _ = await system.run(DONE, tracing_context=tracing)
    spans = await kept.of_run(result.run_id)
    (root,) = named(spans, "invoke_agent")
    assert (f"{root.context.trace_id:032x}", f"{root.parent.span_id:016x}") == (trace, parent)
    assert {f"{span.context.trace_id:032x}" for span in spans} == {trace}


async def test_a_tripwire_names_its_processor(traced):
    system, kept = traced
    block = {"id": "block", "options": {"word": ANSWER}}
    result, _ = await system.run(DONE, agent={"outputProcessors": [block]})
    assert result.status == "blocked"
    spans = await kept.of_run(result.run_id)
    (root,) = named(spans, "invoke_agent")
    assert told(root)["procession.tripwire.processor"] == "block"
    (hook,) = named(spans, "processOutputStream block")
    assert told(hook)["procession.hook.outcome"] == "tripwire"
    (chat,) = named(spans, "chat")
    assert told(chat)["procession.model.outcome"] in ("cancelled", "finished")


async def test_what_a_processor_asks_a_model_is_below_its_hook(traced):
    system, kept = traced
    result, _ = await system.run(DONE, agent={"inputProcessors": [guard(system.script(CLEAN))]})
    assert result.status == "finished"
    spans = await kept.of_run(result.run_id)
    judging, answering = sorted(named(spans, "chat"), key=lambda each: each.end_time)
    hook = above(spans, judging)
    assert hook.name == "processInput moderation"
    assert above(spans, answering).name == "command llm_gateway"


async def test_a_guard_beside_the_model_belongs_to_the_models_command(traced):
    system, kept = traced
    beside = {"id": "beside", "options": {"then": "pass"}}
    result, _ = await system.run(DONE, agent={"inputProcessors": [beside]})
    assert result.status == "finished"
    spans = await kept.of_run(result.run_id)
    (hook,) = named(spans, "processInput beside")
    assert above(spans, hook).name == "command llm_gateway"


async def test_a_run_that_waited_for_a_person_stays_one_trace(traced):
    system, kept = traced
    call = {"tool_calls": [{"id": "c2", "name": "send-mail", "arguments": {"to": "x"}}]}
    handle = await system.start(call, DONE, agent={"tools": ["send-mail"]})
    assert [chunk["type"] async for chunk in handle][-1] == "tool-call-approval"
    await handle.approve("c2")
    result, _ = await finished(handle)
    assert result.status == "finished"
    spans = await kept.of_run(result.run_id)
    assert len(named(spans, "execute_tool send-mail")) == 1
    assert len(named(spans, "chat")) == 2
