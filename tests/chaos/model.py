"""The model: it counts how often it was asked for each step of a run, and never says the same twice."""

import hashlib
import re
from collections import Counter
from typing import Any

from procession_services.demo_model import Server
from procession_services.demo_model.answers import Answer, Hangup, Refusal, Reply, ToolCall, Usage

__all__ = ["CountingModel", "words_of"]

_ASKED = re.compile(r"\[run (?P<run>\S+) words (?P<words>\d+) pace (?P<pace>\d+)(?P<more> tool| fails)?\]")
_USAGE = Usage(10, 10)


def words_of(run: str, count: int, heard: str = "", call: int = 1) -> list[str]:
    """The pieces of the answer to that call; `heard` is what was said before, of which it tells a digest."""
    name = hashlib.blake2b(f"{run}|{heard}|{call}".encode(), digest_size=4).hexdigest()
    return [f"{name}.{number} " for number in range(count)]


class CountingModel(Server):
    """A model server; `calls` counts by run and step."""

    def __init__(self) -> None:
        super().__init__(pace_ms=0)
        self.calls: Counter[tuple[str, int]] = Counter()

    def _answer(self, body: dict[str, Any], header: str | None) -> Answer:
        asked, step, heard = _read(body["messages"])
        run, count, pace = asked["run"], int(asked["words"]), int(asked["pace"]) / 1000
        self.calls[run, step] += 1
        if asked["more"] == " fails" and self.calls[run, step] == 1:
            return Refusal(503, "overloaded") if count % 2 else Hangup()
        if asked["more"] == " tool" and step == 0:
            return Reply(
                usage=_USAGE,
                tool_calls=(ToolCall(f"call-{run}", "chaos-trace", "{}"),),
                finish_reason="tool_calls",
            )
        return Reply(usage=_USAGE, text=words_of(run, count, heard, self.calls[run, step]), chunk_delay=pace)


def _read(messages: list[dict[str, Any]]) -> tuple[re.Match[str], int, str]:
    """What the last question asks for, the step's number, and what the assistant has said before the question."""
    last = max(at for at, message in enumerate(messages) if message["role"] == "user")
    asked = _ASKED.search(_text(messages[last]))
    assert asked is not None, messages
    step = sum(message["role"] == "tool" for message in messages[last:])
    heard = "".join(_text(message) for message in messages[:last] if message["role"] == "assistant")
    return asked, step, heard.strip()


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
