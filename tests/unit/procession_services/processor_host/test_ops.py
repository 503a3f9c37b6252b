"""Operations that any service runs."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from procession.registry import Registry
from procession_schemas.agent import FactoryRef
from procession_schemas.validation import RefusedError
from procession_schemas.work import ArraysOp, OpenOp
from procession_services.processor_host import factories
from procession_services.processor_host.ops import arrays, open_run
from tests.unit.procession.making import context

MEMORY = {"thread": {"id": "t"}, "resourceId": "r", "memoryConfig": {"readOnly": False}}


async def opened(**given: Any) -> Any:
    ctx = context()
    job: Any = SimpleNamespace(ctx=ctx)
    await open_run(OpenOp(input=["q"], **given), job)
    return ctx.messages


@pytest.mark.parametrize(("memory", "place"), [(MEMORY, {"threadId": "t", "resourceId": "r"}), (None, {})])
async def test_messages_of_a_run_with_memory_name_thread_and_resource(memory, place):
    """7.1."""
    messages = await opened(memory=memory)
    messages.add({"role": "assistant", "content": "a"}, "response")
    for message in messages.get.all.db():
        assert {key: message[key] for key in ("threadId", "resourceId") if key in message} == place


async def test_what_a_processor_adds_for_the_thread_joins_the_answer():
    """R-ML-6: a processor may copy the thread from a recalled message."""
    messages = await opened(memory=MEMORY)
    messages.add({"role": "assistant", "content": "a"}, "response")
    messages.add({"role": "assistant", "content": "b", "threadId": "t"}, "response")
    assert len(messages.get.response.db()) == 1


@pytest.mark.parametrize("kind", ["output", "error"])
async def test_a_factory_that_gives_nothing_is_not_waited_for(monkeypatch, kind):
    """Orchestrators call it while requests of others wait for their turn."""
    monkeypatch.setattr(factories, "_SECONDS", 0.05)
    registry = Registry()

    async def hangs(_context: Any, _options: Any) -> list[Any]:
        await asyncio.Event().wait()
        return []

    registry.factories["made"] = hangs
    job: Any = SimpleNamespace(ctx=context(), registry=registry, result=SimpleNamespace(arrays=None))
    async with asyncio.timeout(5):
        with pytest.raises(RefusedError, match=r"nothing within 0\.05 seconds") as refused:
            await arrays(ArraysOp(factories={kind: FactoryRef(factory="made")}), job)
    failure = refused.value.failure
    assert (failure.code, failure.field) == ("FACTORY_FAILED", f"{kind}Processors.factory")
