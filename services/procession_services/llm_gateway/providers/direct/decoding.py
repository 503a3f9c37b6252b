"""Undoes the compression of an answer, for which nobody has asked (docs/adr/0026)."""

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any, Final

__all__ = ["decoded"]

_MOST: Final = 256 * 1024
"""Bytes that one step gives, however little they were."""
_MARK: Final = 2
"""Bytes by which gzip and zlib are known."""


async def decoded(reads: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Yields what was compressed as gzip, several of them too, or as deflate with or without zlib's frame.

    Raises:
        ConnectionError: It ends too early, or is compressed otherwise.
    """
    decoder: Any = None
    rest = b""
    async for data in reads:
        rest, more = rest + data, True
        while more and (decoder is not None or len(rest) >= _MARK):
            if decoder is None:
                decoder = zlib.decompressobj(_window(rest))
            try:
                piece = decoder.decompress(rest, _MOST)
            except zlib.error as error:
                raise ConnectionError(f"the answer cannot be decompressed: {error}") from error
            rest, more = decoder.unconsumed_tail, len(piece) == _MOST
            if decoder.eof:  # the next one may follow
                rest, more, decoder = decoder.unused_data, True, None
            if piece:
                yield piece
            if more:
                await asyncio.sleep(0)
    if decoder is not None or rest:
        raise ConnectionError("the connection was closed in the middle of the compressed answer")


def _window(begin: bytes) -> int:
    """How zlib has to read what begins so: by itself it knows gzip and its own frame, and servers leave that out."""
    framed = begin[0] & 0xF == zlib.DEFLATED and int.from_bytes(begin[:_MARK], "big") % 31 == 0
    return zlib.MAX_WBITS | 32 if framed or begin.startswith(b"\x1f\x8b") else -zlib.MAX_WBITS
