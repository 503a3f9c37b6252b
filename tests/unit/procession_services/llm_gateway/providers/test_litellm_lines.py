"""LiteLLM gets the lines that a stream has, however they arrive."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from procession_services.llm_gateway.providers.litellm_lines import LineSplitter


@given(
    st.lists(st.text("ab:é \u2028\x85\x1c", max_size=4), max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 30), max_size=6),
)
def test_any_split_of_the_text_gives_the_same_lines(lines: list[str], newline: str, cuts: list[int]) -> None:
    text = "".join(line + newline for line in lines) + "rest"
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    decoder = LineSplitter()
    read = [line for start, stop in pairwise(borders) for line in decoder.feed(text[start:stop])]
    assert read == [line for line in lines if not line.startswith(":")]
    assert decoder.flush() == ["rest"]
    assert decoder.flush() == []


def test_lines_for_clients_that_connect_again_are_none() -> None:
    assert LineSplitter().feed("id: 7\nretry: 100\nevent: a\ndata: b\n\n") == ["event: a", "data: b", ""]


def test_only_a_stream_may_begin_with_a_mark() -> None:
    decoder = LineSplitter()
    lines = decoder.feed("\ufeff") + decoder.feed("data: a\n\ufeffdata: b\n")
    assert lines == ["data: a", "\ufeffdata: b"]


def test_only_the_end_of_a_stream_looks_like_it() -> None:
    event = {"said": "it sends \\[DONE] or [DONE]"}
    decoder = LineSplitter()
    [line, _, end, *_] = decoder.feed(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n{json.dumps(event)}")
    for told in (line.removeprefix("data:"), *decoder.flush()):
        assert "[DONE]" not in told
        assert json.loads(told) == event
    assert end == "data: [DONE]"
