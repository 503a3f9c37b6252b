"""`regex-filter`: what the vectors leave open. Streams at every split, linear time, bad options."""

import threading
import time
from itertools import combinations

import pytest

from procession.errors import InvalidOptionsError, ProcessorError
from procession.processor import Hook
from procession.testing import ProcessorKit
from procession_services.processors.core.regex_rules import Rules
from procession_services.processors.regex_filter import RegexFilter
from tests.support.cost import seconds

SECRETS = {"presets": ["pii", "secrets", "urls"], "strategy": "redact"}
TEXTS = [
    "Mail a.b@c.de, or +1 (555) 123-4567. SSN 123-45-6789!",
    "card 4111-1111 1111-1111 key api_key='abcdefghij0123456789' ok",
    "AKIAIOSFODNN7EXAMPLE see https://x.io/a?b=c, Bearer abc.d\u00e9 \U0001f600a@b.co",
]


def whole(options, text):
    return RegexFilter.build(options)._rules.find(text)


async def redacted(options, text):
    kit = ProcessorKit(RegexFilter, options)
    await kit.output_result(text)
    return kit.messages[-1]["content"]["parts"][0]["text"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("mode", ["window", "hold"])
async def test_every_split_gives_the_redaction_of_the_whole_text(text, mode):
    options = {**SECRETS, "streamMode": mode}
    want = await redacted(options, text)
    assert want.count("[") >= 2
    assert (await ProcessorKit(RegexFilter, options).stream(list(text))).text == want
    for i, j in list(combinations(range(len(text) + 1), 2))[:: 17 if mode == "hold" else 5]:
        kit = ProcessorKit(RegexFilter, options)
        assert (await kit.stream([text[:i], text[i:j], text[j:]])).text == want


@pytest.mark.parametrize("text", TEXTS)
async def test_a_blocked_stream_gives_out_nothing_of_a_match(text):
    options = {**SECRETS, "strategy": "block"}
    first = min(region.start for region in whole(options, text))
    for i in range(len(text) + 1):
        out = await ProcessorKit(RegexFilter, options).stream([text[:i], text[i:]])
        assert text[:first].startswith("".join(out.deltas))
        assert out.blocked.metadata["strategy"] == "block"
    out = await ProcessorKit(RegexFilter, {**options, "streamMode": "hold"}).stream([text])
    assert out.tripwire is not None
    assert out.deltas == []


async def test_a_rule_without_the_flag_g_counts_once_in_a_text_however_it_is_cut():
    rules = [{"name": "once", "pattern": {"regex": r"\d+", "flags": ""}}, {"name": "all", "pattern": "2a"}]
    options = {"rules": rules, "strategy": "redact"}
    text = "1 12a 3 2a"
    want = await redacted(options, text)
    assert want == "[REDACTED] 1[REDACTED] 3 [REDACTED]"
    for i, j in combinations(range(len(text) + 1), 2):
        assert (await ProcessorKit(RegexFilter, options).stream([text[:i], text[i:j], text[j:]])).text == want


async def test_positions_of_reports_are_those_of_the_text():
    kit = ProcessorKit(RegexFilter, {**SECRETS, "includeRedactedValues": True})
    await kit.stream(["x" * 100 + " \U0001f600 a@", "b.co and c@d", ".org"])
    redactions = [r for v in kit.violations for r in v.detail["redactions"]]
    assert [(r["index"], r["length"], r["value"]) for r in redactions] == [
        (103, 6, "a@b.co"),
        (114, 7, "c@d.org"),
    ]
    assert all(v.detail["phase"] == "processOutputStream" for v in kit.violations)


async def test_warnings_pass_at_once_and_are_violations():
    kit = ProcessorKit(RegexFilter, {"presets": ["pii"], "strategy": "warn"})
    out = await kit.stream(["a@", "b.co", " x"])
    assert out.deltas == ["a@", "b.co", " x"]
    assert [v.detail["matches"][0]["rule"] for v in kit.violations] == ["email"]
    assert "a@b.co" not in str(kit.violations)


@pytest.mark.parametrize("mode", ["window", "hold"])
async def test_warnings_change_no_text_that_is_held_until_it_is_judged(mode):
    rules = [{"name": "empty", "pattern": "x*", "replacement": "Z"}]
    kit = ProcessorKit(
        RegexFilter, {"presets": ["pii"], "rules": rules, "strategy": "warn", "streamMode": mode}
    )
    out = await kit.stream(["to a@", "b.co now"])
    assert out.text == "to a@b.co now"
    assert "email" in {match["rule"] for v in kit.violations for match in v.detail["matches"]}


async def test_only_new_messages_are_examined_by_default():
    old = {"id": "old", "role": "user", "content": "a@b.co", "createdAt": "2025-01-01T00:00:00.000Z"}
    for scope, blocked in (("new", False), ("all", True)):
        kit = ProcessorKit(RegexFilter, {"presets": ["pii"], "scope": scope})
        kit.message_list.add(old, "memory")
        out = await kit.input("hello")
        assert (out.tripwire is not None) is blocked


async def test_other_parts_and_messages_stay():
    image = {"type": "file", "data": "aGk=", "mimeType": "image/png"}
    kit = ProcessorKit(RegexFilter, SECRETS)
    parts = [{"type": "text", "text": "a@b.co"}, image, {"type": "text", "text": "fine"}]
    out = await kit.input([{"role": "user", "content": parts}, {"role": "user", "content": "other"}])
    [first, second] = out.messages
    assert [p.get("text", p["type"]) for p in first["content"]["parts"]] == ["[EMAIL]", "file", "fine"]
    assert second["content"]["parts"] == [{"type": "text", "text": "other"}]


async def test_groups_in_a_replacement():
    rules = [{"name": "n", "pattern": r"(\d)(?<x>\w)(\w?)", "replacement": "<$2$1$$$<x>|$4|$01|$3>"}]
    assert await redacted(
        {"rules": rules, "strategy": "redact"}, "1ab 2c"
    ) == "<a1$a|$4|1|b> <c2$c|$4|1|>".replace("1|>", "2|>")


def test_the_phase_decides_about_the_hooks():
    stream_and_result = {Hook.OUTPUT_STREAM, Hook.OUTPUT_RESULT}
    assert RegexFilter.hooks_for({"phase": "input"}) == {Hook.INPUT}
    assert RegexFilter.hooks_for({"phase": "output"}) == stream_and_result
    assert (
        RegexFilter.hooks_for({})
        == RegexFilter.hooks_for({"phase": None})
        == stream_and_result | {Hook.INPUT}
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "no rule"),
        ({"presets": ["nope"]}, "no rule"),
        ({"rules": [{"name": "x", "pattern": "a("}]}, "rule 'x'"),
        ({"rules": [{"name": "x", "pattern": {"regex": "a", "flags": "q"}}]}, "unknown flags 'q'"),
        ({"rules": [{"name": "x", "pattern": r"(?<=a*)b"}]}, "look-behind"),
        ({"rules": [{"name": "x", "pattern": "(a{300}){300}"}]}, "rule 'x': .* more than 20,000 elements"),
        ({"rules": [{"name": "x", "pattern": "/key-[/]+/gi"}]}, "regex: 'key-.*flags: 'gi'"),
        ({"rules": [{"name": "x", "pattern": r"/key-\d/"}]}, "as a JavaScript literal"),
        ({"rules": [{"name": "x", "pattern": "a", "replacement": "b" * 1_001}]}, "1,000 characters"),
        ({"rules": [{"name": "x", "pattern": "a", "replacement": "$&" * 17}]}, "16 `.` groups"),
        ({"presets": ["pii"], "streamCarryoverSize": 0}, "streamCarryoverSize"),
        ({"presets": ["pii"], "streamCarryoverSize": 1.5}, "streamCarryoverSize"),
        ({"presets": ["pii"], "maxHeld": 0}, "maxHeld"),
        ({"presets": ["pii"], "streamMode": "observe"}, "could not act"),
        ({"presets": ["pii"], "streamMode": "observe", "strategy": "redact"}, "could not act"),
        ({"presets": ["pii"], "strategy": "hide"}, "strategy"),
    ],
)
def test_options_that_cannot_work_are_refused(options, problem):
    with pytest.raises(InvalidOptionsError, match=problem.replace("(", r"\(")):
        RegexFilter.build(options)


