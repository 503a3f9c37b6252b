"""The hold-back buffer: whatever the split, what comes out is the rewrite of the whole text, and nothing else."""

import json
import time
from itertools import combinations
from typing import Any

import pytest
import regex
from hypothesis import assume, given
from hypothesis import strategies as st

from procession import scanners
from procession.hold_back import (
    HoldOverflowError,
    Match,
    Piece,
    Scan,
    ScanError,
    Scanner,
    StreamMode,
    TextHold,
    hold_flush,
    hold_stream,
    refuse_blind_action,
)
from procession.processor import Options, Processor
from procession.scanners import RegexRule, RegexScanner, WordScanner
from procession.testing import ProcessorKit
from procession.testing.answers import text_delta
from procession_schemas.chunks import Chunk
from tests.support.cost import seconds

EMAIL = r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}"
SCANNERS: dict[str, Scanner] = {
    "email": RegexScanner([RegexRule("email", EMAIL)]),
    "assertions": RegexScanner(
        [
            RegexRule("word", r"\bab\b"),
            RegexRule("inside", r"b\Ba"),
            RegexRule("not-before", r"a(?!b)"),
            RegexRule("before", r"b(?=@a)"),
            RegexRule("behind", r"(?<=@\.)b+"),
            RegexRule("end", r"\.$"),
            RegexRule("line-end", r"(?m)@$"),
            RegexRule("line-begin", r"(?m)^\.\."),
        ]
    ),
    "overlapping": RegexScanner(
        [RegexRule("short", "ab"), RegexRule("long", "b@ba"), RegexRule("lazy", r"\..*?\.")]
    ),
    "alternatives": RegexScanner(
        [RegexRule("one", r"a|ab|aba@"), RegexRule("same", r"(a|b)@\1"), RegexRule("bound", r"b{2,3}?\.")]
    ),
    "unicode": RegexScanner(
        [
            RegexRule("e", "é|e\u0301+"),
            RegexRule("emoji", "\U0001f600\\W"),
            RegexRule("low", "[\udc00-\udfff]a"),
        ]
    ),
    "words": WordScanner(["ab", "aba@", "b.", "\U0001f600", "é"]),
    "whole-words": WordScanner(["ab", "a@b", "é"], whole_words=True, ignore_case=True),
}  # fmt: skip
TEXTS = [
    "mail a.b@ab.ab. and b@a.b",
    "ab ba bab. ab@a.bb@\nab.@.bb\n..@",
    "..aba@b@baab..b..ab",
    "aab@aa@aaba@ bbb.bb.b@b",
    "e\u0301\u0301é\U0001f600\U0001f600!\ud83d\ude00a\U0001f600",
    "AB a@b É éab\U0001f600",
    "",
]


def released(scanner, chunks, *, limit=100_000):
    """What comes out, with matches in angle brackets, and where they were."""
    state: dict[str, Any] = {}
    out: list[Piece] = []
    for chunk in chunks:
        out += TextHold(state, scanner, limit=limit).feed(chunk)
        if "\ud83d\ude00" not in "".join(chunks):  # JSON makes one character of these two
            state = json.loads(json.dumps(state))
    out += TextHold(state, scanner, limit=limit).flush()
    text = "".join(f"<{match.label}>" if match else piece for piece, match in out)
    return text, [(match.start, match.end, match.label) for _, match in out if match]


def whole(scanner, text):
    """The rewrite of a text that is all there, without the buffer."""
    out, place, found = [], 0, scanner.scan(text, 0, final=True).matches
    for match in found:
        out += [text[place : match.start], f"<{match.label}>"]
        place = match.end
    return "".join([*out, text[place:]]), [(m.start, m.end, m.label) for m in found]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", SCANNERS)
def test_every_split_gives_the_rewrite_of_the_whole(name, text):
    scanner = SCANNERS[name]
    want = whole(scanner, text)
    assert released(scanner, list(text)) == want
    for i, j in combinations(range(len(text) + 1), 2):
        assert released(scanner, [text[:i], text[i:j], text[j:]]) == want


def test_the_scanners_do_find_something():
    for scanner in SCANNERS.values():
        assert any(whole(scanner, text)[1] for text in TEXTS)


