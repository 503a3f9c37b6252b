"""The page about the demo model says all that a script and a load may have, and its script plays."""

import json
import re
from pathlib import Path

import httpx
import pytest
import yaml

from procession_schemas.agent import Agent
from procession_services.demo_model import serve
from procession_services.demo_model.scripts import ScriptedBreak, ScriptedCall, ScriptedError, ScriptedUsage
from procession_services.demo_model.synthetic import Load, load_of

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "test-without-a-provider.md").read_text(
    encoding="utf-8"
)
FILES = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL))
SCRIPT, LOAD = PAGE.split("\n## ")[1:]


@pytest.mark.parametrize("model", [ScriptedCall, ScriptedError, ScriptedBreak, ScriptedUsage])
def test_every_field_of_a_script_is_there(model):
    assert [name for name in model.model_fields if not re.search(rf'[`"]{name}[`"]', SCRIPT)] == []


def test_every_key_of_a_load_is_there():
    rows = "".join(line.split("|")[1] for line in LOAD.splitlines() if line.startswith("| `"))
    assert sorted(re.findall(r"`(\w+)`", rows)) == sorted(Load.model_fields)


def test_the_loads_of_the_page_are_some():
    models = re.findall(r"`openai/mock:([^<`]+)`", PAGE)
    inline = re.findall(r"`(\[\[mock .*?\]\])`", PAGE)
    assert (len(models), len(inline)) == (1, 1)
    for keys in models:
        assert load_of(keys, None, []) == Load(chunks=500, bytes=40, delay=5)
    for text in inline:
        assert load_of(None, None, [{"role": "user", "content": text}]) == Load(chunks=2, tools=1)


async def test_the_script_of_the_page_fails_calls_a_tool_and_answers():
    [(name, fields)] = yaml.safe_load(FILES["agents.yaml"])["agents"].items()
    agent = Agent.model_validate({"name": name, **fields})
    body = {
        "model": str(agent.model).removeprefix("openai/"),
        "messages": [{"role": "user", "content": "hi"}],
    }
    async with await serve() as server, httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
        assert (await http.post("/mock/script", json=json.loads(FILES["script.json"]))).json() == {"ok": True}
        failed, called, answered = [await http.post("/v1/chat/completions", json=body) for _ in range(3)]
        requests = (await http.get("/mock/script/paris")).json()["requests"]
    assert (failed.status_code, len(requests)) == (503, 3)
    [call] = called.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city":"Paris"}'}
    assert answered.json()["choices"][0]["message"]["content"] == "It is warm."
