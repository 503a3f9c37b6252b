"""What a model operation refuses before anything is asked."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from procession.args import AbortSignal
from procession.context import RunContext
from procession.errors import ProcessorError
from procession.message_list import MessageList
from procession_schemas.agent import StructuredOutput
from procession_schemas.work import ModelOp, StepConfig
from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.ending import Ending
from procession_services.llm_gateway.handlers import ModelRunner, _Answer, _guarded, _replay
from tests.unit.procession.making import context


async def test_a_step_cannot_ask_for_a_second_model():
    """The processors of a run are fixed when it begins; ignoring the wish would give text in place of an object."""
    messages = MessageList(new_id=lambda: "m", now=lambda: "2026-01-01T00:00:00.000Z")
    ctx = RunContext(run_id="r", tenant="t", agent="a", message_id="m", messages=messages)
    wish = StructuredOutput.model_validate({"schema": {}, "model": "m/second"})
    ctx.config = StepConfig(model="m/one", structured_output=wish)
    job: Any = SimpleNamespace(ctx=ctx)
    runner = object.__new__(ModelRunner)  # it needs no provider to refuse
    with pytest.raises(ProcessorError, match=r"structuredOutput\.model"):
        runner._call(ModelOp(), job)


@pytest.mark.parametrize("cancelled", [True, False])
async def test_who_is_cancelled_while_a_cut_is_under_way_is_cancelled(cancelled):
    closing, may_close = asyncio.Event(), asyncio.Event()

    async def flush():
        pass

    async def source():
        try:
            yield [{"type": "step-start", "payload": {}}]
            await asyncio.sleep(20)
        finally:
            closing.set()
            await may_close.wait()

    signal = AbortSignal()
    outbox = SimpleNamespace(flush=flush)
    config = SimpleNamespace(structured_output=None)
    job: Any = SimpleNamespace(ctx=SimpleNamespace(config=config), abort_signal=signal, outbox=outbox)
    op: Any = SimpleNamespace(keep_chunks=False, processors=[])
    answer = _Answer(op, job, None, Ending(ModelCall(model="m/x", prompt=[])))  # type: ignore[arg-type]  # there are no processors to stream to
    task = asyncio.ensure_future(answer.take(source()))
    for _ in range(5):
        await asyncio.sleep(0)
    signal.abort()
    await closing.wait()
    if cancelled:
        task.cancel()
    may_close.set()
    await asyncio.wait([task], timeout=10)
    assert task.done()
    assert task.cancelled() == cancelled


@pytest.mark.parametrize("given", [[], ["finish"], ["step-start", "finish"]])
async def test_every_replayed_answer_begins_with_one_step_start(given):
    """R-CH-4."""
    ctx = context()
    ctx.cached = {"chunks": [{"type": kind, "payload": {}} for kind in given], "warnings": ["w"]}
    chunks = [chunk async for batch in _guarded(_replay(ctx.cached), ctx) for chunk in batch]
    assert [chunk["type"] for chunk in chunks] == ["step-start", *(["finish"] if given else [])]
    assert chunks[0]["payload"] == {"messageId": "answer", "request": {}, "warnings": ["w"]}