@pytest.mark.parametrize("split", range(1, 22))
async def test_a_group_that_matched_nothing_is_nothing_when_it_is_referred_to(split):
    rules = [{"name": "key", "pattern": r"key=(['\"])?[0-9a-f]{6,9}\1", "replacement": "[key]"}]
    text = "key=c0ffee99 key='c0ffee'"
    made = ProcessorKit(RegexFilter, {"rules": rules, "strategy": "redact"})
    assert (await made.stream([text[:split], text[split:]])).text == "[key] [key]"


@pytest.mark.parametrize(
    "pattern", ["/api/v1/", "/home/", r"\/key/", "a/b", {"regex": "/key/", "flags": "g"}]
)
def test_slashes_that_are_meant_are_taken(pattern):
    RegexFilter.build({"rules": [{"name": "x", "pattern": pattern}]})


def test_null_is_not_given():
    built = RegexFilter.build({"presets": ["pii"], "rules": None, "phase": None, "streamMode": None})
    assert built.options.phase == "all"


async def test_a_catastrophic_pattern_ends_the_run_and_does_not_stall_it():
    rules = [{"name": "bad", "pattern": "(?:a|aa)+$"}]
    kit = ProcessorKit(RegexFilter, {"rules": rules, "strategy": "redact"})
    started = time.process_time()
    with pytest.raises(ProcessorError, match="rule 'bad' took more than") as raised:
        await kit.stream(["a" * 60 + "b", "more"])
    assert time.process_time() - started < 3
    assert raised.value.processor_id == "regex-filter"


