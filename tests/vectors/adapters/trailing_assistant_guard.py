"""`trailing-assistant-guard.json`: the turn that the input-step hook adds."""

import re
from typing import Any

from procession.messages import text_of
from procession_services.processors.core.trailing_turn import UNSEEN
from procession_services.processors.trailing_assistant_guard import TrailingAssistantGuard
from tests.vectors.adapters.by_hand import Run, stored

_DATED = re.compile(r"claude-[a-z]+-[1-4]-20\d{6}")


async def observe(vector: dict[str, Any]) -> Any:
    """Calls the hook once and looks at what is new."""
    given = vector["input"]
    processor = TrailingAssistantGuard.build(vector["options"])
    run = Run(processor)
    run.add(given["messages"])
    messages = run.context.messages
    before = {message["id"] for message in messages.get.all.db()}
    processor.process_input_step(
        run.input_step(_model(given["model"]), _structured(given.get("structuredOutput")))
    )
    now = messages.get.all.db()
    added = [message for message in now if message["id"] not in before]
    saved = {message["id"] for message in messages.drain_unsaved_messages()}
    return {
        "added": [{"role": message["role"], "text": text_of(message)} for message in added],
        "addedIsLast": now[-1] is added[-1] if added else None,
        "addedIsPersistable": added[-1]["id"] in saved if added else None,
    }


def _model(told: Any) -> Any:
    """A model; a function is one of which nothing is known."""
    unknown = told is None or (isinstance(told, str) and told.startswith("<"))
    return None if unknown else told


def _structured(names: Any) -> dict[str, Any] | None:
    """Structured output with the keys that a vector lists."""
    values = {"schema": {"type": "object"}, "model": "openai/gpt-5", "jsonPromptInjection": True}
    return {name: values[name] for name in names if name in values} if names else None


def override(vector: dict[str, Any], observed: Any, _differences: list[str]) -> str | None:
    """What no prompt shows decides nothing, a call that was denied is answered (D-78); a date is no version (D-90)."""
    expected = vector["expected"]
    messages: list[Any] = [stored(message) for message in vector["input"]["messages"]]
    if (
        bool(observed["added"]) == bool(expected["added"])
        or not messages
        or messages[-1]["role"] != "assistant"
    ):
        return None
    if expected["added"] and _DATED.search(str(vector["input"]["model"])):
        return "D-90"
    last = messages[-1]["content"]
    if last["parts"] and last["parts"][-1].get("toolInvocation", {}).get("state") == "output-denied":
        return "D-78" if expected["added"] else None
    seen = [part for part in last["parts"] if not _is_unseen(part)]
    only_steps = all(part["type"] == "step-start" for part in last["parts"] if part not in seen)
    shown = bool(seen) and "toolInvocation" not in seen[-1]
    return "D-78" if not only_steps and shown is bool(observed["added"]) else None


def _is_unseen(part: dict[str, Any]) -> bool:
    state = part.get("toolInvocation", {}).get("state", "result")
    return part["type"].startswith(UNSEEN) or state not in ("result", "output-error", "output-denied")
