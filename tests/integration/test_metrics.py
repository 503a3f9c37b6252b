"""The metrics of a system, over HTTP."""

import asyncio
import json
import re
import socket
import urllib.request

import pytest

from tests.support.system import SERVICES, running_system

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

CALL = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
DONE = {"chunks": ["not ", "bad"]}


async def test_metrics_are_served(servers, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with running_system(servers, tmp_path) as system, system.inside(*SERVICES, metrics_port=port):
        await system.run(CALL, DONE, agent={"tools": ["echo"], "inputProcessors": ["unicode-normalizer"]})
        await system.run(DONE, agent={"outputProcessors": [{"id": "block", "options": {"word": "bad"}}]})
        text = await scraped(port, consumers=9)
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


async def scraped(port, consumers):
    """The metrics, once JetStream has told the lag of so many consumers."""
    async with asyncio.timeout(10):
        while True:
            text = await asyncio.to_thread(page, f"http://127.0.0.1:{port}/metrics")
            if text.count("procession_consumer_lag{") == consumers:
                return text


def page(url):
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()
