"""Answers of a model as chunks, for processors under test."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from procession_schemas.chunks import Chunk

USAGE: Final[dict[str, int | None]] = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
BLOCK: Final = "text-1"


def answer(
    texts: Sequence[str] = (),
    *,
    message_id: str = "",
    tool_calls: Iterable[Mapping[str, Any]] = (),
    finish_reason: str | None = None,
    usage: Mapping[str, int | None] | None = None,
) -> list[Chunk]:
    """A whole answer: `step-start`, one text block with a delta for each text, tool calls, `finish`.

    Args:
        texts: The pieces of the text; without any there is no block.
        message_id: Id of the assistant message.
        tool_calls: `{"toolName", "args"?, "toolCallId"?}`; ids default to `call-1`, `call-2`, ...
        finish_reason: By default `tool-calls` where there are some, else `stop`.
        usage: Tokens; by default 10 in and 5 out.
    """
    calls = [whole_call(call, number) for number, call in enumerate(tool_calls, 1)]
    reason = finish_reason or ("tool-calls" if calls else "stop")
    start = {"messageId": message_id, "request": {}, "warnings": []}
    result = {"reason": reason, "isContinued": reason == "tool-calls"}
    finish = {"stepResult": result, "output": {"usage": dict(usage or USAGE)}, "metadata": {}}
    return [
        {"type": "step-start", "payload": start},
        *text_block(texts),
        *(Chunk(type="tool-call", payload=call) for call in calls),
        {"type": "finish", "payload": finish},
    ]


def text_block(texts: Sequence[str]) -> list[Chunk]:
    """One text block, or nothing where there is no text."""
    if not texts:
        return []
    ends: dict[str, Any] = {"id": BLOCK}
    deltas = [text_delta(text) for text in texts]
    return [{"type": "text-start", "payload": ends}, *deltas, {"type": "text-end", "payload": ends}]


def text_delta(text: str) -> Chunk:
    """One piece of the block."""
    return {"type": "text-delta", "payload": {"id": BLOCK, "text": text}}


def whole_call(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A tool call with everything that a chunk of it has."""
    return {"toolCallId": f"call-{number}", "args": {}, **call}
