"""Server-sent events are cut at event borders, however the bytes arrive."""

import asyncio
from codecs import BOM_UTF8
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession_services.llm_gateway.providers import openai_events
from procession_services.llm_gateway.providers.event_errors import CutError, NoEventError
from procession_services.llm_gateway.providers.openai_events import (
    END,
    ErrorData,
    EventReader,
    event_batches,
)
from tests.support.cost import growth

EVENTS = [{"a": "é"}, {"b": 2}, {"c": [1, "data: no"]}]
NEWLINES = ["\n", "\r\n", "\r"]
DONE = b"data: [DONE]\n\n"


def written(newline: str) -> bytes:
    lines = "".join(f": comment{newline}data: {orjson.dumps(e).decode()}{newline}{newline}" for e in EVENTS)
    return lines.encode() + f"data: [DONE]{newline}{newline}".encode()


@given(newline=st.sampled_from(NEWLINES), cuts=st.lists(st.integers(0, 120), max_size=8))
def test_any_split_of_the_bytes_gives_the_same_events(newline, cuts):
    body, reader, read = written(newline), EventReader(), []
    borders = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    for start, stop in pairwise(borders):
        read += reader.feed(body[start:stop])

    assert [orjson.loads(each) for each in read] == EVENTS
    assert reader.done


def test_a_carriage_return_ends_a_line_at_once():
    reader = EventReader()
    assert reader.feed(b"data: 1\r\r") == [b"1"]
    assert reader.feed(b"\ndata: 2\r") == []
    assert reader.end() == [b"2"]


def test_only_a_stream_may_begin_with_a_mark():
    reader = EventReader()
    assert reader.feed(BOM_UTF8 + b"data: 1\n\n" + BOM_UTF8 + b"data: 2\n\n") == [b"1"]


@pytest.mark.parametrize("size", [1, 2])
def test_the_mark_may_come_in_several_reads(size):
    reader, body = EventReader(), BOM_UTF8 + b"data: 1\n\n"
    read = [event for at in range(0, len(body), size) for event in reader.feed(body[at : at + size])]
    assert read == [b"1"]


@pytest.mark.parametrize("end", [b"data:[DONE]", b"data:  [DONE] "])
def test_space_around_data_says_nothing(end):
    reader = EventReader()
    assert [orjson.loads(each) for each in reader.feed(b"data:   1  \n\n" + end + b"\n\n")] == [1]
    assert reader.done


def test_a_large_event_in_many_reads_is_put_together_once():
    def read(size):
        line, reader = b'data: "' + bytes(size) + b'"\n\n', EventReader()
        got = [event for at in range(0, len(line), 1024) for event in reader.feed(line[at : at + 1024])]
        assert got == [line[6:-2]]

    assert growth(read, 8_000_000) < 20  # about 50 if each read copied what came before


def test_an_event_of_several_data_lines_is_one_event():
    assert EventReader().feed(b"data: {\ndata: }\n\n") == [b"{\n}"]


def test_events_without_empty_lines_between_them_are_events():
    reader = EventReader()
    assert reader.feed(b'data: {"a":1}\ndata: {"b":\ndata: 2}\ndata: {"c":3}\n') == [b'{"a":1}', b'{"b":\n2}']
    assert (reader.feed(b"data: [DONE]\n"), reader.done) == ([b'{"c":3}'], True)


@pytest.mark.parametrize("name", [b"event: error\n", b"event:error\r\n"])
def test_an_event_that_is_named_an_error_is_marked(name):
    other = b"event: delta\ndata: 1\n\n"
    reader = EventReader()
    events = reader.feed(other + name) + reader.feed(b"data: 2\n\ndata: 3\n\n" + other)
    assert [(event, type(event) is ErrorData) for event in events] == [
        (b"1", False),
        (b"2", True),
        (b"3", False),
        (b"1", False),
    ]


def test_an_error_is_one_without_an_empty_line_behind_it():
    events = EventReader().feed(b'event: error\ndata: {"message": "boom"}\ndata: [DONE]\n\n')
    assert [(event, type(event)) for event in events] == [(b'{"message": "boom"}', ErrorData)]


