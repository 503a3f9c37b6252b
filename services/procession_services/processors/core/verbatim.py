"""Finds where a text repeats another one word for word: a leaked prompt (builtins.md 8, D-13).

Words are compared without case, punctuation and white space, so line breaks, Markdown and quotation marks hide nothing.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

import regex

from procession.hold_back import Match, Scan, Scanner
from procession.scanners import RegexRule, RegexScanner
from procession_services.processors.core.scripts import UNSPACED
from procession_services.processors.core.spans import Span, united

__all__ = ["SYSTEM_PROMPT", "Scanners", "VerbatimScanner", "is_findable", "verbatim_scanners"]

SYSTEM_PROMPT: Final = "system_prompt"
"""Label of what was repeated."""
MOST_WORDS: Final = 50_000
"""Of longer texts, the rest is not looked for."""

_ALONE: Final = re.compile(f"[{UNSPACED}]")
_WORD: Final = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
_GAP: Final = 64
_WORD_WEIGHT: Final = 2
_LETTER_WEIGHT: Final = 1
_SHORTEST: Final = 4
"""Words of a text that is looked for as a whole; shorter ones are common phrases."""


class VerbatimScanner:
    """Finds runs of at least so many words that stand, in this order, in one of the texts.

    A suffix automaton of the texts' words tells for each word the longest run that ends there: cost is linear in the
    texts once, and in what is scanned. What may still become such a run is open.
    """

    def __init__(self, texts: Sequence[str], min_words: int) -> None:
        self._least = min_words * _WORD_WEIGHT
        self._next: list[dict[str, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        last, left = 0, MOST_WORDS
        for text in texts:
            words = _words(text)[:left]
            left -= len(words)
            for word in words:
                last = self._extend(last, word.casefold())
            last = self._extend(last, "\x00")  # no word: runs end here

    def _extend(self, last: int, word: str) -> int:
        """Adds a word behind state `last`; returns the state of the whole so far."""
        new = self._state({}, self._length[last] + 1, 0)
        at = last
        while at >= 0 and word not in self._next[at]:
            self._next[at][word] = new
            at = self._link[at]
        if at < 0:
            return new
        target = self._next[at][word]
        if self._length[target] == self._length[at] + 1:
            self._link[new] = target
            return new
        clone = self._state(dict(self._next[target]), self._length[at] + 1, self._link[target])
        while at >= 0 and self._next[at].get(word) == target:
            self._next[at][word] = clone
            at = self._link[at]
        self._link[target] = self._link[new] = clone
        return new

    def _state(self, moves: dict[str, int], length: int, link: int) -> int:
        self._next.append(moves)
        self._length.append(length)
        self._link.append(link)
        return len(self._next) - 1

    def scan(self, text: str, start: int, *, final: bool) -> Scan:
        """Finds the runs; see `Scanner`."""
        words = list(_WORD.finditer(text, _behind_word(text, start)))
        unfinished = (
            not final and bool(words) and words[-1].end() == len(text) and not _is_letter(words[-1][0])
        )
        growing = words.pop() if unfinished else None
        weights = [0]
        runs: list[tuple[int, int]] = []
        state = length = 0
        for place, word in enumerate(words):
            weights.append(weights[-1] + _weight(word[0]))
            state, length = self._step(state, length, word[0].casefold())
            begin = place - length + 1
            if weights[-1] - weights[begin] >= self._least:
                while runs and runs[-1][1] >= begin:
                    begin = min(begin, runs.pop()[0])
                runs.append((begin, place))
        matches = [Match(words[a].start(), words[b].end(), SYSTEM_PROMPT) for a, b in runs]
        if final:
            return Scan(matches, len(text))
        if length:
            return Scan(matches, words[len(words) - length].start())
        return Scan(matches, growing.start() if growing else len(text))

    def _step(self, state: int, length: int, word: str) -> tuple[int, int]:
        """The longest run that ends with this word."""
        while word not in self._next[state]:
            if state == 0:
                return 0, 0
            state = self._link[state]
            length = self._length[state]
        return self._next[state][word], length + 1


class Scanners:
    """Several scanners as one; what they find at overlapping places is one match.

    Its `data` has what was found there: `(label, start, end)`, positions counting from its start.
    """

    def __init__(self, scanners: Sequence[Scanner]) -> None:
        self._scanners = scanners

    def scan(self, text: str, start: int, *, final: bool) -> Scan:
        """Finds what any of them finds; see `Scanner`."""
        scans = [scanner.scan(text, start, final=final) for scanner in self._scanners]
        spans = [Span(hit.start, hit.end, (hit,)) for scan in scans for hit in scan.matches]
        return Scan([_match(span) for span in united(spans)], min((s.open for s in scans), default=len(text)))


def _match(span: Span) -> Match:
    hits = tuple((hit.label, hit.start - span.start, hit.end - span.start) for hit in span.found)
    return Match(span.start, span.end, span.found[0].label, hits)


@lru_cache(maxsize=64)
def verbatim_scanners(texts: tuple[str, ...], min_words: int) -> tuple[Scanner, ...]:
    """Scanners for repetitions of these texts.

    A text shorter than `min_words` is looked for as a whole if it has four words or more.
    """
    words = [_words(text) for text in texts]
    weights = [sum(map(_weight, each)) for each in words]
    least = min_words * _WORD_WEIGHT
    long = [text for text, weight in zip(texts, weights, strict=True) if weight >= least]
    rules = [
        RegexRule(SYSTEM_PROMPT, _phrase(each), regex.IGNORECASE)
        for each, weight in zip(words, weights, strict=True)
        if _SHORTEST * _WORD_WEIGHT <= weight < least
    ]
    return (*([VerbatimScanner(long, min_words)] if long else []), *([RegexScanner(rules)] if rules else []))


def is_findable(text: str) -> bool:
    """Whether a text is long enough to be looked for."""
    return sum(map(_weight, _words(text))) >= _SHORTEST * _WORD_WEIGHT


def _phrase(words: Sequence[str]) -> str:
    """A pattern for these words with anything between them that is no word."""
    pattern = re.escape(words[0])
    for before, word in pairwise(words):
        least = 0 if _is_letter(before) or _is_letter(word) else 1
        pattern += rf"[\W_]{{{least},{_GAP}}}?{re.escape(word)}"
    return rf"(?<![^\W_]){pattern}(?![^\W_])"


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


def _weight(word: str) -> int:
    return _LETTER_WEIGHT if _is_letter(word) else _WORD_WEIGHT


def _is_letter(word: str) -> bool:
    """Whether it is a letter of a script without spaces, which is complete as soon as it is there."""
    return len(word) == 1 and _ALONE.match(word) is not None


def _behind_word(text: str, start: int) -> int:
    """Where the first whole word may begin: a word that `start` cuts was decided before."""
    if start == 0 or not _goes_on(text[start - 1]):
        return start
    return next((at for at in range(start, len(text)) if not _goes_on(text[at])), len(text))


def _goes_on(letter: str) -> bool:
    return letter.isalnum() and not _is_letter(letter)
