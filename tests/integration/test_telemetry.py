"""The trace of a run over all services, what is not in it, and the metrics over HTTP."""

import asyncio
import json
import re
import socket
import urllib.request

import pytest
import pytest_asyncio

from tests.support.spans import observed, told
from tests.support.system import SERVICES, running_system

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
    services = [told(each)["procession.service"] for each in sorted(commands, key=lambda each: each.start_time)]
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
    assert told(chat)["error.type"] == "ProviderError"
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


async def test_a_run_that_waited_for_a_person_stays_one_trace(traced):
    system, kept = traced
    call = {"tool_calls": [{"id": "c2", "name": "send_mail", "arguments": {"to": "x"}}]}
    handle = await system.start(call, DONE, agent={"tools": ["send_mail"], "requireToolApproval": True})
    suspended = await handle.result()
    assert suspended.status == "suspended"
    await handle.approve("c2")
    result = await handle.result()
    await handle.close()
    spans = await kept.of_run(result.run_id)
    assert len(named(spans, "execute_tool send_mail")) == 1
    assert len(named(spans, "chat")) == 2


async def test_metrics_are_served(servers, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with running_system(servers, tmp_path) as system, system.inside(*SERVICES, metrics_port=port):
        block = {"id": "block", "options": {"word": ANSWER}}
        await system.run(CALL, DONE, text=PROMPT, agent=AGENT)
        await system.run(DONE, agent={"outputProcessors": [block]})
        async with asyncio.timeout(10):
            while not (text := await asyncio.to_thread(scraped, port)).count("procession_consumer_lag{") == 9:
                await asyncio.sleep(0.05)
    series = dict(re.findall(r"^(procession_[^ ]+) (\S+)$", text, re.MULTILINE))
    model = json.dumps(next(iter(re.findall(r'model_calls_total\{model="([^"]*)"', text))))
    expected = {
        "procession_runs_accepted_total": 2,
        'procession_runs_total{status="finished"}': 1,
        'procession_runs_total{status="blocked"}': 1,
        'procession_run_seconds_count{status="finished"}': 1,
        'procession_command_seconds_count{outcome="ok",service="tools"}': 1,
        'procession_commands_in_flight{service="llm_gateway"}': 0,
        'procession_tripwires_total{hook="processOutputStream",processor="block"}': 1,
        'procession_processor_calls_total{hook="processInput",processor="unicode-normalizer"}': 1,
        'procession_tool_calls_total{outcome="ok",tool="echo"}': 1,
        f'procession_model_calls_total{{model={model},outcome="finished"}}': 2,
        'procession_consumer_lag{consumer="orchestrator-runs",stream="RUNS"}': 0,
        "procession_stream_failovers_total": 0,
    }
    assert {name: float(series.get(name, -1)) for name in expected} == expected
    assert float(series['procession_chunks_total{service="llm_gateway"}']) > 0
    assert "run_id" not in text
    assert system.client.tenant not in text


def scraped(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return answer.read().decode()