@given(
    st.sampled_from(sorted(SCANNERS)),
    st.lists(st.text(st.sampled_from("ab@. \né\u0301\U0001f600\ud83d\ude00A"), max_size=6), max_size=12),
)
def test_any_split_of_any_text_gives_the_rewrite_of_the_whole(name, chunks):
    scanner = SCANNERS[name]
    assert released(scanner, chunks) == whole(scanner, "".join(chunks))


_ATOMS = st.sampled_from(
    [
        "a",
        "b",
        r"\.",
        "[ab]",
        "[^a]",
        ".",
        r"\w",
        r"\W",
        r"\b",
        r"\B",
        "$",
        "^",
        r"\Z",
        "(?<=a)",
        r"(?<!b )",
        r"(?<=\ba)",
    ]
)
_TIMES = st.sampled_from(
    ["", "", "", "*", "+", "?", "*?", "+?", "??", "{1,2}", "{2}", "++", "?+", "*+", "{1,2}?"]
)
_PATTERNS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["(?:", "(?=", "(?!", "(?>", "("]), inner).map(
            lambda two: f"{two[0]}{two[1]})"
        ),
        st.tuples(inner, _TIMES).map(lambda two: f"(?:{two[0]}){two[1]}"),
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
    ),
    max_leaves=8,
)


@given(
    st.lists(_PATTERNS, min_size=1, max_size=4),
    st.text(st.sampled_from("aab. \n"), max_size=12),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_partial_matching_is_right_about_any_pattern(patterns, text, i, j):
    try:
        scanner = RegexScanner([RegexRule(f"{at}", pattern) for at, pattern in enumerate(patterns)])
    except ValueError:
        assume(False)
    want = whole(scanner, text)
    assert released(scanner, list(text)) == want
    assert released(scanner, [text[: min(i, j)], text[min(i, j) : max(i, j)], text[max(i, j) :]]) == want


@given(st.lists(st.text(st.characters()), max_size=8))
def test_any_unicode_text_comes_out_as_it_went_in_where_nothing_matches(chunks):
    scanner = RegexScanner([RegexRule("none", "\\A(?!)")])
    assert released(scanner, chunks)[0] == "".join(chunks)


@given(st.text(st.sampled_from("ab@."), max_size=30), st.integers(1, 9), st.integers(1, 9))
def test_all_splits_of_a_text_overflow_alike(text, limit, size):
    def outcome(chunks):
        try:
            return released(SCANNERS["email"], chunks, limit=limit)
        except HoldOverflowError:
            return "overflow"

    chunks = [text[i : i + size] for i in range(0, len(text), size)]
    assert outcome(chunks) == outcome([text])


def test_text_goes_out_as_soon_as_it_is_decided():
    hold = TextHold({}, SCANNERS["email"], limit=100)
    assert hold.feed("Write to ") == [("Write to ", None)]
    assert hold.feed("me") == []
    assert hold.held == 2
    assert hold.feed(" or ") == [("me or ", None)]
    assert hold.feed("a@b.c") == []
    assert hold.feed("om!") == [("a@b.com", Match(15, 22, "email", (Match(0, 7, "email", 0),))), ("!", None)]
    assert (hold.released, hold.held) == (23, 0)


def test_no_more_than_the_limit_and_a_quarter_is_held():
    hold = TextHold({}, SCANNERS["email"], limit=400)
    for _ in range(499):
        hold.feed("a")
    assert (hold.released, hold.held) == (0, 499)
    with pytest.raises(HoldOverflowError, match="more than 400 characters"):
        hold.feed("a")


def test_a_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="limit is 0"):
        TextHold({}, SCANNERS["email"], limit=0)


@pytest.mark.parametrize(
    "unit",
    ["a", "a@b.co ", "x", "\ud83d", "é", " "],
    ids=["held", "matches", "other", "surrogate", "e", "space"],
)
def test_the_cost_of_a_stream_is_linear(unit):
    def stream(size):
        hold = TextHold({}, SCANNERS["email"], limit=1 << 20)
        for char in (unit * size)[:size]:
            hold.feed(char)
        hold.flush()

    assert seconds(lambda: stream(16_000)) < 12 * seconds(lambda: stream(4_000))


# --- scanners ----------------------------------------------------------------------------------


