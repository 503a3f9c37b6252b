"""Ready scanners for the hold-back buffer: regular expressions and words.

Both find *regions*: hits that overlap are one match, whoever found them. Its label is that of the longest hit (the
first rule's on ties), and `data` has all hits as `Match`es: their positions count from the region's start, and their
own `data` is the rule's place. So no part of any hit is left behind, and a rewrite can tell who hit what.
"""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import regex

from procession.pattern_size import written_out
from procession.text_hold import Match, Scan, ScanError

_TOKEN = re.compile(
    r"\\[\s\S]"  # an escape
    r"|\[\^?\]?(?:\\[\s\S]|\[:[^\]]*:\]|[^\]\\])*\]"  # a class
    r"|\(\?<?[=!]|\(\?>|\(\*|\(|\)"
    r"|\$"
    r"|(?P<times>[*+?]|\{\d*,?\d*\})(?P<lazy>\?)?"
)
_POSSESSIVE = re.compile(r"(?:[*+?]|\{\d*,?\d*\})\+")
_LOOKS_RIGHT = frozenset({r"\b", r"\B", r"\Z", r"\z", r"\m", r"\M"})
_NEXT = r"(?=[^\n]|\n[\s\S])"  # enough text follows to decide an assertion
_UNSUPPORTED = {
    r"\K": "moves the match's start",
    r"\G": "depends on earlier searches",
    "(*": "controls backtracking",
}
_INLINE = re.compile(r"\(\?[a-zA-Z]+\)")
_BASE_MICROS, _MICROS_EACH, _MOST_MICROS = 250_000, 12, 1_000_000
"""What a search may take: so much, with so much more for each character, up to so much; and one for each character."""
_MOST_ELEMENTS = 20_000
"""Of all patterns of a scanner, beside what is written in them: 5 MB."""
_SHORT = 256  # characters, up to which rules are searched for together,
_FEW = 3  # if they are that many


@dataclass(frozen=True, slots=True)
class RegexRule:
    r"""One pattern.

    Attributes:
        label: Name of the rule in matches.
        pattern: In the syntax of the `regex` package (which is that of `re`, and more).
        flags: Flags of the `regex` package; `regex.ASCII` for `\d`, `\w` and `\b` as JavaScript has them.
        first_only: Only the first hit of a scan counts.
    """

    label: str
    pattern: str
    flags: int = 0
    first_only: bool = False


class RegexScanner:
    r"""Finds regular expressions; where partial matching says that later text may change a result, it is open.

    Look-behind sees the context of the buffer (64 characters by default), so it must be bounded.

    A search may take 250 ms and 12 microseconds for each character, a second at most, and one more microsecond for each
    character, of the process's CPU time: neither a busy machine ends a run, nor one that takes four times as long as
    ours. Longer ones are patterns whose cost explodes (`(a|a)*b`): they are a `ScanError`, and the service does
    not stall. Nor may all searches of a scan take much longer than one, however many rules and matches there are.
    """

    def __init__(self, rules: Sequence[RegexRule], *, empty: bool = False) -> None:
        """Compiles the rules.

        Args:
            rules: In the order in which they win ties.
            empty: Whether matches without a character count.

        Raises:
            ValueError: A pattern is not a valid regular expression, or uses something that cannot be decided in a
                stream; or all patterns together ask for too many repetitions.
        """
        _check_size(rules)
        self._rules = [_Compiled(rank, rule, empty=empty) for rank, rule in enumerate(rules)]
        self._all = _united(rules, [compiled.groups for compiled in self._rules])

    def scan(self, text: str, start: int, *, final: bool) -> Scan:
        """Finds the regions; see `Scanner`.

        Raises:
            ScanError: A pattern took too long.
        """
        opens = len(text)
        if self._all is not None and opens - start <= _SHORT:
            try:
                found, undecided = self._all.find(text, start, Allowance(len(text)), final=final)
            except ScanError:
                pass  # the rules by themselves tell whose fault it is
            else:
                if not found:
                    return Scan([], undecided)
        hits: list[Match] = []
        allowance = Allowance(len(text))
        for rule in self._rules:
            found, undecided = rule.find(text, start, allowance, final=final)
            hits += found
            opens = min(opens, undecided)
        return Scan(regions(hits), opens)


def _check_size(rules: Sequence[RegexRule]) -> None:
    """Raises ValueError where the patterns would take too much memory."""
    sizes = [written_out(rule.pattern, verbose=bool(rule.flags & regex.VERBOSE)) for rule in rules]
    if sum(sizes) > _MOST_ELEMENTS + sum(len(rule.pattern) for rule in rules):
        largest = rules[sizes.index(max(sizes))]
        raise ValueError(
            f"rule {largest.label!r}: repetitions are written out (`a{{3}}` becomes `aaa`), and then the rules have "
            f"more than {_MOST_ELEMENTS:,} elements together; ask for fewer repetitions"
        )


