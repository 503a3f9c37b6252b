"""JSON that streams is redacted as its strings mean it, whatever is escaped in it and however it is cut."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.json_text import JsonScanner, rewrites_strings, unescaped
from procession.scanners import RegexRule, RegexScanner
from procession.text_hold import TextHold

PATTERN = r"\bab\b|\"b|n@|é+|\U0001f600b"
SCANNER = JsonScanner(RegexScanner([RegexRule("x", PATTERN)]))
WORDS = st.lists(st.sampled_from([*'ab "\\/nu@é\n\t\U0001f600', "ab", "\ud83d"]), max_size=12).map("".join)


def marked(_match, text):
    return f'<"{len(text)}\n>'


def streamed(pieces):
    hold, rewrite, out = TextHold({}, SCANNER, limit=1_000), rewrites_strings(marked), []
    for piece in pieces:
        out += hold.feed(piece)
    out += hold.flush()
    return "".join(text if match is None else rewrite(match, text) for text, match in out)


@given(WORDS, st.booleans(), st.lists(st.integers(0, 60), max_size=4))
def test_a_string_is_redacted_as_what_it_means(value, ascii_only, cuts):
    value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    text = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(places)]
    want = re.sub(PATTERN, lambda found: marked(None, found[0]), value)
    for each in (pieces, list(text)):
        assert json.loads(f'"{streamed(each)}"') == want


def test_nothing_of_an_escape_leaves_before_it_is_whole():
    hold = TextHold({}, SCANNER, limit=1_000)
    out = [hold.feed(letter) for letter in "-\\ud83d\\ude00b-"]
    assert [text for pieces in out[:-1] for text, _ in pieces] == ["-"]
    assert out[-1][0][0] == "\\ud83d\\ude00b"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (r"a\nb", "a\nb"),
        (r"a\\nb", r"a\nb"),
        (r"\u0041\/\"", 'A/"'),
        (r"\ud83d\ude00", "\U0001f600"),
        (r"\ud83d-\x-\u12", r"\ud83d-\x-\u12"),
        ("\\", "\\"),
    ],
)
def test_what_escapes_mean(text, meant):
    assert unescaped(text) == meant


def test_what_stays_is_left_as_it_was_written():
    assert rewrites_strings(lambda _match, text: text)(None, r"\u0041\/") == r"\u0041\/"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "new", "want"),
    [
        ('"key": "abc"', '"key": "***"', '"key": "***"'),
        ('"key": "a\\nc", ', "", ""),
        ('"sk-1"', '"***"', '"***"'),
        ('key=abc"', "[KEY]", '[KEY]"'),
        ('"key=abc', 'an "x"', '"an \\"x\\"'),
        ('key=abc"', 'key=***"', 'key=***"'),
        ('say \\"abc\\"', 'say "***"', 'say \\"***\\"'),
    ],
)
def test_quotes_of_the_json_itself_stay_what_they_are(text, new, want):
    assert rewrites_strings(lambda _match, _text: new)(None, text) == want  # type: ignore[arg-type]
