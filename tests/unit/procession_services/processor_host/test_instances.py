"""Instances are shared, and kept within limits."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from procession.processor import Options, Processor
from procession.registry import Registry
from procession_schemas.agent import ProcessorRef
from procession_services.processor_host.instances import Instances


class Text(Options):
    text: str


class Says(Processor[Text]):
    id = "says"


@pytest.fixture
def living() -> weakref.WeakSet[Processor[Any]]:
    """Those that were made and are still there."""
    return weakref.WeakSet()


@pytest.fixture
def made(living: weakref.WeakSet[Processor[Any]]) -> Callable[[str], Processor[Any]]:
    """Gives the processor with such a text."""
    registry = Registry()
    registry.add_processor(Says)
    instances = Instances(registry)

    def make(text: str) -> Processor[Any]:
        [link] = instances.links([ProcessorRef(id="says", options={"text": text})])
        living.add(link.processor)
        return link.processor

    return make


def test_the_same_options_are_the_same_instance(made: Any) -> None:
    assert made("one") is made("one")
    assert made("one") is not made("two")


def test_the_least_recently_used_go_when_there_are_too_many(made: Any, living: Any) -> None:
    first = made("first")
    for number in range(1_023):
        made(str(number))
    assert made("first") is first
    for number in range(1_023, 1_500):
        made(str(number))
    gc.collect()
    assert made("first") is first
    assert len(living) == 1_024 + 1, "the first one is kept in its array alone"


def test_they_go_when_their_options_are_too_long_together(made: Any, living: Any) -> None:
    used = made("used")
    for number in range(40):
        made(f"{number} {'x' * 500_000}")
        assert made("used") is used
    gc.collect()
    assert len(living) == 16 + 1, "the first one is kept in its array alone"


def test_one_that_is_too_long_by_itself_is_shared_all_the_same(made: Any) -> None:
    text = "x" * 9_000_000
    assert made(text) is made(text)
