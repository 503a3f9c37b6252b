"""Amazon's event stream is cut into its frames, however the bytes arrive."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession_services.llm_gateway.providers.direct.bedrock import FrameReader
from procession_services.llm_gateway.providers.openai_events import EventError
from tests.support.cost import growth


def frame(payload):
    return (4 + len(payload)).to_bytes(4, "big") + payload


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=5), st.lists(st.integers(0, 60), max_size=8))
def test_any_split_of_the_bytes_gives_the_same_frames(payloads, cuts):
    frames = [frame(payload) for payload in payloads]
    body, reader, read = b"".join(frames), FrameReader(), []
    for start, stop in pairwise([0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]):
        read += reader.feed(body[start:stop])
    assert read + reader.end() == frames


def test_a_large_frame_in_many_reads_is_put_together_once():
    def read(size):
        whole, reader = frame(bytes(size)), FrameReader()
        got = [each for at in range(0, len(whole), 1024) for each in reader.feed(whole[at : at + 1024])]
        assert got == [whole]

    assert growth(read, 8_000_000) < 20  # about 50 if each read copied what came before


def test_a_stream_that_ends_within_a_frame_is_an_error():
    reader = FrameReader()
    assert reader.feed(frame(b"x") + b"\0") == [frame(b"x")]
    with pytest.raises(EventError, match="in the middle"):
        reader.end()


@pytest.mark.parametrize("length", [b"\0\0\0\4", b"\xff\0\0\0"])
def test_what_cannot_be_a_length_is_an_error(length):
    with pytest.raises(EventError, match="no event stream"):
        FrameReader().feed(length)
