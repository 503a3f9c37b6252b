import sys
import types

import pytest

from procession.args import RequestContext
from procession.errors import UnknownComponentError
from procession.registry import Registry
from procession.tools import tool
from tests.unit.procession.making import processor


@pytest.fixture
def plugin():
    """A plugin module that notes with what it was called."""
    module = types.ModuleType("a_plugin")
    module.register = lambda registry: registry.add_processor(processor("from-plugin"))  # type: ignore[attr-defined]
    sys.modules["a_plugin"] = module
    yield module
    del sys.modules["a_plugin"]


def test_entry_points_are_found():
    registry = Registry.load()
    assert registry.processor("unicode-normalizer").id == "unicode-normalizer"
    assert registry.tool("calculator").id == "calculator"


def test_plugins_register_their_own(plugin):
    assert Registry.load(["a_plugin"]).processor("from-plugin").id == "from-plugin"


def test_a_plugin_needs_a_function_register(plugin):
    del plugin.register
    with pytest.raises(UnknownComponentError, match=r"a_plugin has no function register\(registry\)"):
        Registry.load(["a_plugin"])


def test_a_plugin_that_is_missing_is_an_import_error():
    with pytest.raises(ImportError):
        Registry.load(["no_such_plugin"])


def test_an_unknown_id_lists_the_nearest():
    registry = Registry()
    for name in ("word-counter", "lowercase"):
        registry.add_processor(processor(name))
    with pytest.raises(
        UnknownComponentError, match=r"unknown processor 'word-count'; registered: word-counter, lowercase"
    ):
        registry.processor("word-count")
    with pytest.raises(UnknownComponentError, match="unknown tool 'x'; registered: none"):
        registry.tool("x")
    with pytest.raises(UnknownComponentError, match="unknown stop condition 'x'"):
        registry.stop_condition("x")


async def test_factories_may_be_sync_or_async():
    """R-CF-2."""
    registry = Registry()

    async def later(context, options):
        return [context["who"], options["n"]]

    registry.factories.update(later=later, now=lambda context, options: [context["who"]])
    assert await registry.make_array("later", RequestContext(who="u"), {"n": 1}) == ["u", 1]
    assert await registry.make_array("now", RequestContext(who="u"), {}) == ["u"]
    with pytest.raises(UnknownComponentError, match="unknown factory 'never'; registered: later, now"):
        await registry.make_array("never", RequestContext(), {})


def test_tools_and_stop_conditions_are_found():
    registry = Registry()

    @tool
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    registry.add_tool(add)
    registry.stop_conditions["never"] = lambda steps, options: False
    assert registry.tool("add") is add
    assert registry.stop_condition("never")([], {}) is False