def test_an_error_is_one_without_the_name_of_a_field():
    reader = EventReader()
    events = reader.feed(b'data: {"a": 1}\n\n{"error": {"code": 502}}\n\ndata: {"b": 2}\n\n')
    assert [type(event) is ErrorData for event in events] == [False, True, False]
    assert events[1] == b'{"error": {"code": 502}}'


def test_an_error_may_be_a_field_of_its_own():
    [event] = EventReader().feed(b'error: {"code": 400}\n\n')
    assert (event, type(event)) == (b'{"code": 400}', ErrorData)


def test_an_unfinished_event_is_not_given():
    assert EventReader().feed(b'data: {"a": 1}\n') == []


def test_an_event_that_lacks_its_empty_line_is_given_at_the_end():
    reader = EventReader()
    assert reader.feed(b'data: {"a": 1}') == []
    assert reader.end() == [b'{"a": 1}']
    assert reader.end() == []


async def test_the_first_events_of_a_stream_are_on_their_way_before_the_others_of_the_read_are_parsed():
    happened: list[int | str] = []

    async def source():
        yield b"data: 0\n\n"
        yield b"".join(b"data: %d\n\n" % number for number in range(1, 10))

    def parse(body):
        happened.append(int(body))
        return {"number": int(body)}

    batches = []
    async for batch in event_batches(source(), EventReader(), parse, 200):
        batches.append([event["number"] for event in batch])
        asyncio.get_running_loop().call_soon(happened.append, "written")

    assert batches == [[0], [1, 2, 3], [4, 5, 6, 7, 8, 9]]
    assert happened.index("written", happened.index(3)) < happened.index(4)


def batches_in(*reads: bytes) -> AsyncIterator[list[Any]]:
    async def source() -> AsyncIterator[bytes]:
        for read in reads:
            yield read

    return event_batches(source(), EventReader(), orjson.loads, 200)


async def batches_of(*reads: bytes) -> list[list[Any]]:
    return [batch async for batch in batches_in(*reads)]


async def test_a_short_answer_that_is_here_at_once_goes_on_as_one_with_its_end():
    five = b"".join(b'data: {"n": %d}\n\n' % number for number in range(5))
    assert await batches_of(five + DONE) == [[*({"n": number} for number in range(5)), END]]
    assert [len(batch) for batch in await batches_of(five)] == [4, 1]
    assert [len(batch) for batch in await batches_of(five * 3 + DONE)] == [4, 12]
    assert await batches_of(five, DONE) == [*await batches_of(five), [END]]


async def test_an_answer_that_breaks_in_its_last_read_has_no_end():
    batches = batches_in(b"data: {}\n\ndata: {\n\n" + DONE)
    assert await anext(batches) == [{}]
    with pytest.raises(orjson.JSONDecodeError):
        await anext(batches)


@pytest.mark.parametrize("rest", [b'data: {"a', b'data: {"a": "\xc3', b"data: {\n", b"data: [DO"])
async def test_an_answer_that_ends_within_an_event_is_cut_off(rest):
    batches = batches_in(b"data: {}\n\n" + rest)
    assert await anext(batches) == [{}]
    with pytest.raises(CutError, match="in the middle of its answer"):
        await anext(batches)


async def test_a_whole_answer_is_one_event_however_it_comes():
    message = {"role": "assistant", "content": "hi"}
    said = orjson.dumps({"choices": [{"message": message}]}, option=orjson.OPT_INDENT_2)
    [[event, end]] = await batches_of(said[:9], said[9:])
    assert (event["choices"][0]["delta"], end) == (message, END)


@pytest.mark.parametrize("choices", [None, {}, [], [1], [{}], [{"message": "x"}]])
async def test_what_only_looks_like_a_whole_answer_is_none(choices):
    with pytest.raises(NoEventError, match="answered 200"):
        await batches_of(orjson.dumps({"choices": choices}))


async def test_of_an_endless_answer_without_events_not_all_is_kept(monkeypatch):
    monkeypatch.setattr(openai_events, "_WHOLE", 10)
    with pytest.raises(NoEventError, match=r": 'x{16}'$"):
        await batches_of(*[b"x" * 8] * 1000)


def test_an_event_without_data_says_nothing_of_the_next_one():
    (read,) = EventReader().feed(b"event: error\n\ndata: 1\n\n")
    assert read == b"1"
    assert not isinstance(read, ErrorData)
