"""Operations that any service runs."""

from types import SimpleNamespace
from typing import Any

import pytest

from procession_schemas.work import OpenOp
from procession_services.processor_host.ops import open_run
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
