"""The stop conditions that come along (R-LP-3)."""

import pytest

from procession.errors import InvalidOptionsError
from procession.registry import Registry

REGISTRY = Registry.load()


def step(*tools):
    return {"toolCalls": [{"toolName": name} for name in tools]}


@pytest.mark.parametrize(
    ("condition", "options", "steps", "stops"),
    [
        ("step-count-is", {}, [step()], True),
        ("step-count-is", {"count": 2}, [step()], False),
        ("step-count-is", {"count": 2}, [step(), step()], True),
        ("has-tool-call", {}, [step()], False),
        ("has-tool-call", {}, [], False),
        ("has-tool-call", {}, [step("a")], True),
        ("has-tool-call", {"toolName": "b"}, [step("a")], False),
        ("has-tool-call", {"tool_name": "b"}, [step("a", "b")], True),
        ("has-tool-call", {"toolName": "b"}, [step("b"), step("a")], False),
    ],
)
async def test_they_look_at_the_steps(condition, options, steps, stops):
    assert await REGISTRY.stops(condition, steps, options) is stops


@pytest.mark.parametrize(
    ("condition", "options", "field"),
    [
        ("step-count-is", {"count": "many"}, "count"),
        ("step-count-is", {"count": 0}, "count"),
        ("step-count-is", {"steps": 2}, "steps"),
        ("has-tool-call", {"tool": "a"}, "tool"),
    ],
)
def test_wrong_options_are_named(condition, options, field):
    with pytest.raises(InvalidOptionsError) as caught:
        REGISTRY.stop_options(condition, options)
    assert list(caught.value.fields) == [field]
