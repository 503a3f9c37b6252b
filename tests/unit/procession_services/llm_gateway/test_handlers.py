"""What a model operation refuses before anything is asked."""

from types import SimpleNamespace
from typing import Any

import pytest

from procession.context import RunContext
from procession.errors import ProcessorError
from procession.message_list import MessageList
from procession_schemas.agent import StructuredOutput
from procession_schemas.work import ModelOp, StepConfig
from procession_services.llm_gateway.handlers import ModelRunner


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