@pytest.mark.parametrize("final", [True, False])
def test_a_catastrophic_pattern_is_stopped_with_its_name(final):
    scanner = RegexScanner([RegexRule("bad", r"(?:a|aa)+$")])
    started = time.process_time()
    with pytest.raises(ScanError, match=r"rule 'bad' took more than 0\.25 s"):
        scanner.scan("a" * 60 + "b", 0, final=final)
    assert time.process_time() - started < 3


@pytest.mark.parametrize("final", [True, False])
def test_rules_that_are_slow_together_are_stopped_too(monkeypatch, final):
    monkeypatch.setattr(scanners, "_BASE_MICROS", 20_000)
    slow = [RegexRule(f"slow {number}", r"(?:a|aa)+$") for number in range(400)]
    with pytest.raises(ScanError, match=r"took more than 0\.02 s"):
        RegexScanner(slow).scan("a" * 14 + "b", 0, final=final)
    RegexScanner(slow[:1]).scan("a" * 14 + "b", 0, final=final)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("a(", "rule 'x': missing"),
        (r"a\Kb", "moves the match"),
        (r"\Ga", "earlier searches"),
        ("a(*PRUNE)b", "backtracking"),
        ("(?<=a+)b", "look-behind"),
        ("(?<!(?:a|b*))c", "look-behind"),
        ("(?>a+?b)", "atomic"),
        ("(?:a(b??))*+c", "possessive"),
    ],
)
def test_patterns_that_a_stream_cannot_decide_are_refused(pattern, problem):
    with pytest.raises(ValueError, match=regex.escape(problem)):
        RegexScanner([RegexRule("x", pattern)])


def test_a_class_and_an_escape_are_no_assertions():
    scanner = RegexScanner([RegexRule("x", r"[$\b(]\$[]*+]\\b")])
    assert released(scanner, list("a($*\\b$"))[0] == "a<x>$"


def test_overlapping_hits_are_one_region_owned_by_the_longest():
    found = SCANNERS["overlapping"].scan("xab@bax", 0, final=True).matches
    assert found == [Match(1, 6, "long", (Match(0, 2, "short", 0), Match(1, 5, "long", 1)))]


def test_only_the_first_hit_where_the_rule_says_so():
    scanner = RegexScanner([RegexRule("x", "a", first_only=True)])
    assert [m.start for m in scanner.scan("baa", 0, final=True).matches] == [1]


def test_matches_without_a_character_count_on_demand():
    rules = [RegexRule("x", "q*")]
    assert RegexScanner(rules).scan("ab", 0, final=True).matches == []
    assert [m.start for m in RegexScanner(rules, empty=True).scan("ab", 0, final=True).matches] == [0, 1, 2]


@pytest.mark.parametrize("words", [[], [""], ["a", ""]])
def test_a_word_scanner_needs_words(words):
    with pytest.raises(ValueError, match="at least one word"):
        WordScanner(words)


def test_a_word_is_held_only_as_long_as_it_may_become_one():
    scanner = WordScanner(["secret"], ignore_case=True)
    assert scanner.scan("my SEC", 0, final=False) == Scan([], 3)
    assert scanner.scan("my SECond", 0, final=False) == Scan([], 9)


# --- streams -----------------------------------------------------------------------------------


class Redactor(Processor[Options]):
    """Redacts addresses as a guardrail does; aborts at `block`."""

    id = "redactor"
    mode = StreamMode.WINDOW
    limit = 1000

    def _rewrite(self, match, text):
        assert text.strip()
        self.seen.append((match.text_id, match.start, text))
        return "[E]"

    def __init__(self, options):
        super().__init__(options)
        self.seen = []

    def process_output_stream(self, args):
        return hold_stream(args, SCANNERS["email"], self._rewrite, limit=self.limit, mode=self.mode)

    def flush_stream(self, args):
        return hold_flush(args, SCANNERS["email"], self._rewrite, limit=self.limit, mode=self.mode)


class Holding(Redactor):
    """All of a block at its end."""

    mode = StreamMode.HOLD


class Observing(Redactor):
    """Only looks."""

    mode = StreamMode.OBSERVE


def delta(text, block="t1", **more):
    return {"type": "text-delta", "payload": {"id": block, "text": text, **more}}


def end(block="t1"):
    return {"type": "text-end", "payload": {"id": block}}


