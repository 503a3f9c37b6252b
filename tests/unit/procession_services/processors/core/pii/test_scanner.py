"""The local stage: what it finds, in a stream as in the whole, in linear time."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.scanners import RegexRule
from procession.text_hold import TextHold
from procession_services.processors.core.pii.family import Hit
from procession_services.processors.core.pii.redaction import redacted, replacer
from procession_services.processors.core.pii.scanner import LOCAL_TYPES, LocalScanner, merged
from tests.support.cost import seconds
from tests.unit.procession_services.processors.core.pii.samples import FOUND, NEARLY, PEM

SCANNER = LocalScanner(LOCAL_TYPES, custom=[RegexRule("badge", r"\bZZ-[0-9]{2,4}\b")])
PLACEHOLDER = replacer("placeholder", keep_form=False)
TEXTS = [text for _, text, _ in FOUND] + list(NEARLY) + ["badge ZZ-99, ZZ-1 and ZZ-12345"]


def whole(text):
    return redacted(text, SCANNER.find(text), PLACEHOLDER)


def streamed(pieces, scanner=SCANNER):
    hold, out = TextHold({}, scanner, limit=65_536), []
    for piece in pieces:
        out += hold.feed(piece)
    out += hold.flush()
    return "".join(PLACEHOLDER(match.label, text) if match else text for text, match in out)


@pytest.mark.parametrize(("kind", "text", "value"), FOUND)
def test_finds_exactly_the_value(kind, text, value):
    start = text.index(value)
    assert [(h.type, h.start, h.end) for h in SCANNER.find(text)] == [(kind, start, start + len(value))]


@pytest.mark.parametrize("text", NEARLY[:-1])
def test_finds_nothing_in_near_misses(text):
    assert SCANNER.find(text) == []


@pytest.mark.parametrize("text", TEXTS)
def test_one_character_at_a_time_and_every_split_in_two(text):
    want = whole(text)
    assert streamed(text) == want
    for at in range(1, len(text)):
        assert streamed([text[:at], text[at:]]) == want


@pytest.mark.parametrize(("kind", "text", "value"), FOUND)
def test_each_type_holds_back_by_itself(kind, text, value):
    alone = LocalScanner([kind])
    want = redacted(text, alone.find(text), PLACEHOLDER)
    assert want == text.replace(value, f"[{kind.upper()}]")
    assert streamed(text, alone) == want
    for at in range(1, len(text)):
        assert streamed([text[:at], text[at:]], alone) == want


@pytest.mark.parametrize("text", [text for text in TEXTS if len(text) <= 30])
def test_every_split_in_three(text):
    want = whole(text)
    for i, j in combinations(range(len(text) + 1), 2):
        assert streamed([text[:i], text[i:j], text[j:]]) == want


PIECES = [
    *TEXTS,
    *(value for _, _, value in FOUND),
    *(
        "a",
        "1",
        "-",
        ".",
        " ",
        "@",
        ":",
        "=",
        "+",
        "/",
        "\n",
        "http",
        "0",
        "AB",
        "ssn ",
        "tel ",
        "api",
        "😀",
        "é",
        "\ud83d",
    ),
]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(PIECES), st.integers(0, 60)), min_size=1, max_size=4),
    st.lists(st.integers(0, 400), max_size=6),
    st.sampled_from(LOCAL_TYPES),
)
def test_any_split_of_any_mixture_gives_the_redaction_of_the_whole(pieces, cuts, kind):
    text = "".join(piece[skip % (len(piece) + 1) if skip > 30 else 0 :] for piece, skip in pieces)
    places = sorted(cut % (len(text) + 1) for cut in cuts)
    want = whole(text)
    assert streamed(text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)) == want
    assert streamed(text) == want
    alone = LocalScanner([kind])
    assert streamed(text, alone) == redacted(text, alone.find(text), PLACEHOLDER)


@pytest.mark.parametrize(("kind", "text", "value"), FOUND)
def test_no_part_of_a_value_leaves_before_all_of_it_is_known(kind, text, value):
    start, hold = text.index(value), TextHold({}, SCANNER, limit=65_536)
    plain = ""
    for letter in text[: start + len(value)]:
        plain += "".join(piece for piece, match in hold.feed(letter) if match is None)
    assert text[:start].startswith(plain)


def test_prose_is_held_for_no_more_than_a_word():
    text = "The committee met on Tuesday, and nobody objected to any of the twelve proposals."
    hold = TextHold({}, SCANNER, limit=65_536)
    most = 0
    for letter in text:
        hold.feed(letter)
        most = max(most, hold.held)
    assert most <= max(map(len, text.split())) + 1


def test_a_private_key_that_is_cut_off_does_not_leak():
    cut = PEM[: PEM.index("b5yK") + 9]
    assert whole(f"see {cut}") == streamed(f"see {cut}") == "see [PRIVATE-KEY]"


def test_numbers_with_a_wrong_check_digit_are_none():
    assert whole(
        "4111 1111 1111 1112, GB82WEST12345698765431, 12345678A, 1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN3"
    ) == ("4111 1111 1111 1112, GB82WEST12345698765431, 12345678A, 1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN3")


def test_national_phone_numbers_are_those_of_the_regions():
    text = "Ring 01 23 45 67 89 or 020 7946 0958"
    french = LocalScanner(["phone"], regions=("FR",))
    assert [text[h.start : h.end] for h in french.find(text)] == ["01 23 45 67 89"]


def test_only_the_types_asked_for_are_found():
    text = "a@b.com 4111 1111 1111 1111 password: hunter2"
    assert [h.type for h in LocalScanner(["password"]).find(text)] == ["password"]


@pytest.mark.parametrize(
    "between",
    ['","mail":"', "','", ",", ";", "|", ")", "> <", r"\",\"", "?mail=", "#", ":8080?mail=", ":8080,", "\\"],
)
def test_an_address_behind_a_url_is_found(between):
    alone, text = LocalScanner(["email"]), f"to https://x.example{between}ann@b.example, ok"
    assert [text[h.start : h.end] for h in alone.find(text)] == ["ann@b.example"]
    for at in range(1, len(text)):
        assert streamed([text[:at], text[at:]], alone) == text.replace("ann@b.example", "[EMAIL]")


@pytest.mark.parametrize("user", ["ann", "ann:pw", "ann:p%40w", "ann:a#b?c", "a.b-c~d_e!$&*+=f"])
def test_the_user_of_a_url_is_no_address(user):
    assert LocalScanner(["email"]).find(f"clone https://{user}@host.example/x") == []


@pytest.mark.parametrize("behind", [".", ")", "]", "!", "\\n", "|", "#", "。", ".x"])
def test_a_key_that_is_named_ends_where_something_else_begins(behind):
    alone, value = LocalScanner(["api-key"]), "ABCDEFGHIJKLMNOPQRSTUVWX"
    text = f"(use api_key={value}{behind}"
    want = f"(use api_key=[API-KEY]{behind}"
    assert redacted(text, alone.find(text), PLACEHOLDER) == streamed(text, alone) == want


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('{"id":12,"name":"Bo","number":"555-123-4567"}', "555-123-4567"),
        ("order 66 is for Bo, 202-555-0143", "202-555-0143"),
        ("order for Bo: (555) 123-4567", "(555) 123-4567"),
        ("ref Bo +1 202-555-0143", "+1 202-555-0143"),
        ("order 202-555-0143", None),
        ("invoice no. 202 555 0143", None),
    ],
)
def test_a_word_for_another_number_counts_for_the_next_one_only(text, number):
    alone = LocalScanner(["phone"])
    want = text.replace(number, "[PHONE]") if number else text
    assert streamed(text, alone) == redacted(text, alone.find(text), PLACEHOLDER) == want


def test_overlapping_hits_are_one_of_the_type_of_the_longest():
    hits = [Hit(4, 9, "b"), Hit(0, 6, "a"), Hit(9, 12, "c")]
    assert [(h.start, h.end, h.type) for h in merged(hits)] == [(0, 9, "a"), (9, 12, "c")]


# Text that costs the most: long runs of what may begin or be a hit, and of nothing.
RUNS = [
    "a", "1", "1-", "@", "a@", "=", "key=", ":", "a:", "http://", "123456789 ", "bsn 123456789 ", "tel 9 9 9 9 9 9 ",
    "+1 ", "-----BEGIN PRIVATE KEY-----", "eyJ", "eyJabcdefgh.", "DE89 3704 0044 ", "\ud800", "0x", "a://b:", "4111 ",
    "password is ", "a@b.com ", "550e8400-e29b-41d4-a716-446655440000 ", "sk-", ".", "1.", "Bearer ", " ", "api_key= ",
]  # fmt: skip


@pytest.mark.parametrize("run", RUNS)
def test_four_times_the_text_takes_about_four_times_as_long(run):
    small, large = (run * (size // len(run)) for size in (2_000, 8_000))
    assert seconds(lambda: SCANNER.find(large)) < 10 * seconds(lambda: SCANNER.find(small)) + 0.02


@pytest.mark.parametrize(
    "run", ["1-", "http://", "sk-", "4111 ", "@", "-----BEGIN PRIVATE KEY-----\nabcdefghijklmnop"]
)
def test_a_stream_of_four_times_the_text_takes_about_four_times_as_long(run):
    def stream(size):
        text = run * (size // len(run))
        streamed(text[at : at + 9] for at in range(0, len(text), 9))

    assert seconds(lambda: stream(1_600)) < 10 * seconds(lambda: stream(400)) + 0.05


def test_a_megabyte_is_searched():
    text = "The quick brown fox. " * 25_000 + "a@b.com" + "\ud800" * 500_000
    assert [(h.type, h.start) for h in SCANNER.find(text)] == [("email", 525_000)]
