"""`tool-call-filter.json`: the prompts of the steps of one request, one after another."""

import copy
from typing import Any

from pydantic import ValidationError

from procession import hooks
from procession.calls import Calls, Link
from procession.context import RunContext
from procession.errors import InvalidOptionsError
from procession.message_list import MessageList
from procession.testing import environment
from procession_services.processors.tool_call_filter import ToolCallFilter, ToolCallFilterOptions

_NOW = "2026-01-01T00:00:00.000Z"


async def observe(vector: dict[str, Any]) -> Any:
    """Makes the filter and shows it each prompt."""
    options = vector["options"] if isinstance(vector["options"], dict) else {}
    try:
        if options.get("asNull"):
            ToolCallFilterOptions.model_validate(None)
        made = ToolCallFilter.build({k: v for k, v in options.items() if v != "<undefined>"})
    except (InvalidOptionsError, ValidationError) as error:
        return {"throws": str(error)}
    if vector["input"].get("hook", vector["input"].get("call")) == "constructor":
        return {"ok": True}
    context = RunContext(
        run_id="r1",
        tenant="test",
        agent="",
        message_id="answer",
        messages=MessageList(new_id=map("made-{}".format, range(99)).__next__, now=lambda: _NOW),
    )
    calls, link = Calls(clock=lambda: 0, environment=environment()), Link(made, made.id)
    return {"steps": [await _step(prompt, context, calls, link) for prompt in vector["input"]["steps"]]}


async def _step(prompt: list[Any], context: RunContext, calls: Calls, link: Link) -> dict[str, Any]:
    before = copy.deepcopy(prompt)
    context.prompt = prompt
    await hooks.run_llm_request(context, [link], calls, None)
    if context.prompt is prompt:
        return {"unchanged": True}
    return {"prompt": context.prompt, "inputMutated": prompt != before}


def override(vector: dict[str, Any], observed: Any, differences: list[str]) -> str | None:
    """D-70: what the reference takes for `exclude` and then filters nothing by, is refused."""
    given = vector["options"].get("exclude", []) if isinstance(vector["options"], dict) else []
    refused = set(observed) == {"throws"} and "exclude" in observed["throws"]
    harmless = all(step == {"unchanged": True} for step in vector["expected"].get("steps", []))
    wrong = given != "<undefined>" and not isinstance(given, list)
    return "D-70" if wrong and refused and harmless else None