def shape(chunks):
    return [
        (c["payload"].get("id"), c["payload"]["text"]) if c["type"] == "text-delta" else c["type"]
        for c in chunks
    ]


@pytest.mark.parametrize("processor", [Redactor, Holding])
async def test_the_client_gets_the_redaction_of_the_whole_text(processor):
    text = "mail a@b.co, c.d@e.org now"
    for i, j in combinations(range(len(text) + 1), 2):
        out = await ProcessorKit(processor).stream([text[:i], text[i:j], text[j:]])
        assert out.text == "mail [E], [E] now"
        assert all("@" not in piece for piece in out.deltas)


async def test_blocks_are_independent_and_end_when_they_end():
    kit = ProcessorKit(Redactor)
    out = await kit.stream(
        [
            delta("a@b", "t1"),
            delta("c@d", "t2"),
            delta(".co", "t1"),
            end("t1"),
            delta(".de x", "t2"),
            end("t2"),
        ]
    )
    assert shape(out.chunks) == [("t1", "[E]"), "text-end", ("t2", "[E] "), ("t2", "x"), "text-end"]


async def test_positions_count_from_the_beginning_of_the_block():
    redactor = Redactor.build()
    await ProcessorKit(redactor).stream(
        [delta("x " * 100), delta("a@b.co "), delta("a@b.co ", "t2"), end("t2"), end()]
    )
    assert redactor.seen == [("t1", 200, "a@b.co"), ("t2", 0, "a@b.co")]


async def test_other_chunks_wait_behind_held_text_and_keep_their_order():
    kit = ProcessorKit(Redactor)
    source: Chunk = {"type": "source", "payload": {"id": "s"}}
    file: Chunk = {"type": "file", "payload": {}}
    out = await kit.stream(
        [source, delta("see a"), source, delta(" b@"), file, source, delta("c.de, d"), file, end()]
    )
    assert shape(out.chunks) == [
        "source", ("t1", "see "), ("t1", "a"), "source", ("t1", " "), ("t1", "[E]"), "file", "source", ("t1", ", "),
        ("t1", "d"), "file", "text-end",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "last", [{"type": "finish", "payload": {}}, {"type": "step-finish", "payload": {}}, None]
)
async def test_what_is_held_comes_out_at_the_end_of_the_stream(last):
    chunks = [delta("mail a@b.co"), *([last] if last else [])]
    out = await ProcessorKit(Redactor).stream(chunks)
    assert shape(out.chunks)[:2] == [("t1", "mail "), ("t1", "[E]")]


async def test_hold_gives_a_block_out_when_it_has_ended():
    kit = ProcessorKit(Holding)
    source: Chunk = {"type": "source", "payload": {}}
    out = await kit.stream([delta("one a@b.co "), source, delta("two"), end(), delta("x", "t2")])
    assert shape(out.chunks) == [("t1", "one [E] "), "source", ("t1", "two"), "text-end", ("t2", "x")]


async def test_observe_lets_all_chunks_pass_and_sees_all_matches():
    observing = Observing.build()
    out = await ProcessorKit(observing).stream([delta("mail a@"), delta("b.co"), end()])
    assert shape(out.chunks) == [("t1", "mail a@"), ("t1", "b.co"), "text-end"]
    assert observing.seen == [("t1", 5, "a@b.co")]


async def test_untouched_chunks_are_the_chunks_that_came():
    chunk = delta("Hello. ", providerMetadata={"x": {}})
    out = await ProcessorKit(Redactor).stream([chunk, delta(""), end()])
    assert out.chunks[:2] == [chunk, delta("")]


@pytest.mark.parametrize("processor", [Redactor, Holding])
async def test_an_overflow_ends_the_run_whatever_the_failure_policy(processor):
    kit = ProcessorKit(processor, on_error="skip")
    out = await kit.stream([text_delta("a" * 100) for _ in range(20)])
    assert "more than 1000 characters" in out.blocked.reason
    assert out.deltas == []


async def test_hold_is_bounded_too():
    kit = ProcessorKit(Holding)
    out = await kit.stream([text_delta("a " * 100) for _ in range(200)])
    assert "longer than 16000 characters" in out.blocked.reason
    assert out.deltas == []


class Failing:
    """Fails at a `!`, and at a `?` that is not decided before the end."""

    def scan(self, text, start, *, final):
        if "!" in text[start:] or (final and "?" in text[start:]):
            raise ScanError("no")
        return Scan([], start if text.endswith("?") else len(text))


