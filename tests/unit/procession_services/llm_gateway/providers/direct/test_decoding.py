"""However an answer was compressed and cut into reads, it is the same."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession_services.llm_gateway.providers.direct.decoding import decoded


def raw(data):
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(data) + made.flush()


async def reads(data, size):
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def read(data, size=1000):
    return [piece async for piece in decoded(reads(data, size))]


@given(st.binary(max_size=300), st.sampled_from([gzip.compress, zlib.compress, raw]), st.integers(1, 400))
async def test_any_cuts(data, compress, size):
    assert b"".join(await read(compress(data), size)) == data


@given(st.lists(st.binary(max_size=30), max_size=4), st.integers(1, 50))
async def test_several_that_follow_one_another_are_one(parts, size):
    data = b"".join([gzip.compress(part) for part in parts])
    assert b"".join(await read(data, size)) == b"".join(parts)


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress, raw])
async def test_what_is_cut_short_is_not_whole(compress):
    whole = compress(b"data: 1\n\n" * 9)
    for end in range(1, len(whole)):
        with pytest.raises(ConnectionError, match="in the middle"):
            await read(whole[:end])


async def test_nothing_is_nothing():
    assert await read(b"") == []


@pytest.mark.parametrize(
    "data",
    [
        b"abcdef",
        gzip.compress(b"data: 1\n\n" * 90)[:10] + b"\xff" * 20,
        gzip.compress(b"x") + b"\xff\xff\xff",
    ],
    ids=["not at all", "from the middle on", "behind it"],
)
async def test_what_is_compressed_otherwise_is_told(data):
    with pytest.raises(ConnectionError, match="cannot be decompressed"):
        await read(data)


@pytest.mark.parametrize("size", [262_144 * 3, 10_000_000])
@pytest.mark.parametrize("compress", [gzip.compress, raw])
async def test_a_little_that_becomes_much_comes_in_pieces(size, compress):
    pieces = await read(compress(bytes(size)), 1_000_000)
    assert sum(map(len, pieces)) == size
    assert max(map(len, pieces)) <= 256 * 1024
