"""Instances are shared, and kept within limits."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
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
def made(living: weakref.WeakSet[Processor[Any]]) -> Callable[[str], Awaitable[Processor[Any]]]:
    """Gives the processor with such a text."""
    registry = Registry()
    registry.add_processor(Says)
    instances = Instances(registry)

    async def make(text: str) -> Processor[Any]:
        [link] = await instances.links([ProcessorRef(id="says", options={"text": text})])
        living.add(link.processor)
        return link.processor

    return make


async def test_the_same_options_are_the_same_instance(made: Any) -> None:
    assert await made("one") is await made("one")
    assert await made("one") is not await made("two")


async def test_the_least_recently_used_go_when_there_are_too_many(made: Any, living: Any) -> None:
    first = await made("first")
    for number in range(1_023):
        await made(str(number))
    assert await made("first") is first
    for number in range(1_023, 1_500):
        await made(str(number))
    gc.collect()
    assert await made("first") is first
    assert len(living) == 1_024 + 1, "the first one is kept in its array alone"


async def test_they_go_when_their_options_are_too_long_together(made: Any, living: Any) -> None:
    used = await made("used")
    for number in range(40):
        await made(f"{number} {'x' * 500_000}")
        assert await made("used") is used
    gc.collect()
    assert len(living) == 16 + 1, "the first one is kept in its array alone"


async def test_one_that_is_too_long_by_itself_is_shared_all_the_same(made: Any) -> None:
    text = "x" * 9_000_000
    assert await made(text) is await made(text)


@pytest.mark.parametrize(("texts", "beside"), [(["x"], False), (["x" * 5_000], True), (["x"] * 200, True)])
async def test_much_is_built_beside_the_event_loop_and_shared_all_the_same(
    texts: list[str], beside: bool
) -> None:
    loop, where = threading.current_thread(), set()

    class Noting(Processor[Text]):
        id = "noting"

        def __init__(self, options: Text) -> None:
            super().__init__(options)
            where.add(threading.current_thread() is not loop)

    registry = Registry()
    registry.add_processor(Noting)
    instances = Instances(registry)
    refs = [ProcessorRef(id="noting", as_=f"n{n}", options={"text": text}) for n, text in enumerate(texts)]
    one, other = await asyncio.gather(instances.links(refs), instances.links(refs))
    assert [link.processor for link in one] == [link.processor for link in other]
    assert where == {beside}
