"""The lines of a stream that LiteLLM reads itself.

With its own lines, LiteLLM loses text in three cases. Servers send comments to show that they live: its reader of
Gemini's events takes one for the beginning of an event, and loses the rest of the answer. It takes an event with
`[DONE]` anywhere in it for the last one. And it loses an event behind a byte order mark (U+FEFF).
"""

from typing import Final

_SAYING_NOTHING: Final = (":", "id:", "retry:")
"""How the lines of server-sent events begin that are for clients which connect again."""
_MARK: Final = "\ufeff"
_DONE: Final = "[DONE]"
_ESCAPED: Final = r"\u005bDONE]"
"""The same within the strings of JSON, and nowhere else it can be."""


class LineSplitter:
    """In the place of LiteLLM's: comments do not count as lines."""

    def __init__(self) -> None:
        self._rest: list[str] = []
        self._first, self._returned = True, False

    def feed(self, text: str) -> list[str]:
        """Returns the lines that this text completes."""
        if not text:
            return []
        if self._first:
            text, self._first = text.removeprefix(_MARK), False
        if self._returned:
            text = text.removeprefix("\n")
        self._returned = text.endswith("\r")
        first, *others = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest.append(first)
        if not others:
            return []
        lines = ["".join(self._rest), *others]
        self._rest = [lines.pop()]
        return [_readable(line) for line in lines if not line.startswith(_SAYING_NOTHING)]

    def flush(self) -> list[str]:
        """Returns the line that nothing has ended."""
        rest, self._rest = "".join(self._rest), []
        return [_readable(rest)] if rest else []


def _readable(line: str) -> str:
    """The line in a form in which only the end of a stream looks like it."""
    return line.replace(_DONE, _ESCAPED) if _DONE in line and "{" in line else line
