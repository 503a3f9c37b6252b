"""Messages are whole, wherever the bytes of a connection were cut."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.transport import TcpTransport
from nats.errors import ProtocolError

from procession.client.nats_line import NatsLine


@given(
    bodies=st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=20) | st.none()), max_size=6),
    cuts=st.lists(st.integers(0, 400)),
)
@example(bodies=[(b"say\r\nMSG s 9 3\r\nabc\r\n", b"-ERR 'x'\r\n"), (b"behind", None)], cuts=list(range(90)))
def test_messages_are_whole_wherever_the_bytes_were_cut(bodies, cuts):
    said, expected = b"", []
    for number, (body, header) in enumerate(bodies):
        if header is None:
            said += b"MSG s %d %d\r\n%s\r\n" % (number, len(body), body)
        else:
            said += b"HMSG s %d r %d %d\r\n%s%s\r\n" % (
                number, len(header), len(header) + len(body), header, body,
            )  # fmt: skip
        said += b"PING\r\n"
        expected.append((number, b"s", b"" if header is None else b"r", body, header or b""))
    heard: list[Any] = []
    line = NatsLine(_transport(), lambda *message: heard.append(message), has_room=lambda: None)
    at = 0
    for cut in [*sorted(cuts), len(said)]:
        if at < cut <= len(said):
            line.data_received(said[at:cut])
            at = cut
    assert heard == expected
    assert [line.control.get_nowait() for _ in range(line.control.qsize())] == [b"PING\r\n"] * len(bodies)


@pytest.mark.parametrize("odd", [b"\x0b", b"\x0c", b"\x1c", b"\x85", b"\xff"])
def test_what_a_subject_holds_is_no_other_word_of_its_line(odd):
    """A server takes it; whoever sent it could end our connections, or be heard by whom it chose."""
    subject = b"control.acme.17" + odd + b"9"
    said = b"MSG %s 5 $JS.ACK 2\r\n{}\r\nHMSG %s 5 14 16\r\nNATS/1.0\r\n\r\n\r\n{}\r\n" % (subject, subject)
    heard: list[Any] = []
    NatsLine(_transport(), lambda *message: heard.append(message), has_room=lambda: None).data_received(said)
    assert heard == [(5, subject, b"$JS.ACK", b"{}", b""), (5, subject, b"", b"{}", b"NATS/1.0\r\n\r\n\r\n")]


@pytest.mark.parametrize(
    "said",
    [b"M", b"MSG", b"MSG s 5", b"MSG s x 0", b"MSG s 5 x", b"MSG s 5 r more 0", b"H", b"HMSG", b"HMSG 5", b"HMSG s 5 5",
     b"HMSG s 5 x 5", b"HMSG s 5 6 5", b"HMSG s 5 r more 0 0"],
)  # fmt: skip
def test_what_is_no_message_ends_the_connection(said):
    """What else may come would be read from the middle of something."""
    ended: list[bool] = []
    transport = _transport()
    transport._io_writer.transport.abort = lambda: ended.append(True)
    line = NatsLine(transport, lambda *_: pytest.fail("it was heard"), has_room=lambda: None)
    line.data_received(said + b"\r\n\r\n")
    assert ended == [True]
    assert isinstance(line.control.get_nowait(), ProtocolError)


def _transport() -> Any:
    """A connection of which nothing is there but its buffers."""
    transport: Any = TcpTransport()
    socket = SimpleNamespace(
        write=None, get_protocol=lambda: None, set_protocol=lambda _: None, is_closing=lambda: False
    )
    transport._io_reader = SimpleNamespace(_buffer=b"", _eof=False)
    transport._io_writer = SimpleNamespace(transport=socket)
    return transport
