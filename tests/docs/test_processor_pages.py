"""Every built-in processor has a page that names its options, whose snippets work, and a line in the index."""

import asyncio
import inspect
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from procession.registry import Registry
from procession_schemas.agent import Agent

PAGES = Path(__file__).parents[2] / "docs" / "processors"
INDEX = (PAGES / "README.md").read_text(encoding="utf-8")
REGISTRY = Registry.load()
IDS = sorted(
    name
    for name, processor in REGISTRY.processors.items()
    if processor.__module__.startswith("procession_services.processors.") and "/" not in name
)
LETTERS = {
    "processInput": "I", "processInputStep": "IS", "processLLMRequest": "RQ", "processLLMResponse": "RS",
    "processOutputStream": "S", "processOutputStep": "OS", "processOutputResult": "R", "processAPIError": "E",
}  # fmt: skip
_FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OWN_PAGE_ELSEWHERE = {"memory-token-limiter"}


def page_of(name):
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in IDS if name not in OWN_PAGE_ELSEWHERE])
def test_the_page_names_every_option(name):
    page = page_of(name)
    for field, option in REGISTRY.processors[name].options_type().model_fields.items():
        assert re.search(rf"`{option.alias or field}[`.]", page), (
            f"{name}.md does not say what {option.alias} is"
        )


@pytest.mark.parametrize("name", IDS)
def test_the_index_has_a_line_with_its_hooks(name):
    [line] = [line for line in INDEX.splitlines() if re.match(rf"\| \[?`?{name}`?\b[\]` ]", line)]
    hooks = {LETTERS[hook] for hook in REGISTRY.processors[name].hooks_for({})}
    assert set(line.split("|")[2].split()) == hooks


def snippets(language):
    return [
        pytest.param(
            path, m[2], id=f"{path.name}:{path.read_text(encoding='utf-8')[: m.start()].count(chr(10)) + 2}"
        )
        for path in sorted(PAGES.glob("*.md"))
        for m in _FENCE.finditer(path.read_text(encoding="utf-8"))
        if m[1] == language
    ]


@pytest.mark.parametrize(("path", "code"), snippets("python"))
def test_python_runs(path, code):
    names = {"__name__": "snippet"}
    exec(compile(code, str(path), "exec"), names)
    for name, test in list(names.items()):
        if name.startswith("test_") and inspect.iscoroutinefunction(test):
            asyncio.run(test())


@pytest.mark.parametrize(("path", "code"), snippets("yaml"))
def test_configuration_is_valid(path, code):
    told = yaml.safe_load(code)
    for name, fields in (told.get("agents") or {}).items():
        agent = Agent.model_validate({"name": name, "model": "a/b", **fields})
        arrays: Any = (agent.input_processors, agent.output_processors, agent.error_processors)
        for ref in chain.from_iterable(array or () for array in arrays):
            if ref.id in REGISTRY.processors:
                REGISTRY.processors[ref.id].build(ref.options)


def test_links_lead_somewhere():
    for path in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert target.startswith("http") or (path.parent / target).exists(), f"{path.name}: {target}"
