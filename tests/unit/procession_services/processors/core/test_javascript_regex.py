"""Regular expressions of JavaScript mean what they mean there."""

import pytest
import regex

from procession_services.processors.core.javascript_regex import translate


def found(source, text, flags="g"):
    translated = translate(source, flags)
    return [match.group() for match in regex.finditer(translated.pattern, text, translated.flags)]


@pytest.mark.parametrize(
    ("source", "flags", "text", "matches"),
    [
        (r"\d+", "g", "1 ٣ 22", ["1", "22"]),
        (r"\w+", "g", "aé_1", ["a", "_1"]),
        (r"\bé", "g", "é", []),
        (r"\s", "g", "a\u00a0\ufeff\x1c", ["\u00a0", "\ufeff"]),
        (r"\S+", "g", "a\u00a0b", ["a", "b"]),
        (r"[\s,]+", "g", "a,\u00a0,b", [",\u00a0,"]),
        ("a$", "g", "a\na", ["a"]),
        ("a$", "g", "a\n", []),
        ("a$", "gm", "a\u2028a\r", ["a", "a"]),
        ("^a", "gm", "a\na\u2028a", ["a", "a", "a"]),
        ("^a", "g", "a\na", ["a"]),
        ("a.", "g", "a\na\u2028ab", ["ab"]),
        ("a.", "gs", "a\nab", ["a\n", "ab"]),
        (r"\u{1F600}", "gu", "x\U0001f600", ["\U0001f600"]),
        (r"\ud83d\ude00", "g", "x\U0001f600", ["\U0001f600"]),
        (r"\x41\u0042", "g", "AB", ["AB"]),
        (r"(?<y>a)\k<y>", "g", "aa", ["aa"]),
        (r"(?<y>['\"])?ab\k<y>", "g", "ab 'ab' 'ab", ["ab", "'ab'", "ab"]),
        (r"(['\"])?ab\1", "g", "ab 'ab' 'ab", ["ab", "'ab'", "ab"]),
        (r"(a)|b\1", "g", "ba", ["b", "a"]),
        (r"(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)\10", "g", "abcdefghijj", ["abcdefghijj"]),
        (r"(?<=x)a(?<!b)", "g", "xa", ["a"]),
        (r"a{2}b{1,}c{0,1}", "g", "aabbc", ["aabbc"]),
        (r"a{,2}", "g", "a{,2}", ["a{,2}"]),
        (r"a{e<=1}", "g", "a{e<=1} b", ["a{e<=1}"]),
        (r"[^]", "g", "\n", ["\n"]),
        (r"[]|b", "g", "ab", ["b"]),
        (r"[[]", "g", "[]", ["["]),
        (r"[a&&b]", "g", "&", ["&"]),
        (r"[é-ë]", "g", "ê", ["ê"]),
        (r"É", "gi", "éÉ", ["é", "É"]),
        (r"[É]", "gi", "é", ["é"]),
        (r"s", "gi", "S\u017f", ["S"]),
        (r"\/\-\_\e\%", "g", "/-_e%", ["/-_e%"]),
        (r"\cJ\0", "g", "\n\0", ["\n\0"]),
        (r"[\b]", "g", "\b", ["\b"]),
        ("ab", "y", "abab", ["ab"]),
        ("b", "y", "ab", []),
        (r"}", "g", "}", ["}"]),
        (r"\p{L}+", "gu", "größe 1 Ключ", ["größe", "Ключ"]),
        (r"[\p{Lu}\d]+", "gu", "aÄЖ1٣", ["ÄЖ1"]),
        (r"\P{L}+", "gu", "ö1", ["1"]),
        (r"\p{Emoji_Presentation}", "gu", "a\U0001f600", ["\U0001f600"]),
        (r"\p{Script=Cyrillic}+", "gu", "aЖя", ["Жя"]),
        (r"[в-яё]+", "gi", "ЖЯЛ", ["ЖЯЛ"]),
        (r"[\u0430-\u044f]+", "gi", "ЖЯ", ["ЖЯ"]),
        (r"é\b\w\d", "g", "éa1 éa٣", ["éa1"]),
        (r"é[\w-.]+", "g", "éa-.b é", ["éa-.b"]),
        (r"[.-\w]+", "g", "a-./b", ["a-.", "b"]),
        (r"[\s-_]+", "g", "a _-b", [" _-"]),
        (r"[\S]+", "g", "a\u00a0b", ["a", "b"]),
        (r"[\D]+|é", "g", "1٣é", ["٣é"]),
        (r"[^\W\d]+|é", "g", "a1_é ö", ["a", "_", "é"]),
        (r"[\W]+|é", "gi", "Iks-é\u0100", ["-é\u0100"]),
    ],
)
def test_it_matches_as_in_javascript(source, flags, text, matches):
    assert found(source, text, flags) == matches


def test_the_flag_g_decides_whether_all_matches_count():
    assert translate("a", "g").all_matches
    assert not translate("a", "").all_matches


def test_a_class_in_a_class_is_refused_where_it_would_be_one():
    assert found("[[a]", "[", "g") == ["["]
    with pytest.raises(ValueError, match="class"):
        translate(r"[\p{L}--[a-z]]", "v")


@pytest.mark.parametrize("flags", ["x", "gq", "gy"])
def test_flags_that_do_not_work_are_refused(flags):
    with pytest.raises(ValueError, match="flags"):
        translate("a", flags)
