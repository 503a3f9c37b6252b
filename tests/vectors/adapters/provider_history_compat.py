"""`provider-history-compat.json`: the prompt that the request hook makes, or what the error hook mends."""

import copy
import re
from typing import Any

from procession.args import APIError, LLMRequestArgs
from procession_services.processors.provider_history_compat import CompatRule, ProviderHistoryCompat
from tests.vectors.adapters.by_hand import Run, error_of, flat


def _count(prompt: list[dict[str, Any]], _args: LLMRequestArgs) -> list[dict[str, Any]]:
    """Says how many parts the assistant's turn has left."""
    parts = next(len(entry["content"]) for entry in prompt if entry["role"] == "assistant")
    return [*prompt, {"role": "user", "content": [{"type": "text", "text": f"parts={parts}"}]}]


def _mark(messages: list[Any]) -> bool:
    """Changes the conversation."""
    messages[0]["content"]["metadata"] = {"fixed": True}
    return True


RULES = {
    "count": CompatRule("count", apply_to_prompt=_count),
    "fix": CompatRule("fix", (re.compile(".*"),), _mark),
}


async def observe(vector: dict[str, Any]) -> Any:
    """Calls the hook of the vector once."""
    given, named = vector["input"], vector["options"].get("additionalRules", [])

    class Configured(ProviderHistoryCompat):
        def additional_rules(self) -> list[CompatRule]:
            return [RULES[name] for name in named]

    processor = Configured.build({k: v for k, v in vector["options"].items() if k != "additionalRules"})
    run = Run(processor)
    if given["hook"] == "processLLMRequest":
        run.add(given.get("storedMessages", []))
        made = processor.process_llm_request(
            run.llm_request(copy.deepcopy(given["prompt"]), given.get("model"))
        )
        return {"unchanged": True} if made is None else made
    run.add(given["messages"])
    decision = processor.process_api_error(run.api_error(_error(given["error"]), given.get("retryCount", 0)))
    messages = [flat(message) for message in run.context.messages.get.all.db()]
    return {"retry": bool(decision and decision["retry"]), "messages": messages}


def _error(told: Any) -> APIError:
    return APIError(told) if isinstance(told, str) else error_of(told)


def override(vector: dict[str, Any], observed: Any, _differences: list[str]) -> str | None:
    """What a removal leaves without sense goes too (D-76); tool ids stay different from each other (D-75)."""
    given, expected = vector["input"], vector["expected"]
    if given["hook"] == "processLLMRequest":
        prompt = expected.get("prompt")
        return (
            "D-76" if prompt and observed == {"prompt": _without_orphans(given["prompt"], prompt)} else None
        )
    ids = [
        _tool_ids(messages) for messages in (given["messages"], expected["messages"], observed["messages"])
    ]
    collided = len(set(ids[1])) < len(set(ids[0])) == len(set(ids[2]))
    plain = all(re.fullmatch(r"[A-Za-z0-9_-]+", each) for each in ids[2])
    same = _blank(expected["messages"]) == _blank(observed["messages"])
    return "D-75" if collided and plain and same and expected["retry"] == observed["retry"] else None


def _without_orphans(before: list[Any], after: list[Any]) -> list[Any]:
    """The reference's prompt without results whose call it removed, and without turns that it emptied."""
    calls = [
        {p["toolCallId"] for p in _parts(prompt) if p["type"] == "tool-call"} for prompt in (before, after)
    ]
    gone = calls[0] - calls[1]
    made = []
    for entry in after:
        if not isinstance(entry["content"], list):
            made.append(entry)
            continue
        left = [p for p in entry["content"] if p["type"] != "tool-result" or p["toolCallId"] not in gone]
        if left:
            made.append({**entry, "content": left})
    return made


def _parts(prompt: list[Any]) -> list[Any]:
    return [part for entry in prompt if isinstance(entry["content"], list) for part in entry["content"]]


def _tool_ids(messages: list[Any]) -> list[str]:
    return [call["toolCallId"] for call in _calls(messages)]


def _calls(messages: list[Any]) -> list[Any]:
    parts = [part["toolInvocation"] for m in messages for part in m["parts"] if "toolInvocation" in part]
    return parts + [call for m in messages for call in m.get("toolInvocations", [])]


def _blank(messages: list[Any]) -> list[Any]:
    blank = copy.deepcopy(messages)
    for call in _calls(blank):
        call["toolCallId"] = ""
    return blank
