"""What a model operation refuses before anything is asked."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from procession.args import AbortSignal
from procession.context import RunContext
from procession.errors import ProcessorError
from procession.message_list import MessageList
from procession_schemas.agent import ModelEntry, StructuredOutput
from procession_schemas.work import ModelOp, StepConfig
from procession_services.llm_gateway.core.call import ModelCall
from procession_services.llm_gateway.core.ending import Ending
from procession_services.llm_gateway.handlers import ModelRunner, _Answer, _guarded, _keep_partial, _replay
from tests.unit.procession.making import context, delta
from tests.unit.procession.test_steps import FINISH


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


def test_the_headers_of_an_entry_come_before_those_of_memory():
    ctx = context()
    ctx.config = StepConfig(model="m/one", active_tools=["t"])
    ctx.request_context["MastraMemory"] = {"thread": {"id": "thread"}, "resourceId": "resource"}
    runner, job = object.__new__(ModelRunner), cast("Any", SimpleNamespace(ctx=ctx))
    call = runner._call(ModelOp(entry=ModelEntry(model="m/one", headers={"x-thread-id": "own"})), job)
    assert call.headers == {"x-thread-id": "own", "x-resource-id": "resource"}
    assert call.active_tools == ["t"]


@pytest.mark.parametrize(
    ("memory", "told"),
    [
        ("no object", {}),
        ({"thread": "no object"}, {}),
        ({"thread": {"id": 5}, "resourceId": None}, {}),
        ({"thread": {"id": "t"}}, {"x-thread-id": "t"}),
    ],
)
def test_memory_of_another_shape_in_the_request_context_fails_no_call(memory, told):
    """Callers and processors may write there what they like; five attempts would end in WORK_FAILED."""
    ctx = context()
    ctx.config = StepConfig(model="m/one")
    ctx.request_context["MastraMemory"] = memory
    runner, job = object.__new__(ModelRunner), cast("Any", SimpleNamespace(ctx=ctx))
    assert runner._call(ModelOp(), job).headers == told


@pytest.mark.parametrize("began", [False, True])
def test_a_call_that_a_guard_breaks_off_is_paid_for_once_it_has_begun_to_answer(began):
    booked: list[Any] = []
    ledger, provider = (
        SimpleNamespace(add=lambda *each: booked.append(each)),
        SimpleNamespace(cost=lambda *_: None),
    )
    runner = ModelRunner(cast("Any", provider), cast("Any", None), cast("Any", ledger), cast("Any", None))
    job = cast("Any", SimpleNamespace(ctx=context(), result=SimpleNamespace()))
    call = ModelCall(model="m/x", prompt=[])
    runner._refused(job, call, [{"type": "step-start", "payload": {}}, *([delta("a")] if began else [])])
    assert (len(booked), job.result.model.calls) == (began, 1)


def test_what_is_cancelled_before_it_has_said_anything_leaves_no_message():
    ctx = context()
    _keep_partial(ctx, [])
    assert not ctx.messages.get.response.db()


def test_a_cached_answer_that_a_guard_keeps_from_being_seen_has_used_nothing():
    ctx = context()
    ctx.cached = {}
    job, finish = cast("Any", SimpleNamespace(ctx=ctx)), cast("Any", FINISH)
    object.__new__(ModelRunner)._refused(job, ModelCall(model="m/x", prompt=[]), [finish])
    assert not ctx.usage


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
