"""Amazon's event stream is cut into its frames, however the bytes arrive."""

import struct
from itertools import pairwise
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession_services.llm_gateway.providers.direct.bedrock import FrameReader, _decoded
from procession_services.llm_gateway.providers.event_errors import CutError, EventError
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


def test_a_stream_that_ends_within_a_frame_is_cut_off():
    reader = FrameReader()
    assert reader.feed(frame(b"x") + b"\0") == [frame(b"x")]
    with pytest.raises(CutError, match="in the middle"):
        reader.end()


@pytest.mark.parametrize("length", [b"\0\0\0\4", b"\xff\0\0\0"])
def test_what_cannot_be_a_length_is_an_error(length):
    with pytest.raises(EventError, match="not an event stream"):
        FrameReader().feed(length)


def message(payload, **headers):
    """A whole frame with its checksums, as Amazon writes them."""
    head = b"".join(
        bytes([len(name) + 1])
        + f":{name}".replace("_", "-").encode()
        + b"\x07"
        + struct.pack(">H", len(value))
        + value
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    whole = prelude + struct.pack(">I", crc32(prelude)) + head + payload
    return whole + struct.pack(">I", crc32(whole))


@pytest.mark.parametrize(
    "headers",
    [
        {"message_type": b"exception", "exception_type": b"throttlingException"},
        {"message_type": b"event", "event_type": b"throttlingException"},
    ],
    ids=["as an exception", "as an event"],
)
def test_an_exception_is_one_however_its_frame_is_called(headers):
    with pytest.raises(EventError, match="slow down") as raised:
        _decoded(message(b'{"message": "slow down"}', **headers))
    assert (raised.value.status_code, raised.value.body["type"]) == (429, "throttlingException")


def test_half_a_character_in_a_frame_is_forgiven():
    frame = message(
        rb'{"delta": {"text": "a\ud83d"}}', message_type=b"event", event_type=b"contentBlockDelta"
    )
    assert _decoded(frame) == {"delta": {"text": "a\ufffd"}}


@pytest.mark.parametrize(
    ("payload", "told", "said"),
    [
        (b"", {}, "internalServerException"),
        (b"try later", {}, "try later"),
        (b"", {"error_message": b"try later"}, "try later"),
    ],
)
def test_an_exception_without_a_body_says_what_it_can(payload, told, said):
    headers = {"message_type": b"exception", "exception_type": b"internalServerException", **told}
    with pytest.raises(EventError) as raised:
        _decoded(message(payload, **headers))
    assert raised.value.body == {"message": said, "type": "internalServerException"}


def test_a_frame_that_holds_nothing_is_a_sign_of_life():
    assert _decoded(message(b"", message_type=b"event", event_type=b"ping")) == {}
