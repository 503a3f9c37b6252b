"""Server-sent events are cut at event borders, however the bytes arrive."""

import asyncio
from itertools import pairwise

import orjson
from hypothesis import given
from hypothesis import strategies as st

from procession_services.llm_gateway.providers.openai_events import EventReader, event_batches

EVENTS = [{"a": "é"}, {"b": 2}, {"c": [1, "data: no"]}]
END = {"\n": b"data: [DONE]\n\n", "\r\n": b"data: [DONE]\r\n\r\n"}


def written(newline: str) -> bytes:
    lines = "".join(f": comment{newline}data: {orjson.dumps(e).decode()}{newline}{newline}" for e in EVENTS)
    return lines.encode() + END[newline]


@given(newline=st.sampled_from(["\n", "\r\n"]), cuts=st.lists(st.integers(0, 120), max_size=8))
def test_any_split_of_the_bytes_gives_the_same_events(newline, cuts):
    body, reader, read = written(newline), EventReader(), []
    borders = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    for start, stop in pairwise(borders):
        read += reader.feed(body[start:stop])

    assert [orjson.loads(each) for each in read] == EVENTS
    assert reader.done


def test_an_event_of_several_data_lines_is_one_event():
    assert EventReader().feed(b"data: {\ndata: }\n\n") == [b"{\n}"]


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
    async for batch in event_batches(source(), EventReader(), parse):
        batches.append([event["number"] for event in batch])
        asyncio.get_running_loop().call_soon(happened.append, "written")

    assert batches == [[0], [1, 2, 3], [4, 5, 6, 7, 8, 9]]
    assert happened.index("written", happened.index(3)) < happened.index(4)
