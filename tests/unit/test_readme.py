"""What the README and the example files show is true."""

import asyncio
import json
import re
import textwrap
from pathlib import Path
from typing import Any

import nats
import pytest

from procession import Procession, Registry
from procession_services.runtime.agents import read_agents
from procession_services.runtime.check import check
from procession_services.runtime.settings import Settings
from tests.support.wire import services_at

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def snippet(language, number):
    found = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return found[number]


@pytest.fixture
async def services(servers):
    async with services_at(servers.nats_url) as services:
        yield services


async def serve(services, *, run=None):
    _, request = await services.request()
    run = request["runId"]
    await services.accept(run)
    await services.chunks(run, 0, "Hel")
    await services.chunks(run, 1, "lo", end=True)
    await services.finish(run, "Hello")


async def test_three_lines_stream_an_answer(servers, services, capsys):
    code = snippet("python", 0).replace('"nats://127.0.0.1:4222"', "url, tenant=tenant")
    names: dict[str, Any] = {"Procession": Procession, "url": servers.nats_url, "tenant": services.tenant}
    exec(f"async def example():\n{textwrap.indent(code, '    ')}", names)
    await asyncio.gather(names["example"](), serve(services))
    assert "'text': 'Hel'" in capsys.readouterr().out


async def test_a_request_without_our_client(servers, services, capsys):
    code = snippet("python", 1).replace(".default.", f".{services.tenant}.")
    names: dict[str, Any] = {"nats": nats, "json": json}
    exec(code, names)
    await asyncio.gather(names["ask"](servers.nats_url), serve(services))
    assert "'text': 'lo'" in capsys.readouterr().out


def test_a_processor_of_ones_own():
    names: dict[str, Any] = {}
    exec(snippet("python", 2), names)
    registry = Registry()
    names["register"](registry)
    [hook] = registry.processor("shout").hooks_for({})
    assert hook == "processOutputStream"


def test_the_agent_shown_is_one(tmp_path):
    path = tmp_path / "agents.yaml"
    path.write_text(snippet("yaml", 0))
    assert list(read_agents(path).agents) == ["demo"]
    assert check(Settings(agents=path)) == []


def test_the_example_agents_are_right():
    path = ROOT / "examples" / "agents.yaml"
    assert check(Settings(agents=path)) == []


def test_every_link_leads_somewhere():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
