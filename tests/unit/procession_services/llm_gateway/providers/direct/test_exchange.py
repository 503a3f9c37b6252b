"""However an answer is cut into reads, its body is the same."""

import asyncio
import os
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession_services.llm_gateway.providers.direct.exchange import Connection

HEAD = b"HTTP/1.1 200 OK\r\nx-a: 1\r\nX-B: 2\r\n"


class Transport(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.reads, self.closing, self.unsent = True, False, 0

    def write(self, data):
        pass

    def pause_reading(self):
        assert self.reads
        self.reads = False

    def resume_reading(self):
        assert not self.reads
        self.reads = True

    def abort(self):
        self.closing = True

    def get_write_buffer_size(self):
        return self.unsent

    def is_closing(self):
        return self.closing


def chunked(pieces):
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


def measured(pieces):
    return HEAD + b"content-length: %d\r\n\r\n" % sum(map(len, pieces)) + b"".join(pieces)


async def test_an_answer_without_a_length_is_not_whole_when_its_connection_was_reset():
    connection = Connection()
    connection.connection_made(Transport())
    await connection.send(b"", b"")
    connection.data_received(HEAD + b"\r\nhalf")
    connection.connection_lost(ConnectionResetError("reset by peer"))
    reads = connection.body()
    assert await anext(reads) == b"half"
    with pytest.raises(ConnectionError, match="connection was closed: reset by peer"):
        await anext(reads)


async def test_an_answer_that_nobody_asked_for_closes_the_connection_at_once():
    connection = Connection()
    connection.connection_made(Transport())
    await connection.send(b"", b"")
    connection.data_received(measured([b"asked for"]))
    assert connection.reusable
    connection.data_received(measured([b"not asked for"]))
    assert connection.closed
    assert not connection.reusable


async def test_a_request_whose_connection_breaks_half_way_is_not_waited_for():
    connection = Connection()
    connection.connection_made(Transport())
    connection.pause_writing()
    async with asyncio.timeout(10):
        asyncio.get_running_loop().call_soon(
            connection.connection_lost, ConnectionResetError("reset by peer")
        )
        await connection.send(b"", bytes(1_000_000))
        with pytest.raises(ConnectionError, match="reset by peer"):
            await connection.answered()


async def test_a_request_that_is_answered_before_it_is_taken_is_not_waited_for():
    connection = Connection()
    connection.connection_made(Transport())
    connection.pause_writing()
    async with asyncio.timeout(10):
        asyncio.get_running_loop().call_soon(connection.data_received, measured([b"too long"]))
        await connection.send(b"", bytes(1_000_000))
        await connection.answered()
    assert not connection.reusable


async def test_an_interim_answer_does_not_end_a_request():
    connection = Connection()
    connection.connection_made(Transport())
    connection.pause_writing()
    sending = asyncio.ensure_future(connection.send(b"", bytes(1_000_000)))
    await asyncio.sleep(0)
    connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\n")
    await asyncio.sleep(0.01)
    assert not sending.done()
    connection.resume_writing()
    await sending


async def test_a_connection_whose_request_was_not_taken_to_its_end_is_not_used_again():
    connection, transport = Connection(), Transport()
    connection.connection_made(transport)
    await connection.send(b"", b"")
    connection.data_received(measured([b"x"]))
    assert connection.reusable
    transport.unsent = 1
    assert not connection.reusable


async def test_a_connection_whose_answer_was_not_read_to_its_end_is_not_used_again():
    connection = Connection()
    connection.connection_made(Transport())
    await connection.send(b"", b"")
    connection.data_received(measured([bytes(200_000)]))
    assert not connection.reusable
    await anext(connection.body())
    assert connection.reusable


@given(
    st.lists(st.one_of(st.binary(min_size=1), st.integers(100_000, 300_000).map(os.urandom)), max_size=4),
    st.sampled_from([chunked, measured]),
    st.integers(0, 1),
    st.data(),
)
async def test_any_cuts(pieces, framed, interim, data):
    answer = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * interim + framed(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    connection, transport = Connection(), Transport()
    connection.connection_made(transport)
    await connection.send(b"", b"")
    for start, stop in pairwise([0, *cuts, len(answer)]):
        if start < stop:
            connection.data_received(answer[start:stop])
    await connection.answered()
    assert (connection.status, connection.headers[:2]) == (200, [("x-a", "1"), ("x-b", "2")])
    assert b"".join([read async for read in connection.body()]) == b"".join(pieces)
    assert connection.reusable
    assert transport.reads
