import sys
import types

import pytest

from procession.args import RequestContext
from procession.errors import (
    BrokenComponentError,
    InvalidOptionsError,
    PluginError,
    UnknownComponentError,
)
from procession.processor import Options
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


WITHOUT_ID = """\
from procession import Processor
class A(Processor): pass
def register(registry):
    registry.add_processor(A)"""


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("x = 1\nraise ValueError('boom')", 2, "ValueError: boom"),
        ("\ndef f(:", 2, "SyntaxError: "),
        ("import sys\nsys.exit(0)", 2, "SystemExit: 0"),
        ("import not_installed", 1, "ModuleNotFoundError: No module named 'not_installed'"),
        ("x = 1", None, "has no function `def register(registry)`"),
        ("\ndef register(): pass", 2, "has no function `def register(registry)`"),
        ("async def register(registry): pass", 1, "has no function `def register(registry)`"),
        (
            "def register(r):\n  r.add_tool(lambda x: x)",
            2,
            "is not a class derived from Tool (`@tool` makes one",
        ),
        ("def register(r): r.add_processor(r)", 1, "is not a class derived from Processor"),
        (WITHOUT_ID, 4, 'A has no id; add `id = "my-processor"` to the class'),
    ],
)
def test_a_plugin_that_fails_is_told_with_its_line(tmp_path, monkeypatch, text, line, told):
    monkeypatch.syspath_prepend(tmp_path)
    name = f"plugin_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(PluginError) as caught:
        Registry.load([name])
    [said] = str(caught.value).splitlines()
    assert said.startswith(f"plugin {name}")
    assert told in said
    assert f"({tmp_path / name}.py{f':{line}' if line else ''})" in said


def test_all_plugins_that_fail_are_told(plugin):
    del plugin.register
    with pytest.raises(PluginError) as caught:
        Registry.load(["no_such_plugin", "a_plugin", "procession.no_such_part"])
    missing, without, part = str(caught.value).splitlines()
    assert missing.startswith(
        "plugin no_such_plugin: there is no module no_such_plugin on the Python path; start"
    )
    assert without == "plugin a_plugin has no function `def register(registry)`"
    assert part.startswith("plugin procession.no_such_part: there is no module procession.no_such_part on")


@pytest.mark.parametrize("plugin", ["shout.py", "./shout.py", "./shout", "../mine/shout.py", "/srv/shout.py"])
def test_a_plugin_that_is_named_as_a_file_is_told_the_name_of_its_module(plugin):
    with pytest.raises(PluginError) as caught:
        Registry.load([plugin])
    assert str(caught.value).startswith(
        f"plugin {plugin}: this is a file; name its module, shout, and start in the folder that contains it"
    )


def test_a_module_may_be_called_py(tmp_path, monkeypatch):
    (tmp_path / "py_parts").mkdir()
    (tmp_path / "py_parts" / "py.py").write_text("def register(registry): registry.factories['f'] = list")
    monkeypatch.syspath_prepend(tmp_path)
    assert "f" in Registry.load(["py_parts.py"]).factories


def test_a_component_whose_module_fails_is_broken():
    def load():
        raise ValueError("boom")

    registry = Registry()
    registry.tools.add_unloaded("saw", load, __name__)
    with pytest.raises(BrokenComponentError, match=r"^component saw: ValueError: boom$"):
        registry.tool("saw")


def test_two_classes_of_one_id_are_an_error():
    """The last one took the place of the other, a guard as it may be, without a word."""
    registry, one, other = Registry.load(), processor("mine"), processor("mine")
    registry.add_processor(one)
    registry.add_processor(one)
    with pytest.raises(TypeError, match="has the id 'mine' too; give one of the two another id"):
        registry.add_processor(other)
    assert registry.processor("mine") is one
    registry.add_processor(own := processor("unicode-normalizer"))
    assert registry.processor("unicode-normalizer") is own, "what is built in may be replaced"


def test_who_lacks_it_is_told_where_there_are_several():
    """A plugin that one service of several lacks: `unknown processor` alone sent its author to the agents file."""
    told = (
        r"unknown processor 'mine' in memory; registered: .*; is its plugin in the PROCESSION_PLUGINS of that"
    )
    with pytest.raises(UnknownComponentError, match=told):
        Registry.load(service="memory").processor("mine")


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
    with pytest.raises(UnknownComponentError, match=r"unknown tool 'x{300}…'; registered: none"):
        registry.tool("x" * 100_000)
    with pytest.raises(UnknownComponentError, match="unknown stop condition 'x'"):
        registry.stop_condition("x")


def test_of_many_ids_it_is_told_how_many_are_left_out():
    registry = Registry()
    for number in range(11):
        registry.add_processor(processor(f"p-{number:02}"))
    with pytest.raises(UnknownComponentError, match=r"registered: p-00, .*, p-07, and 3 more$"):
        registry.processor("x")


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


@pytest.mark.parametrize("made", ["unicode-normalizer", {"id": "u"}, None, 5])
async def test_what_a_factory_returns_must_be_a_list(made):
    registry = Registry()
    registry.factories["made"] = lambda context, options: made
    with pytest.raises(TypeError, match="it should return a list of ids"):
        await registry.make_array("made", RequestContext(), {})


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


class Count(Options):
    most_steps: int = 1


def registered(condition):
    registry = Registry()
    registry.stop_conditions["c"] = condition
    return registry


async def test_a_stop_condition_gets_its_options_as_its_second_parameter_says():
    def with_model(steps, options: Count):
        return options.most_steps == 3

    assert await registered(with_model).stops("c", [], {"mostSteps": 3})
    with pytest.raises(InvalidOptionsError, match=r"stop condition c: .*mostStep: ") as caught:
        registered(with_model).stop_options("c", {"mostStep": 3, "most_steps": "many"})
    assert sorted(caught.value.fields) == ["mostStep", "most_steps"]
    assert await registered(lambda steps, options: options["any"]).stops("c", [], {"any": 1}) is True


async def test_a_stop_condition_may_be_a_coroutine():
    async def never(steps, options):
        return ""

    assert await registered(never).stops("c", [], {}) is False


async def test_a_stop_condition_that_fails_is_named():
    def fails(steps, options):
        return steps[0]

    with pytest.raises(BrokenComponentError, match=r"^stop condition c: IndexError: "):
        await registered(fails).stops("c", [], {})
    with pytest.raises(BrokenComponentError, match=r"^stop condition c: TypeError: too many positional"):
        registered(lambda steps: True).stop_options("c", {})
