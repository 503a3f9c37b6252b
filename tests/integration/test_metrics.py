"""The metrics of a system, over HTTP."""

import asyncio
import json
import re
import socket
import urllib.request

import nats
import pytest
import pytest_asyncio

from procession_schemas import subjects
from tests.support.servers import own_servers
from tests.support.system import ROOT, SERVICES, running_system

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

CALL = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
REFUSED = {"error": {"status": 400, "message": "not now"}}
DONE = {"chunks": ["not ", "bad"]}


@pytest_asyncio.fixture(loop_scope="session")
async def servers(tmp_path):
    """Of its own: what other tests leave behind is counted too."""
    async with own_servers(tmp_path) as own:
        yield own.endpoints


async def test_metrics_are_served(servers, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with (
        running_system(servers, tmp_path) as system,
        system.inside(*SERVICES, metrics_port=port, max_deliver=2),
    ):
        await system.run(CALL, DONE, agent={"tools": ["echo"], "inputProcessors": ["unicode-normalizer"]})
        await system.run(DONE, agent={"outputProcessors": [{"id": "block", "options": {"word": "bad"}}]})
        broken = [{"id": "beside", "options": {"then": "fail", "parallel": False}, "onError": "skip"}]
        await system.run(REFUSED, DONE, agent={"errorProcessors": ["retry"], "inputProcessors": broken})
        paid = await paying(system)
        await unreadable(system)
        text = await scraped(port, consumers=9, series="procession_dead_letters_total{")
    series = dict(re.findall(r"^(procession_[^ ]+) (\S+)$", text, re.MULTILINE))
    model = json.dumps(paid)
    hook, failed = (
        'hook="processInput",processor="unicode-normalizer"',
        'hook="processInput",processor="beside"',
    )
    expected = {
        "procession_runs_accepted_total": 4,
        'procession_runs_total{status="finished"}': 3,
        'procession_runs_total{status="blocked"}': 1,
        'procession_run_seconds_count{status="finished"}': 3,
        "procession_run_retries_total": 1,
        'procession_command_seconds_count{outcome="ok",service="tools"}': 1,
        'procession_commands_in_flight{service="llm_gateway"}': 0,
        'procession_tripwires_total{hook="processOutputStream",processor="block"}': 1,
        f"procession_processor_calls_total{{{hook}}}": 1,
        f"procession_processor_errors_total{{{failed}}}": 1,
        'procession_tool_calls_total{outcome="ok",tool="echo"}': 1,
        'procession_tool_seconds_count{tool="echo"}': 1,
        f'procession_model_calls_total{{model={model},outcome="finished"}}': 1,
        f"procession_model_seconds_count{{model={model}}}": 1,
        f"procession_model_first_chunk_seconds_count{{model={model}}}": 1,
        f'procession_model_tokens_total{{model={model},type="input"}}': 10,
        f'procession_model_tokens_total{{model={model},type="output"}}': 5,
        f"procession_model_cost_dollars_total{{model={model}}}": 15,
        'procession_consumer_lag{consumer="orchestrator-runs",stream="RUNS"}': 0,
        'procession_consumer_unacknowledged{consumer="tools",stream="WORK"}': 0,
        'procession_redeliveries_total{consumer="tools"}': 1,
        'procession_dead_letters_total{consumer="tools"}': 1,
        "procession_stream_failovers_total": 0,
        "procession_runs_running": 0,
        "procession_runs_waiting": 0,
    }
    assert {name: float(series.get(name, -1)) for name in expected} == expected
    assert float(series[f"procession_processor_seconds_total{{{hook}}}"]) > 0
    assert float(series['procession_chunks_total{service="llm_gateway"}']) > 0
    told = {name.partition("{")[0] for name in series}
    documented = (ROOT / "docs/how-to/observe.md").read_text()
    missing = set(re.findall(r"`(procession_\w+)`", documented)) - told
    assert {name for name in missing if f"{name}_count" not in told} == {
        "procession_configuration_refused",
        "procession_processor_warnings_total",
        "procession_requests_rejected_total",
    }
    assert "run_id" not in text
    assert system.client.tenant not in text


async def paying(system):
    """A run of a model whose every token costs a dollar; the model's name."""
    import litellm  # noqa: PLC0415 - the gateway has loaded it in its own way

    model = system.script(DONE)
    price = {
        "input_cost_per_token": 1,
        "output_cost_per_token": 1,
        "litellm_provider": "openai",
        "mode": "chat",
    }
    litellm.register_model({model: price})
    await system.run(agent={"model": model})
    return model


async def unreadable(system):
    """A command that nobody can read; it lies in DEAD at the end."""
    connection = await nats.connect(system.servers.nats_url)
    tenant = system.client.tenant
    buried = await connection.subscribe(subjects.dead("WORK", "tools", tenant, "r1"))
    await connection.jetstream().publish(subjects.work("tools", tenant, "r1"), b"{}")
    await buried.next_msg(timeout=20)
    await connection.close()


async def scraped(port, consumers, series):
    """The metrics, once JetStream has told the lag of so many consumers, and that series is there."""
    async with asyncio.timeout(10):
        while True:
            text = await asyncio.to_thread(page, f"http://127.0.0.1:{port}/metrics")
            if text.count("procession_consumer_lag{") == consumers and series in text:
                return text


def page(url):
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()
