"""Text that is JSON, looked at as those see it who read its strings: a line end is no `n` before the next word."""

import json
import re
from bisect import bisect_left
from dataclasses import replace
from typing import Final

from procession.text_hold import Match, Rewrite, Scan, Scanner

_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE: Final = re.compile(rf'{_HIGH}{_LOW}|\\u[0-9a-fA-F]{{4}}|\\["\\/bfnrt]')
_BEGUN: Final = re.compile(rf"(?:{_HIGH})?(?:\\(?:u[0-9a-fA-F]{{0,3}})?)?\Z")
_SHORT: Final = {f"\\{letter}": json.loads(f'"\\{letter}"') for letter in '"\\/bfnrt'}
"""What the escapes mean that nearly all are: the parser takes long for one, in every chunk."""
_HALF: Final = re.compile("[\ud800-\udfff]")


class JsonScanner:
    """Finds in the text what `scanner` finds where escapes are the characters that they mean.

    Matches are told by their places in the text. What they have in `data` counts in what `unescaped` gives for them.
    """

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner

    def scan(self, text: str, start: int, *, final: bool) -> Scan:
        """Finds the matches; see `Scanner`. An escape that is not whole is open."""
        if "\\" not in text:
            return self._scanner.scan(text, start, final=final)
        seen, places, rest = _read(text)
        if not final and (begun := _BEGUN.search(text, rest)):
            seen = seen[: bisect_left(places, begun.start())]
        scan = self._scanner.scan(seen, bisect_left(places, start), final=final)
        matches = [replace(each, start=places[each.start], end=places[each.end]) for each in scan.matches]
        return Scan(matches, places[scan.open])


def rewrites_strings(rewrite: Rewrite) -> Rewrite:
    """Does what `rewrite` does, to what a part of a JSON string means.

    A match that contains quotes of the JSON itself, such as that of a whole field, is replaced without escaping.
    """

    def rewritten(match: Match, text: str) -> str:
        meant = unescaped(text)
        new = rewrite(match, meant)
        if new == meant:
            return text
        quotes = _ESCAPE.sub("", text).count('"')
        # One alone is where a string begins or ends, as it still has to.
        if quotes == 1 and text.endswith('"') and not new.endswith('"'):
            return _escaped(new) + '"'
        if quotes == 1 and text.startswith('"') and not new.startswith('"'):
            return '"' + _escaped(new)
        return new if quotes else _escaped(new)

    return rewritten


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def unescaped(text: str) -> str:
    """The text with what its escapes mean; half a character, and what is no escape, stays as it is written."""
    return _read(text)[0]


def unescaped_with_places(text: str) -> tuple[str, list[int]]:
    """`unescaped`, and where in the text each of its characters, and its end, is written."""
    seen, places, _ = _read(text)
    return seen, places


def _read(text: str) -> tuple[str, list[int], int]:
    """What the text means, where its characters and its end stand in the text, and where the last escape ends."""
    out: list[str] = []
    places: list[int] = []
    at = 0
    for found in _ESCAPE.finditer(text):
        meant = _SHORT.get(found[0]) or json.loads(f'"{found[0]}"')
        if _HALF.match(meant):
            continue
        out += [text[at : found.start()], meant]
        places += range(at, found.start() + 1)
        at = found.end()
    return "".join([*out, text[at:]]), [*places, *range(at, len(text) + 1)], at
