"""Joins characters that are cut in two: one delta ends with half of a surrogate pair, the next begins with the other.

Servers do so that cut a text by its UTF-16 units.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from procession_services.llm_gateway.core.text import objects, valid_value

_TEXTS: Final = ("content", "reasoning_content", "reasoning")
_HALF: Final = re.compile(r"[\ud800-\udbff]\Z")


class Halves:
    """Those of one answer, in the events that OpenAI's dialect has; of others, halves are replaced.

    Attributes:
        held: What waits for the next delta: by the name of a text, or the index of a tool call.
    """

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: dict[str | int, str] = {}

    def joined(self, event: Any) -> Any:
        """Return the event as Unicode: with what is held before its texts, and without the half that one ends with.

        A half whose other half does not begin the next delta, or that is in the last one, becomes U+FFFD. One behind
        which no delta comes at all is dropped.
        """
        choices = event.get("choices") if isinstance(event, dict) else None
        choice = next((each for each in objects(choices) if not each.get("index")), {})
        if isinstance(delta := choice.get("delta"), dict):
            self._join(delta, last=bool(choice.get("finish_reason")))
        return valid_value(event)

    def _join(self, delta: dict[str, Any], *, last: bool) -> None:
        held, self.held = self.held, {}
        for where, of, name in _texts(delta):
            text = of.get(name) or ""
            if isinstance(text, str) and (text or where in held):
                if not last and (half := _HALF.search(text)):
                    self.held[where], text = half[0], text[: half.start()]
                of[name] = held.pop(where, "") + text
        if held:  # of tool calls of which this delta has nothing
            calls = [{"index": index, "function": {"arguments": half}} for index, half in held.items()]
            delta["tool_calls"] = [*objects(delta.get("tool_calls")), *calls]


def _texts(delta: dict[str, Any]) -> Iterator[tuple[str | int, dict[str, Any], str]]:
    """Give the places of a delta's texts: what it is held by, the object, and the field."""
    for name in _TEXTS:
        yield name, delta, name
    for call in objects(delta.get("tool_calls")):
        index, function = call.get("index"), call.get("function")
        if isinstance(index, int) and isinstance(function, dict):
            yield index, function, "arguments"
