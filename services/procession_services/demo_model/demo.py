"""The demonstration model: answers that follow from the request alone and say that they are canned.

It calls a tool when the user asks for what the tool serves and tells the tool's result in the next call,
fills the JSON schema of a structured answer, and otherwise echoes the question.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from procession_services.demo_model.answers import Reply, ToolCall, Usage
from procession_services.demo_model.conversation import (
    Body,
    Message,
    last_turn,
    messages_of,
    prompt_tokens,
    text_of,
    tokens_in,
)
from procession_services.demo_model.json_values import Filler, place_in

LABEL: Final = "deterministic demo model"
_CONTACT: Final = (
    "A person would be more help: write to demo.desk@example.com or call +1 202-555-0143, "
    "and mention this answer."
)
_ADVICE: Final = (
    "It knows no more than your question; configure a real model for a real answer, "
    "or offer it a tool and ask for that, such as the weather in Paris."
)
_WEATHER: Final = re.compile(r"\b(weather|temperature|forecast)\b", re.IGNORECASE)
_NAME_PART: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+")
_CHUNKS: Final = 48
_SMALLEST_CHUNK: Final = 4
_QUOTE_LIMIT: Final = 400
_REMEMBERED: Final = 4096


def demo_reply(body: Body, chunk_delay: float = 0.0) -> Reply:
    """Return the answer to a request, whose chunks are `chunk_delay` seconds apart.

    Raises:
        InvalidRequestError: when the request has no list of messages.
    """
    messages = messages_of(body)
    question = _question(messages)
    tool = _wanted_tool(body, messages, question)
    if tool is not None:
        call = _tool_call(tool, messages, question)
        usage = Usage(prompt_tokens(messages), tokens_in(len(call.name) + len(call.arguments)))
        return Reply(usage=usage, tool_calls=(call,), finish_reason="tool_calls")
    text = _structured(body, question) or _told(messages, question)
    return Reply(
        usage=Usage(prompt_tokens(messages), tokens_in(len(text))),
        text=_cut(text),
        chunk_delay=chunk_delay,
    )


class FlakyConversations:
    """Fails the first call of a conversation whose question says "flaky", once per exact conversation."""

    def __init__(self) -> None:
        self._failed: dict[bytes, None] = {}

    def fails(self, body: Body) -> bool:
        """Return whether this call is to fail; the same conversation passes from then on.

        Only a call whose last message is the user's can fail, so a step after a tool result never does.
        """
        messages = messages_of(body)
        if not messages or messages[-1].get("role") != "user" or "flaky" not in text_of(messages[-1]).lower():
            return False
        key = hashlib.blake2b(json.dumps(messages, sort_keys=True).encode(), digest_size=16).digest()
        if key in self._failed:
            return False
        if len(self._failed) >= _REMEMBERED:
            del self._failed[next(iter(self._failed))]
        self._failed[key] = None
        return True

    def clear(self) -> None:
        """Forget which conversations have failed."""
        self._failed.clear()


def _question(messages: Sequence[Message]) -> str:
    return next((text_of(message) for message in reversed(messages) if message.get("role") == "user"), "")


def _wanted_tool(body: Body, messages: Sequence[Message], question: str) -> Mapping[str, Any] | None:
    """Return the function to call, if the request's last message asks for what one of its tools serves."""
    offered = [tool["function"] for tool in body.get("tools") or () if "function" in tool]
    choice = body.get("tool_choice")
    if not offered or choice == "none" or not messages or messages[-1].get("role") != "user":
        return None
    if isinstance(choice, dict):
        forced = choice.get("function", {}).get("name")
        return next((tool for tool in offered if tool["name"] == forced), None)
    asked = next((tool for tool in offered if _serves(tool, question)), None)
    return offered[0] if asked is None and choice == "required" else asked


def _serves(tool: Mapping[str, Any], question: str) -> bool:
    about = f"{tool['name'].replace('_', ' ')} {tool.get('description') or ''}"
    if _WEATHER.search(about) and _WEATHER.search(question) and place_in(question):
        return True
    if _WEATHER.search(about):
        return False  # the topic without a place gives the tool nothing to work with
    words = set(re.findall(r"\w+", question.lower()))
    return all(word.lower() in words for word in _NAME_PART.findall(tool["name"]))


def _tool_call(tool: Mapping[str, Any], messages: Sequence[Message], question: str) -> ToolCall:
    arguments = Filler(tool.get("parameters") or {"type": "object"}, question, fallback=question).fill()
    text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    half = len(text) // 2
    return ToolCall(f"call_demo_{len(messages)}", str(tool["name"]), text, (text[:half], text[half:]))


def _structured(body: Body, question: str) -> str | None:
    """Return the JSON text that `response_format` asks for, or None when it asks for none."""
    wanted = body.get("response_format") or {}
    match wanted.get("type"):
        case "json_schema":
            # Nothing is read off the text here: a judge's scores must not come from a number in the question.
            value = Filler(wanted.get("json_schema", {}).get("schema") or {}, text="", fallback=LABEL).fill()
        case "json_object":
            value = {"model": LABEL, "question": question[:_QUOTE_LIMIT]}
        case _:
            return None
    return json.dumps(value, ensure_ascii=False)


def _told(messages: Sequence[Message], question: str) -> str:
    """Return the answer in words: of the tools' results when there are any, else of the question."""
    turn = last_turn(messages)
    names = {
        call.get("id"): call.get("function", {}).get("name")
        for message in turn
        for call in message.get("tool_calls") or ()
    }
    results = [
        f"The tool {names.get(message.get('tool_call_id'), '')} says: {_in_words(text_of(message))}."
        for message in turn
        if message.get("role") == "tool"
    ]
    opening = f"This answer comes from the {LABEL}, not from a real one."
    asked = f"You asked: “{' '.join(question[:_QUOTE_LIMIT].split())}”."
    return " ".join((opening, asked, *results, _CONTACT) if results else (opening, asked, _ADVICE))


def _in_words(result: str) -> str:
    """Return a tool's result as words: the entries of a JSON object one by one, anything else as it is."""
    try:
        value = json.loads(result)
    except ValueError:
        return result.strip().rstrip(".")
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{name} {entry}" for name, entry in value.items())


def _cut(text: str) -> tuple[str, ...]:
    """Cut a text into some fifty small pieces, through words as real tokens are."""
    size = max(_SMALLEST_CHUNK, -(-len(text) // _CHUNKS))
    return tuple(text[start : start + size] for start in range(0, len(text), size))