async def test_groups_that_take_too_long_to_find_again_stay_as_they_are_written():
    """By itself the match lacks what the pattern looks at, so that all ways through it are tried."""
    rules = [{"name": "n", "pattern": "(?:(?:a|b|ab)(?:a|b|ab)?)+(?=c)", "replacement": "<$&>"}]
    started = time.process_time()
    told = await redacted({"rules": rules, "strategy": "redact"}, ("ab" * 20 + "c ") * 10)
    assert told == "<$&>c " * 10
    assert time.process_time() - started < 10


async def test_much_work_is_done_beside_the_event_loop(monkeypatch):
    where = []
    find, loop = Rules.find, threading.current_thread()

    def noting(rules, text):
        where.append(threading.current_thread() is loop)
        return find(rules, text)

    monkeypatch.setattr(Rules, "find", noting)
    for text in ("a@b.co", "a@b.co," * 10_000):
        out = await ProcessorKit(RegexFilter, {**SECRETS, "presets": ["pii"]}).input(text)
        assert out.messages[0]["content"]["parts"][0]["text"] == text.replace("a@b.co", "[EMAIL]")
    assert where == [True, False]


async def test_a_match_without_an_end_ends_the_run():
    kit = ProcessorKit(RegexFilter, {**SECRETS, "maxHeld": 1000})
    out = await kit.stream(["see https://", *["abcdefgh"] * 1000])
    assert "more than 1000 characters" in out.blocked.reason
    assert "".join(out.deltas) == "see "


@pytest.mark.parametrize(
    "unit", ["a", "a@", "1", "a@b.co ", "\ud800", "http://x ", "api_key=", "x@x.", " ", "é"]
)
def test_the_cost_of_a_text_is_linear(unit):
    rules = RegexFilter.build(SECRETS)._rules

    def cost(size):
        text = (unit * size)[:size]
        return seconds(lambda: rules.find(text))

    assert cost(80_000) < 12 * cost(20_000) + 0.01


@pytest.mark.parametrize(
    "text",
    [
        ",".join(f"https://example.com/item/{n}" for n in range(2200)),
        "http://" * 9000,
        ("http://" + "x" * 1020) * 60,
        "a" * 256 + "@" + "a." * 25_000,
        ("a" * 256 + "@" + "a" * 253) * 100,
    ],
    ids=["urls", "schemes", "long", "domain", "addresses"],
)
@pytest.mark.parametrize("final", [True, False])
def test_no_text_that_fits_into_a_hold_takes_the_presets_as_long_as_they_may(text, final):
    RegexFilter.build(SECRETS)._rules.scanner.scan(text, 0, final=final)  # else a ScanError


async def test_a_list_of_urls_is_one_place_however_it_is_cut():
    text = ",".join(f"https://example.com/item/{n}" for n in range(1200))
    for chunks in ([text], [text[at : at + 50] for at in range(0, len(text), 50)]):
        kit = ProcessorKit(RegexFilter, {"presets": ["urls"], "strategy": "redact"})
        assert (await kit.stream(["see ", *chunks, " and HTTP://b"])).text == "see [URL] and [URL]"
