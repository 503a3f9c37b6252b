"""The model: it counts how often it was asked for each step of a run, and never says the same twice."""

import hashlib
import re
from collections import Counter
from itertools import count
from typing import Any

from procession_services.demo_model import Server
from procession_services.demo_model.answers import Answer, Hangup, Refusal, Reply, ToolCall, Usage

__all__ = ["CountingModel", "words_of"]

_ASKED = re.compile(
    r"\[run (?P<run>\S+) words (?P<words>\d+) pace (?P<pace>\d+)(?P<more> tool| steps| fails)?\]"
)
_USAGE = Usage(10, 10)
_CALLS = {(" tool", 0): "a", (" steps", 0): "ab", (" steps", 2): "c"}
"""The names of the calls that are asked for, by what the question wants and how many results there are."""


def words_of(run: str, words: int, heard: str = "", call: int = 1) -> list[str]:
    """The pieces of the answer to that call; `heard` is what was said before, of which it tells a digest."""
    name = hashlib.blake2b(f"{run}|{heard}|{call}".encode(), digest_size=4).hexdigest()
    return [f"{name}.{number} " for number in range(words)]


class CountingModel(Server):
    """A model server; `calls` counts by run and step.

    The model `broken` refuses, `rater` and `maker` answer with the next number, all others as `words_of` says.
    """

    def __init__(self) -> None:
        super().__init__(pace_ms=0)
        self.calls: Counter[tuple[str, int]] = Counter()
        self._numbers = count(1)

    def _answer(self, body: dict[str, Any], header: str | None) -> Answer:
        match body["model"]:
            case "broken":
                return Refusal(500, "broken")
            case "rater":
                return Reply(usage=_USAGE, text=[f"~{next(self._numbers)}~"])
            case "maker":
                return Reply(usage=_USAGE, text=[f'{{"made": {next(self._numbers)}}}'])
            case _:
                return self._asked(body)

    def _asked(self, body: dict[str, Any]) -> Answer:
        asked, step, heard = _read(body["messages"])
        run, words, pace = asked["run"], int(asked["words"]), int(asked["pace"]) / 1000
        self.calls[run, step] += 1
        if asked["more"] == " fails" and self.calls[run, step] == 1:
            return Refusal(503, "overloaded") if words % 2 else Hangup()
        if calls := _CALLS.get((asked["more"], step)):
            return Reply(
                usage=_USAGE,
                tool_calls=tuple(ToolCall(f"call-{run}-{name}", _tool(body), "{}") for name in calls),
                finish_reason="tool_calls",
            )
        return Reply(usage=_USAGE, text=words_of(run, words, heard, self.calls[run, step]), chunk_delay=pace)


def _read(messages: list[dict[str, Any]]) -> tuple[re.Match[str], int, str]:
    """What the last question asks for, the step's number, and what the assistant has said before the question."""
    last = max(at for at, message in enumerate(messages) if message["role"] == "user")
    asked = _ASKED.search(_text(messages[last]))
    assert asked is not None, messages
    step = sum(message["role"] == "tool" for message in messages[last:])
    heard = "".join(_text(message) for message in messages[:last] if message["role"] == "assistant")
    return asked, step, heard.strip()


def _tool(body: dict[str, Any]) -> str:
    """The name of the only tool there is."""
    (tool,) = body["tools"]
    return str(tool["function"]["name"])


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
