"""What writers send, and what they refuse."""

from typing import Any

import pytest

from procession.writers import NullWriter, TurnWriter, check_custom
from procession_schemas.chunks import CORE_TYPES


@pytest.mark.parametrize("kind", sorted(CORE_TYPES))
async def test_a_writer_refuses_the_types_of_the_runtime(kind):
    with pytest.raises(ValueError, match="belongs to the runtime"):
        await NullWriter().custom({"type": kind})


@pytest.mark.parametrize("chunk", [{}, {"type": ""}, {"type": 5}, {"data": 1}])
async def test_a_writer_refuses_a_chunk_without_a_type(chunk):
    with pytest.raises(ValueError, match="needs a `type`"):
        await NullWriter().custom(chunk)


@pytest.mark.parametrize("value", [{1}, float("nan"), "\ud800", 2**64, {1: 2}])
async def test_a_writer_refuses_what_is_no_json(value):
    sent: list[Any] = []

    async def send(chunk):
        sent.append(chunk)

    for writer in (TurnWriter(send), NullWriter()):
        with pytest.raises(TypeError, match=r"^chunk\['data'\]"):
            await writer.custom({"type": "data-x", "data": value})
    assert sent == []


def test_a_custom_chunk_is_copied_as_it_is():
    chunk = {"type": "data-x", "data": {"a": 1}, "transient": True, "id": "i"}
    assert check_custom(chunk) == chunk
    assert check_custom(chunk) is not chunk


@pytest.mark.parametrize("given", ["text", None, 5, [{"type": "data-x"}]])
def test_what_is_no_custom_chunk_is_told_with_what_would_be(given):
    told = rf'was given a value of type {type(given).__name__}; give a chunk, such as `\{{"type": "data-progress"'
    with pytest.raises(TypeError, match=told):
        check_custom(given)
