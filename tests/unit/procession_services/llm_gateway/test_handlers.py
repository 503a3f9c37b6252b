"""What a model operation refuses before anything is asked."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from procession.args import AbortSignal
from procession.context import RunContext
from procession.errors import ProcessorError
from procession.message_list import MessageList
from procession.testing.environment import DictStore
from procession_schemas.agent import StructuredOutput
from procession_schemas.work import ModelOp, StepConfig
from procession_services.llm_gateway.handlers import ModelRunner, _Answer
from procession_services.processor_host.stream_session import Session


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


async def test_an_answer_that_has_ended_is_whole_whatever_came_of_it_at_once() -> None:
    done: dict[str, Any] = {"lent": {}, "usage": {}}

    async def at_once(*_args: Any, ended: bool, **_options: Any) -> Session:
        session = Session("s", [], AsyncMock(), DictStore(), ended=ended, outcome=done)
        session.ended_early.set_result(None)
        return session

    async def sent(*_args: Any, **_options: Any) -> bool:
        await asyncio.sleep(0)
        return False

    async def source() -> AsyncIterator[list[Any]]:
        yield [{"type": "text-delta"}, {"type": "finish"}]

    ctx = SimpleNamespace(config=SimpleNamespace(structured_output=None))
    job: Any = SimpleNamespace(ctx=ctx, abort_signal=AbortSignal(), ops_from=lambda _op: [])
    op = ModelOp.model_validate({"processors": [{"id": "upper"}]})
    streams: Any = SimpleNamespace(open=at_once, send=sent, finish=AsyncMock(return_value=done), close=Mock())
    answer = _Answer(op, job, streams)
    await answer.take(source())
    assert (answer.whole, answer.lent) == (True, done)