class Allowance:
    """The time that the searches in a text may take, each and all together.

    All together it is wall time at first, which costs little to ask for. When that is over, which a busy machine may
    have taken, it is as much again of this thread's CPU time.
    """

    def __init__(self, size: int) -> None:
        """Begins now.

        Args:
            size: How long the text is.
        """
        self._size = size
        self._seconds = (min(_BASE_MICROS + _MICROS_EACH * self._size, _MOST_MICROS) + self._size) / 1e6
        self._until = time.perf_counter() + self._seconds
        self._cpu_until: float | None = None
        self._over = False

    def search(
        self, rule: str, pattern: "regex.Pattern[str]", text: str, place: int = 0, *, partial: bool = False
    ) -> "regex.Match[str] | None":
        """The first match from a place on, for this rule.

        Raises:
            ScanError: The search took too long, or all up to now.
        """
        if self._over:
            raise self._error(f"the rules up to {rule!r}")
        try:
            found = pattern.search(text, place, partial=partial, timeout=self._seconds)
        except TimeoutError:
            raise self._error(f"rule {rule!r}") from None
        if time.perf_counter() > self._until:
            if self._cpu_until is None:
                self._cpu_until = time.thread_time() + self._seconds
            elif time.thread_time() > self._cpu_until:
                raise self._error(f"the rules up to {rule!r}")
        return found

    def _error(self, who: str) -> ScanError:
        self._over = True
        return ScanError(
            f"{who} took more than {self._seconds:.2f} s for {self._size} characters: a pattern backtracks too much; "
            "avoid repeated groups that can match the same text in several ways"
        )


class _Compiled:
    """A rule and its two patterns: `whole`, and `begun`, which matches (partially) what may begin a match at the end.

    `begun` is the rule's pattern, one more character, and a failure: so no complete text matches, and an attempt that
    reaches the end of the text is what partial matching finds. Assertions are undecided at the end.
    """

    def __init__(self, rank: int, rule: RegexRule, *, empty: bool) -> None:
        self._rank = rank
        self._rule = rule
        self._empty = empty
        try:
            self._whole = regex.compile(rule.pattern, rule.flags)
            self._begun = regex.compile(rf"(?:{_undecided_at_end(rule.pattern)})[\s\S](*FAIL)", rule.flags)
        except (regex.error, ValueError) as error:
            raise ValueError(f"rule {rule.label!r}: {error}") from None

    @property
    def groups(self) -> int:
        """How many groups of the pattern capture."""
        return self._whole.groups

    def find(self, text: str, start: int, allowance: Allowance, *, final: bool) -> tuple[list[Match], int]:
        """The decided hits, and from where on nothing is decided."""
        hits: list[Match] = []
        place, opens = start, len(text) if final else -1
        label = self._rule.label
        while place <= len(text):
            found = allowance.search(label, self._whole, text, place)
            if not final and opens < place:
                begun = allowance.search(label, self._begun, text, place, partial=True)
                opens = len(text) if begun is None else begun.start()
            if found is None or (not final and opens <= found.start()):
                break
            begin, end = found.span()
            if begin < end or self._empty:
                hits.append(Match(begin, end, label, self._rank))
                if self._rule.first_only:
                    return hits, len(text)
            place = end if begin < end else end + 1
        return hits, opens


def _united(rules: Sequence[RegexRule], groups: Sequence[int]) -> _Compiled | None:
    """All rules as one, for short texts, where the number of searches is what costs; None where they do not unite.

    Where it finds nothing, no rule does, and it is open where the first of them is.
    """
    scoped = regex.IGNORECASE | regex.MULTILINE | regex.DOTALL
    alike = {rule.flags & ~scoped for rule in rules}
    if len(rules) < _FEW or len(alike) > 1 or any(groups) or any(_INLINE.search(r.pattern) for r in rules):
        return None
    letters = {regex.IGNORECASE: "i", regex.MULTILINE: "m", regex.DOTALL: "s"}
    patterns = (
        f"(?{''.join(letter for flag, letter in letters.items() if rule.flags & flag)}:{rule.pattern})"
        for rule in rules
    )
    return _Compiled(0, RegexRule("all", "|".join(patterns), alike.pop()), empty=True)


