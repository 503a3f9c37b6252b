"""Which tool calls of a prompt are left out, and what stands for them (builtins.md 11, R-TCF)."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from procession_services.processors.core.token_budget import compact

Prompt = list[dict[str, Any]]
_TOOL_PARTS = ("tool-call", "tool-result")


def tool_parts(prompt: Prompt) -> Iterable[dict[str, Any]]:
    """All tool-call and tool-result parts."""
    return (part for entry in prompt for part in _parts(entry) if part["type"] in _TOOL_PARTS)


def _parts(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    return entry["content"] if isinstance(entry["content"], list) else []


def recent_calls(prompt: Prompt, steps: int) -> set[str]:
    """The call ids of the last `steps` assistant entries with a tool call; none below 1 (R-TCF-3)."""
    calls = [
        {part["toolCallId"] for part in _parts(entry) if part["type"] == "tool-call"}
        for entry in prompt
        if entry["role"] == "assistant"
    ]
    recent = [ids for ids in calls if ids][-steps:] if steps > 0 else []
    return set().union(*recent)


def without_calls(
    prompt: Prompt, ids: Collection[str], stand_in: Callable[[dict[str, Any]], str | None]
) -> Prompt:
    """A copy without the parts of these calls; an entry with no part left goes (R-TCF-4..6).

    Args:
        prompt: Stays as it is.
        ids: Call ids.
        stand_in: Gives the text that stands for a result part, empty or None for none. It is put where the call was;
            where an assistant's result has no call, in its own place. Of calls that share an id each has its own.
    """
    texts = _stand_ins(prompt, ids, stand_in)
    out = []
    for place, entry in enumerate(prompt):
        parts = []
        for index, part in enumerate(_parts(entry)):
            if part["type"] not in _TOOL_PARTS or part["toolCallId"] not in ids:
                parts.append(part)
            elif (text := texts.get((place, index))) is not None:
                parts.append({"type": "text", "text": text})
        if parts == _parts(entry):
            out.append(entry)
        elif parts:
            out.append({**entry, "content": parts})
    return out


def _stand_ins(
    prompt: Prompt, ids: Collection[str], stand_in: Callable[[dict[str, Any]], str | None]
) -> dict[tuple[int, int], str]:
    """The texts, by the entry and the part in whose place each stands."""
    texts: dict[tuple[int, int], str] = {}
    unanswered: dict[str, list[tuple[int, int]]] = {}
    for place, entry in enumerate(prompt):
        for index, part in enumerate(_parts(entry)):
            if part["type"] not in _TOOL_PARTS or part["toolCallId"] not in ids:
                continue
            calls = unanswered.setdefault(part["toolCallId"], [])
            if part["type"] == "tool-call":
                calls.append((place, index))
                continue
            text = stand_in(part)
            at = calls.pop() if calls else (place, index) if entry["role"] == "assistant" else None
            if text and at is not None:
                texts[at] = f"{part['toolName']} result:\n{text}"
    return texts


def output_text(output: Any) -> str | None:
    """The text of a tool's output as a model reads it; None for null (R-TCF-7)."""
    match output:
        case None:
            return None
        case str():
            return output
        case bool() | int() | float():
            return compact(output)
        case list():
            texts = [text for each in output if (text := output_text(each))]
            return "\n".join(texts) if texts else compact(output)
        case {"type": "text", "value": str(text)} | {"type": "text", "text": str(text)}:
            return text
        case {"value": value}:
            return output_text(value)
        case {"text": str(text)}:
            return text
        case _:
            return compact(output)
