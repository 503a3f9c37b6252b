import re
from pathlib import Path

from examples.plugin import PROCESSORS
from procession import Hook, Registry

EXAMPLES = Path(__file__).parents[3] / "examples" / "processors"


def test_the_plugin_installs_every_example():
    written = set()
    for file in EXAMPLES.glob("*.py"):
        written |= set(re.findall(r"^class (\w+)\(Processor\[", file.read_text(), re.MULTILINE))
    assert {p.__name__ for p in PROCESSORS} == written
    registry = Registry.load(["examples.plugin"])
    for processor in PROCESSORS:
        assert registry.processor(processor.id) is processor
        assert processor.description
    assert "blocked-words" in registry.factories


def test_the_examples_show_every_hook():
    shown = frozenset().union(*(p.hooks_for({}) for p in PROCESSORS))
    assert shown == set(Hook)
