"""Texts that every implementation words for itself: the one place where wording is made comparable.

Nothing but wording changes here. `recorded_words` rewrites a result into the reference's words, which it
takes from the recordings, so that a plain comparison works:

* the feedback of a rejected attempt (R-AB-29 fixes its content and place, and leaves the wording open);
* what the model is told of a tool that does not exist, and of arguments that are not JSON;
* the message of a connection that broke. The scripts name one (`ECONNRESET`), but over HTTP a server cannot
  choose what the client's library says when it hangs up; any such message becomes the script's.

`loosely` is applied to both sides of a comparison, where the reference's words cannot be found from ours:

* the reference wraps the message of a failing hook into the story of its workflow engine;
* how a value fails its schema is told by the validation library;
* an answer that ended badly, of which the provider says no more.
"""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

__all__ = ["loosely", "recorded_words"]

_EXPECTED: Final = Path(__file__).resolve().parent / "expected"
_FEEDBACK: Final = re.compile(
    r"\[Processor feedback\] Your last answer was rejected: (?P<text>.*?)\. "
    r"Produce a new answer that takes this into account\.",
    re.DOTALL,
)
_NO_TOOL: Final = re.compile(
    r"There is no tool '(?P<tool>[^']*)'\. Available tools: (?P<tools>.*?)\. Use one of these names exactly\."
)
_NOT_JSON: Final = re.compile(
    r"The arguments of the tool '(?P<tool>[^']*)' are not valid JSON \(.*?\)\. "
    r"Send one complete JSON object\.",
    re.DOTALL,
)
_CONNECTION: Final = re.compile(
    r"disconnect|peer closed|incomplete chunked|connection.* (error|reset|closed|aborted|lost|broke|failed)",
    re.IGNORECASE,
)
_WRAPPED: Final = re.compile(
    r"Processor workflow [\w-]+ failed with status: failed — (?P<told>.*?); step processor:.*", re.DOTALL
)
_INVALID: Final = re.compile(r"(Structured output validation failed|the answer is not JSON)\b.*", re.DOTALL)
_FOREIGN_LIST: Final = re.compile(r"(Processor \S+ )?returned a MessageList .*", re.DOTALL)
_ENDED: Final = re.compile(
    r"(Agent stream finished with finishReason|the answer ended with finish reason) .*", re.DOTALL
)
_PLACES: Final = ("message", "error", "threw", "rejected")


def recorded_words(value: Any, script: list[dict[str, Any]]) -> Any:
    """Returns a copy of a recording with such texts in the reference's words.

    Args:
        value: The recording, or a part of it.
        script: The scenario's model script, which names the messages of broken connections.
    """
    broken = _broken(script)

    def reword(text: str, place: str) -> str:
        if broken is not None and place in _PLACES and _CONNECTION.search(text):
            return broken
        for ours, theirs in ((_FEEDBACK, _feedback), (_NO_TOOL, _no_tool), (_NOT_JSON, _not_json)):
            text = ours.sub(theirs, text)
        return text

    return _mapped(value, reword)


def loosely(value: Any) -> Any:
    """Returns a copy in which only the gist of such texts is left."""

    def reword(text: str, _place: str) -> str:
        text = _WRAPPED.sub(lambda match: match["told"], text)
        text = _FOREIGN_LIST.sub("<returned a foreign message list>", text)
        text = _ENDED.sub("<the answer ended badly>", text)
        return _INVALID.sub("<the answer does not fit its schema>", text)

    return _mapped(value, reword)


def _mapped(value: Any, reword: Callable[[str, str], str], place: str = "") -> Any:
    if isinstance(value, str):
        return reword(value, place)
    if isinstance(value, list):
        return [_mapped(each, reword) for each in value]
    return {k: _mapped(v, reword, k) for k, v in value.items()} if isinstance(value, dict) else value


def _broken(script: list[dict[str, Any]]) -> str | None:
    """The message of the first connection that the script breaks; None when it breaks none."""
    for call in script:
        error, middle = call.get("error") or {}, call.get("mid_error") or {}
        if error.get("network"):
            return str(error.get("message") or "connection reset")
        if middle.get("kind") == "drop":
            return str(middle.get("message") or "mid-stream error")
    return None


def _feedback(match: re.Match[str]) -> str:
    return _recorded("e04-outstep-retry-exhausted", "never good").replace("never good", match["text"])


def _no_tool(match: re.Match[str]) -> str:
    words = _recorded("i05-unknown-tool", "nope", "echo")
    return words.replace("echo", match["tools"]).replace("nope", match["tool"])


def _not_json(match: re.Match[str]) -> str:
    return _recorded("i07-malformed-args", "echo", "JSON").replace("echo", match["tool"])


@cache
def _recorded(scenario: str, *told: str) -> str:
    """The longest text of a recording that has all these words."""
    recording = json.loads((_EXPECTED / f"{scenario}.json").read_text())
    found: list[str] = []

    def look(text: str, _place: str) -> str:
        if all(each in text for each in told):
            found.append(text)
        return text

    _mapped(recording, look)
    return max(found, key=len)
