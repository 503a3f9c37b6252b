"""What is read from a message's header is what nats-py reads from it."""

import asyncio

import pytest
from nats.aio.client import Client

from procession.client.heard import Heard


def read_by_nats_py(header: bytes) -> dict[str, str]:
    return asyncio.run(Client()._process_headers(header)) or {}


@pytest.mark.parametrize(
    "lines",
    [
        b"Nats-Msg-Id: work:1\r\ntraceparent: 00-1\r\n\r\n",
        b"a:b\r\nc:\td \r\n\r\n",
        b"a: x: y\r\na: again\r\n\r\n",
        b"no colon\r\n two words: x\r\n\xc3\xa4: x\r\nempty:\r\n\r\n",
        "grüße: x\r\nname: grüße\r\n\r\n".encode(),
        b"broken: \xff\r\n\r\n",
        b"\r\n",
    ],
)
@pytest.mark.parametrize(
    "first", [b"NATS/1.0", b"NATS/1.0 408 Request Timeout", b"NATS/1.0 100 Idle Heartbeat"]
)
def test_headers_are_read_as_nats_py_reads_them(first, lines):
    header = first + b"\r\n" + lines
    assert Heard("s", "", b"", header).headers == read_by_nats_py(header)


@pytest.mark.parametrize("header", [b"NATS/1.0", b"NATS/1.0 \xff\r\n\r\n", b"x", b"\r\n\r\n"])
def test_a_header_that_is_none_harms_nobody(header):
    assert set(Heard("s", "", b"", header).headers) <= {"Description"}


@pytest.mark.parametrize(
    ("header", "bounces"),
    [
        (b"NATS/1.0 503\r\n\r\n", True),
        (b"NATS/1.0 404 No Messages\r\n\r\n", False),
        (b"NATS/1.0\r\nStatus: 503\r\n\r\n", False),
        (b"", False),
    ],
)
def test_the_server_alone_says_that_nobody_listens(header, bounces):
    assert Heard("s", "", b"", header).is_bounce is bounces