class WordScanner:
    """Finds words of a list: wherever they stand, or (`whole_words`) where no letter, digit or `_` touches them."""

    def __init__(
        self,
        words: Iterable[str],
        *,
        label: str = "word",
        ignore_case: bool = False,
        whole_words: bool = False,
    ) -> None:
        """Prepares the search.

        Args:
            words: What to find; at least one, none of them empty.
            label: Label of all matches; the hit's text tells which word it was.
            ignore_case: Whether ASCII letters match in either case.
            whole_words: Whether hits inside of longer words do not count.

        Raises:
            ValueError: There are no words, or one of them is empty.
        """
        known = sorted({_lower(word) if ignore_case else word for word in words}, key=lambda w: (-len(w), w))
        if not known or not known[-1]:
            raise ValueError("give at least one word, and no empty words")
        self._label = label
        self._ignore_case = ignore_case
        self._begun = {word[:size] for word in known for size in range(1, len(word) + whole_words)}
        self._longest = len(known[0])
        pattern = "|".join(map(re.escape, known))
        self._pattern = regex.compile(rf"(?<!\w)(?:{pattern})(?!\w)" if whole_words else pattern)

    def scan(self, text: str, start: int, *, final: bool) -> Scan:
        """Finds the words; see `Scanner`."""
        folded = _lower(text) if self._ignore_case else text
        hits = [
            Match(*found.span(), self._label, 0)
            for found in self._pattern.finditer(folded, start, overlapped=True)
        ]
        opens = len(text)
        if not final:
            first = max(start, len(text) - self._longest)
            opens = next((p for p in range(first, len(text)) if folded[p:] in self._begun), opens)
        return Scan(regions(hits), opens)


def regions(hits: Sequence[Match]) -> list[Match]:
    """Unites hits that overlap (R-REG-7); hits that only touch stay apart. A hit's `data` is its rule's rank."""
    out: list[Match] = []
    members: list[Match] = []
    end = -1
    for hit in sorted(hits, key=lambda hit: (hit.start, -hit.end, hit.data)):
        if members and hit.start >= end:
            out.append(_region(members, end))
            members = []
        members.append(hit)
        end = max(end, hit.end)
    if members:
        out.append(_region(members, end))
    return out


def _region(members: list[Match], end: int) -> Match:
    start = members[0].start
    owner = max(members, key=lambda hit: hit.end - hit.start)
    data = tuple(replace(hit, start=hit.start - start, end=hit.end - start) for hit in members)
    return Match(start, end, owner.label, data)


def _undecided_at_end(pattern: str) -> str:
    """The pattern for what may begin a match at the end of a text that goes on.

    Assertions about what follows are not decided at the end. Lazy repetitions become greedy, since all ways are tried
    anyway, and a look-behind needs more text first: the engine's shortcuts for these do not report the end.

    Raises:
        ValueError: The pattern has what a stream cannot decide.
    """
    groups: list[tuple[bool, bool]] = []  # of each open group: whether it looks behind, whether it commits
    possessive = _possessive_groups(pattern)

    def token(found: re.Match[str]) -> str:
        text, times = found[0], found["times"]
        if text in _UNSUPPORTED:
            raise ValueError(f"{text} {_UNSUPPORTED[text]} and cannot be used here")
        behind, commits = groups[-1] if groups else (False, False)
        if text.startswith("("):
            committing = text == "(?>" or found.start() in possessive
            looks_behind = text in ("(?<=", "(?<!")
            groups.append((behind or looks_behind, commits or committing))
            if looks_behind and not behind:
                return rf"(?=[\s\S]|){text}"
        elif text == ")" and groups:
            groups.pop()
        elif times and behind and (times in "*+" or times.endswith(",}")):
            raise ValueError(
                f"unbounded repetition ({text}) in a look-behind needs text that may no longer be kept"
            )
        elif found["lazy"] and commits:
            raise ValueError(
                f"lazy repetition ({text}) in an atomic or possessive group is not decidable in a stream"
            )
        elif found["lazy"]:
            return times
        return f"{_NEXT}{text}" if text in _LOOKS_RIGHT or text == "$" else text

    return _TOKEN.sub(token, pattern)


def _possessive_groups(pattern: str) -> set[int]:
    """Where groups begin that are repeated possessively: `(...)*+`."""
    begun: list[int] = []
    found: set[int] = set()
    for token in _TOKEN.finditer(pattern):
        if token[0].startswith("("):
            begun.append(token.start())
        elif token[0] == ")" and begun:
            start = begun.pop()
            if _POSSESSIVE.match(pattern, token.end()):
                found.add(start)
    return found


_ASCII_LOWER = {upper: upper + 32 for upper in range(65, 91)}


def _lower(text: str) -> str:
    """ASCII letters in lower case; the length stays."""
    return text.translate(_ASCII_LOWER)