class Skipping(Redactor):
    """Uses a scanner that fails."""

    def process_output_stream(self, args):
        return hold_stream(args, Failing(), self._rewrite, limit=self.limit, mode=self.mode)

    def flush_stream(self, args):
        return hold_flush(args, Failing(), self._rewrite, limit=self.limit, mode=self.mode)


class SkippingObserver(Skipping):
    """Only looks."""

    mode = StreamMode.OBSERVE


async def test_where_failures_are_skipped_the_text_goes_on_in_order():
    out = await ProcessorKit(Skipping, on_error="skip").stream(
        [delta("a"), delta("b?"), delta("c!"), delta("d")]
    )
    assert shape(out.chunks) == [("t1", "a"), ("t1", "b?c!"), ("t1", "d")]


async def test_where_failures_are_skipped_nothing_is_lost_at_the_end():
    out = await ProcessorKit(Skipping, on_error="skip").stream([delta("a"), delta("b?"), end()])
    assert out.text == "ab?"


@pytest.mark.parametrize("processor", [SkippingObserver, Observing])
async def test_an_observer_changes_nothing_whatever_happens(processor):
    texts = ["a", "b?", "c!", *["d" * 100] * 50]
    kit = ProcessorKit(processor, on_error="skip")
    out = await kit.stream([*map(delta, texts), end()])
    assert out.deltas == texts
    assert out.tripwire is None


async def test_a_new_attempt_finds_nothing_of_a_rejected_one():
    chunks: list[Chunk] = [delta("a@b"), {"type": "step-start", "payload": {}}, delta(".co"), end()]
    out = await ProcessorKit(Redactor).stream(chunks)
    assert shape(out.chunks) == ["step-start", ("t1", ".co"), "text-end"]


async def test_two_with_one_id_do_not_disturb_each_other():
    out = await ProcessorKit(Redactor, then=[Redactor]).stream(list("a@b.co and c"))
    assert out.text == "[E] and c"


async def test_a_rewrite_has_a_memory_for_its_block():
    class Numbering(Redactor):
        def _rewrite(self, match, text):
            match.memory["seen"] = match.memory.get("seen", 0) + 1
            return f"[{match.memory['seen']}]"

    chunks = [
        delta("a@b.co c@d.de "),
        delta("e@f.gh", "t2"),
        end("t2"),
        delta("i@j.kl "),
        end(),
        delta("m@n.op "),
    ]
    out = await ProcessorKit(Numbering).stream(chunks)
    assert "".join(out.deltas) == "[1] [2] [1][3] [1] "


@pytest.mark.parametrize("strategy", ["block", "redact"])
def test_observing_cannot_act(strategy):
    with pytest.raises(ValueError, match=f"strategy '{strategy}' could not act"):
        refuse_blind_action(StreamMode.OBSERVE, strategy, reports=frozenset({"warn"}))
    refuse_blind_action(StreamMode.WINDOW, strategy, reports=frozenset({"warn"}))
    refuse_blind_action(None, strategy, reports=frozenset({"warn"}))
    refuse_blind_action(StreamMode.OBSERVE, "warn", reports=frozenset({"warn"}))


class _Masking(Processor[Options]):
    id = "masking"
    mode = StreamMode.WINDOW

    def process_output_stream(self, args: Any) -> Any:
        return hold_stream(args, SCANNERS["email"], lambda _match, _text: "[E]", mode=self.mode)

    def flush_stream(self, args: Any) -> Any:
        return hold_flush(args, SCANNERS["email"], lambda _match, _text: "[E]", mode=self.mode)


@pytest.mark.parametrize(("mode", "passes"), [("window", False), ("hold", False), ("observe", True)])
async def test_raw_events_do_not_show_what_is_held_back(mode, passes):
    """D-89."""
    kind = type("_Mode", (_Masking,), {"mode": StreamMode(mode)})
    raw: Any = {"type": "raw", "payload": {"choices": [{"delta": {"content": "a@b.co"}}]}}
    out = await ProcessorKit(kind).stream([raw, text_delta("a@b.co"), text_delta(" x")])
    assert ("raw" in [chunk["type"] for chunk in out.chunks]) is passes
