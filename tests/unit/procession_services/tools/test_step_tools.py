"""Instances of tools are shared, and kept within limits."""

import gc
import weakref
from typing import Any

import pytest

from procession.processor import Options
from procession.registry import Registry
from procession.tools import Tool
from procession_schemas.agent import ToolRef
from procession_schemas.work import StepConfig
from procession_services.tools.step_tools import step_tools


class Text(Options):
    text: str


class Says(Tool):
    id = "says"
    options_type = Text


@pytest.fixture
def registry() -> Registry:
    made = Registry()
    made.add_tool(Says)
    return made


def tool_of(registry: Registry, text: str) -> Tool:
    refs = {"says": ToolRef(id="says", options={"text": text})}
    return step_tools(registry, StepConfig(model="m", tools=refs))["says"].tool


def test_the_same_options_are_the_same_instance(registry: Registry) -> None:
    assert tool_of(registry, "one") is tool_of(registry, "one")
    assert tool_of(registry, "one") is not tool_of(registry, "two")


def test_they_go_when_their_options_are_too_long_together(registry: Registry) -> None:
    living = weakref.WeakSet[Any]()
    for number in range(40):
        living.add(tool_of(registry, f"{number} {'x' * 500_000}"))
    gc.collect()
    assert len(living) == 16
