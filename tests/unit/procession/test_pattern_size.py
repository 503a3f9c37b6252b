"""What a pattern of somebody else may cost is known before it is compiled."""

import pytest

from procession.pattern_size import written_out


@pytest.mark.parametrize(
    ("pattern", "elements"),
    [
        ("abc", 3),
        (r"\d{4}-[a-z]{2,}x{0,500}", 4 + 1 + 2 + 1),
        ("(ab){3}", 6),
        ("(?#(ab){9})a", 1),
        ("[(]{3}[]{4}]", 3 + 1),
        ("{5}", 0),
    ],
)
def test_what_must_come_again_counts_as_often(pattern: str, elements: int) -> None:
    assert written_out(pattern) == elements


@pytest.mark.parametrize(
    "pattern",
    [
        "a{4000000000}",
        " {4000000000}",
        "(?:(?:(?:a{200}){200}){200}){200}",
        "(?:a{100000})(?#c){100000}",
        "(?:a{100000}) {100000}",
        "(?x)(?:a{100000})#(c\n{100000}",
        "(?x: a{100000} ){100000}",
        "[[:a:]x{4000000000}]",
        "(?:a{100000}){100000,}",
        f"a{{{'9' * 9000}}}",
        "(" * 500 + "a" + "){999}" * 500,
    ],
)
def test_nothing_hides_what_is_too_much(pattern: str) -> None:
    assert written_out(pattern) > 10**6


def test_where_white_space_means_nothing_all_repetitions_count_together() -> None:
    assert written_out("a{10} b{10}", verbose=True) == 100 * len("a{10} b{10}")
