"""`model-selection.json`: the decision for a request, the models of its steps; wrong options."""

import json
from typing import Any

from procession.args import InputArgs, InputStepArgs, ModelInfo
from procession.calls import Calls, Link
from procession.processor import Hook
from procession.testing import ScriptedModels, environment
from procession_services.processors.model_selection import ModelSelection, Selection
from tests.vectors.adapters import detector_run as run
from tests.vectors.adapters.by_hand import Run
from tests.vectors.adapters.common import to_message

_OURS = ("choices", "minProbability", "scope", "instructions", "providerOptions", "questions", "rules")


class _Deciding(ModelSelection):
    """Keeps its decisions; raises where the vector's listener does."""

    raises = False

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.decisions: list[dict[str, Any]] = []

    async def on_decision(self, selection: Selection) -> None:
        told = {key: getattr(selection, key) for key in ("model", "choice", "probability", "abstained")}
        self.decisions.append({key: value for key, value in told.items() if value is not None})
        if self.raises:
            raise RuntimeError("listener")


async def observe(vector: dict[str, Any]) -> Any:
    """Builds the processor, or lets it decide and asks it for the model of each step."""
    options = {"model": "test/decides", **{k: v for k, v in vector["options"].items() if k in _OURS}}
    wrong = run.build_error(ModelSelection, options)
    if vector["input"]["hook"] == "constructor":
        return {"ok": True} if wrong is None else {"throws": wrong["text"], "id": wrong.get("id")}
    processor = _Deciding.build(options)
    processor.raises = bool(vector["options"].get("onDecisionThrows"))
    return await _decided(processor, vector["input"])


async def _decided(processor: _Deciding, given: dict[str, Any]) -> dict[str, Any]:
    logs: list[str] = []
    models = ScriptedModels(run.replies(given.get("answers", {})))
    turn = Run(processor, environment(models, log=logs.append))
    link, ctx = Link(processor, processor.id), turn.context
    messages: list[Any] = [to_message(each) for each in given["messages"]]
    before = json.dumps(messages)
    common = turn.common(Hook.INPUT)
    basics = {k: v for k, v in common.items() if k not in {"step_number", "steps", "writer", "abort_signal"}}
    args = InputArgs(**basics, messages=messages, system_messages=[], message_list=ctx.messages)
    await processor.process_input(args)
    results = [
        processor.process_input_step(_step(turn, link, turn.calls, step)) for step in given.get("steps", [])
    ]
    told = {
        "messagesUnchanged": json.dumps(messages) == before,
        "stepResults": [result or {} for result in results],
        "decisions": processor.decisions,
        "classifierState": [{"request": run.judged_text(request)} for request in models.requests],
    }
    return told | ({"logLevels": ["warn" for _ in logs]} if logs else {})


def _step(turn: Run, link: Link, calls: Calls, step: dict[str, Any]) -> InputStepArgs:
    common = turn.common(Hook.INPUT_STEP) | {"services": calls.services(turn.context, link, Hook.INPUT_STEP)}
    common["step_number"] = step["stepNumber"]
    return InputStepArgs(
        **common,
        messages=[],
        message_list=turn.context.messages,
        system_messages=[],
        model=ModelInfo(step["model"]),
        tool_choice="auto",
        active_tools=None,
        tools={},
        provider_options={},
        model_settings={},
        structured_output=None,
        message_id="answer",
    )


def override(_vector: dict[str, Any], _observed: Any, _differences: list[str]) -> str | None:
    """Nothing differs."""
    return None
