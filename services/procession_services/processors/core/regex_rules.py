"""Rules of the regex filter: ready ones, finding, and replacing (builtins.md 12)."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import regex

from procession.hold_back import Match, ScanError
from procession.scanners import Allowance, RegexRule, RegexScanner, regions
from procession_services.processors.core.javascript_regex import translate

REDACTED: Final = "[REDACTED]"

# A local part is at most 256 characters long and a domain 317, so that a long run of letters costs linear time and is
# not held. The look-ahead at the beginning of a pattern says nothing new; it is a cheap way to see that nothing begins.
_EMAIL = r"[a-zA-Z0-9._%+-]{1,256}@[a-zA-Z0-9.-]{1,253}\.[a-zA-Z]{2,63}"
_PHONE = r"(?=[+(\d])(?:\+?1[-.\s]?)?\(?\d{3}\)?[-.\s]?\d{3}[-.\s]?\d{4}"
_API_KEY = r"(?:api[_-]?key|apikey|api[_-]?secret)\s*[:=]\s*[\"']?[a-z0-9_-]{20,}[\"']?"
_OF_URL = r"[^\s<>\"{}|\\^`\[\]]"
# A URL begins at the first scheme of what hangs together: a list of a thousand is searched once, not once from each.
_URL = rf"https?://(?<!https?://{_OF_URL}{{0,1024}}https?://){_OF_URL}+"
PRESETS: Final[dict[str, tuple[tuple[str, str, str, str], ...]]] = {
    "pii": (
        ("email", _EMAIL, "g", "[EMAIL]"),
        ("phone", _PHONE, "g", "[PHONE]"),
        ("ssn", r"\b\d{3}-\d{2}-\d{4}\b", "g", "[SSN]"),
        ("credit-card", r"\b(?=\d)(?:\d{4}[-\s]?){3}\d{4}\b", "g", "[CREDIT_CARD]"),
    ),
    "secrets": (
        ("api-key", _API_KEY, "gi", "[API_KEY]"),
        ("bearer-token", r"bearer\s+[a-z0-9_.-]+", "gi", "[BEARER_TOKEN]"),
        ("aws-key", r"(?:AKIA|ASIA)[A-Z0-9]{16}", "g", "[AWS_KEY]"),
    ),
    "urls": (("url", _URL, "gi", "[URL]"),),
}
"""Rules by preset: name, pattern, flags, replacement (R-REG-2)."""

_LONGEST, _MOST_GROUPS = 1_000, 16  # of a replacement: it is repeated with each match
_GROUP = re.compile(r"\$(?:(\$)|(&)|(`)|(')|(\d{1,2})|<(\w+)>)")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: `pattern` and `flags` are those of the `regex` package."""

    name: str
    pattern: str
    flags: int
    replacement: str = REDACTED
    first_only: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    """A hit of one rule in a text; `rank` is the rule's place."""

    rank: int
    rule: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Region:
    """Hits that overlap, the rule that owns them, and what takes their place (R-REG-7)."""

    start: int
    end: int
    rule: str
    replacement: str
    hits: tuple[Hit, ...]


def make_rule(name: str, source: str, flags: str, replacement: str) -> Rule:
    """A rule out of a JavaScript regular expression.

    Raises:
        ValueError: It is not a valid regular expression, or cannot be used on a stream; or the replacement could make
            texts many times as long.
    """
    if len(replacement) > _LONGEST or len(_GROUP.findall(replacement)) > _MOST_GROUPS:
        raise ValueError(
            f"rule {name!r}: the replacement may have at most {_LONGEST:,} characters and {_MOST_GROUPS} `$` groups"
        )
    try:
        translated = translate(source, flags)
    except ValueError as error:
        raise ValueError(f"rule {name!r}: {error}") from None
    return Rule(
        name, translated.pattern, translated.flags, replacement, first_only=not translated.all_matches
    )


class Rules:
    """Compiled rules; `scanner` finds them in streams."""

    def __init__(self, rules: Sequence[Rule], *, empty: bool) -> None:
        """Compiles.

        Raises:
            ValueError: A pattern is not a valid regular expression.
        """
        self.scanner = RegexScanner(
            [RegexRule(rule.name, rule.pattern, rule.flags, rule.first_only) for rule in rules], empty=empty
        )
        self._rules = tuple(rules)
        self._expanding = {
            rank: regex.compile(rule.pattern, rule.flags)
            for rank, rule in enumerate(rules)
            if _GROUP.search(rule.replacement)
        }

    def __len__(self) -> int:
        return len(self._rules)

    def find(self, text: str) -> list[Region]:
        """The regions of a whole text.

        Raises:
            ScanError: A pattern took too long.
        """
        allowance = Allowance(len(text))
        return [
            self._region(match.start, match.end, text[match.start : match.end], match.data, allowance)
            for match in self.scanner.scan(text, 0, final=True).matches
        ]

    def later(self, match: Match, text: str, spent: list[int], allowance: Allowance) -> list[Region]:
        """The regions of a match without the rules that count once and are spent; notes those that it spends."""
        left: list[Match] = []
        for hit in match.data:
            if self._rules[hit.data].first_only:
                if hit.data in spent:
                    continue
                spent.append(hit.data)
            left.append(hit)
        return [
            self._region(
                match.start + found.start,
                match.start + found.end,
                text[found.start : found.end],
                found.data,
                allowance,
            )
            for found in regions(left)
        ]

    def _region(self, start: int, end: int, text: str, hits: Sequence[Match], allowance: Allowance) -> Region:
        owner = max(hits, key=lambda hit: hit.end - hit.start)
        replacement = self._rules[owner.data].replacement
        if len(hits) == 1 and owner.data in self._expanding:
            with suppress(ScanError):
                alone = allowance.search(owner.label, self._expanding[owner.data], text)
                replacement = _expanded(replacement, alone, text)
        found = tuple(Hit(hit.data, hit.label, start + hit.start, start + hit.end) for hit in hits)
        return Region(start, end, owner.label, replacement, found)


def replaced(text: str, offset: int, found: Sequence[Region]) -> str:
    """A text with its regions replaced; their positions count from `offset` before it."""
    out, place = [], 0
    for region in found:
        out += [text[place : region.start - offset], region.replacement]
        place = region.end - offset
    return "".join([*out, text[place:]])


def names(found: Sequence[Region], *, hits: bool = False) -> list[str]:
    """The rules of regions, each once: their owners, or (`hits`) all that hit, in rule order."""
    if hits:
        ordered = sorted((hit.rank, hit.rule) for region in found for hit in region.hits)
        return list(dict.fromkeys(name for _, name in ordered))
    return list(dict.fromkeys(region.rule for region in found))


def _expanded(replacement: str, match: "regex.Match[str] | None", text: str) -> str:
    """The replacement with its `$` groups, where the pattern matches all of the text by itself (R-REG-8)."""
    if match is None or match.span() != (0, len(text)):
        return replacement
    return _GROUP.sub(lambda group: _group(group, match, text), replacement)


def _group(group: re.Match[str], match: "regex.Match[str]", text: str) -> str:
    dollar, whole, _before, _after, number, name = group.groups()
    if dollar:
        return "$"
    if whole:
        return text
    if name:
        return (match.groupdict().get(name) or "") if match.groupdict() else group[0]
    if not number:
        return ""
    for digits in (number, number[0]):
        if 0 < int(digits) <= len(match.groups()):
            return (match[int(digits)] or "") + number[len(digits) :]
    return group[0]
